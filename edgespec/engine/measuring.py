"""Measuring a loaded pair: what one token, or several, cost on target and draft."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgespec.core.loop import Want
from edgespec.core.pace import costs
from edgespec.core.pace.costs import FURTHER, Beside, Costs, CostTable, Hardware
from edgespec.core.values import LONGEST_DRAFT
from edgespec.errors import NoRoomError
from edgespec.llama.context import Context
from edgespec.llama.heads.guessing import AnyHead, DraftContext
from edgespec.llama.heads.medusa_context import MedusaModel
from edgespec.llama.model import PROCESSOR, Model
from edgespec.llama.settings import CHUNK
from edgespec.llama.translated_context import TranslatedContext
from edgespec.pairs.settings import KvType, PairSettings
from edgespec.system.builds import built_for
from edgespec.system.config import cache_folder
from edgespec.system.cores import threads_wanted
from edgespec_models.gguf.heads import HeadKind

TARGET_BUDGET, DRAFT_BUDGET = 0.65, 0.15  # seconds; about one together with what follows
BESIDE_BUDGET = 0.2  # for one verification with the draft beside it; there are three
VERIFIED = 5  # tokens of these
LOOKS, LOOKED_AT = 3, 16  # times that each size is timed again when idle, up to this one
READING = 64  # tokens of a prompt on which the draft is timed
BEFORE = 4  # tokens before those that are timed
STRIDE = 7919  # between the tokens of a verification
CHECK_BUDGET = 0.3  # seconds that checking old figures may take
AGAIN_BUDGET, AGAIN = 0.4, 20  # for timing sizes again: seconds at most, and token times
STRANGE = 2.0  # factor by which the draft's share of the target's cost may have changed, or a token be slower
FLOAT_TYPES = {0, 1, 32}  # general.file_type: F32, F16, BF16


def measure_costs(target: Context, draft: DraftContext | None) -> Costs:
    """Times evaluations of both contexts in about a second. Their caches hold other tokens afterwards."""
    sizes = tuple(n for n in costs.SIZES if n <= LONGEST_DRAFT + 1 and n + BEFORE <= target.n_ctx)
    verifying = _measured(target, _verification(target), sizes, TARGET_BUDGET)
    if draft is None:
        return Costs(verifying, CostTable({1: verifying.points[1]}))
    sizes = tuple(n for n in (1, 2, READING) if n + BEFORE <= draft.n_ctx)
    drafting = _measured(draft, _reading(draft), sizes, DRAFT_BUDGET)
    alone, step = verifying.seconds(VERIFIED), drafting.seconds(1)
    if isinstance(draft, AnyHead):  # it reads what the target has just made, so it cannot read ahead
        return Costs(verifying, drafting, rereads=True, at_once=draft.kind == "dflash")
    if isinstance(draft, TranslatedContext):
        return Costs(verifying, drafting)
    return Costs(verifying, drafting, _beside(target, draft, alone, step))


def _beside(target: Context, draft: Context, alone: float, step: float) -> Beside | None:
    """Times verifications with the draft at work beside them; None if that takes too long to measure."""
    if any(context.model.has_recurrent_state for context in (target, draft)):
        return None  # what was read ahead in vain cannot just be dropped
    if (target.model.layers & draft.model.layers).keys() - {PROCESSOR}:
        return None  # one card would do both, one after the other
    if target.n_ctx < VERIFIED + BEFORE or alone + step > BESIDE_BUDGET:
        return None
    verify, read = _verification(target), _reading(draft)
    return costs.measure_beside(
        lambda: verify(VERIFIED), lambda: read(1), alone=alone, one_step=step, steps=VERIFIED - 1 + FURTHER
    )


def _measured(
    context: DraftContext, evaluate: Callable[[int], None], sizes: tuple[int, ...], budget: float
) -> CostTable:
    hardware = _hardware(context.model)
    return costs.from_measured(hardware, costs.measure(evaluate, hardware, sizes=sizes, budget=budget))


def still_true(costs_: Costs, target: Context, draft: DraftContext | None) -> bool:
    """Times single tokens again, and scales the tables to a machine that is faster or slower than before.

    False if the two models no longer compare as they did, or if the recorded cost of one token is far above
    that of the first two just now, cold caches included: then the measurement had been disturbed.
    """
    shares = []
    for context, table in ((target, costs_.target), (draft, costs_.draft)):
        if context and table.seconds(1) > STRANGE * context.first_s:
            return False
        if context and table.seconds(1) * (BEFORE + 4) < CHECK_BUDGET:
            found = costs.measure(_reading(context), _hardware(context.model), sizes=(), budget=CHECK_BUDGET)
            shares.append(found[1] / table.points[1])
            table.level = shares[-1]
    return max(shares, default=1.0) < STRANGE * min(shares, default=1.0)


def time_again(costs_: Costs, target: Context, budget: float | None = None) -> None:
    """Times verifications again, for about `budget` seconds: the sizes that were seen least.

    Done at each start, so that programs which are never idle do not trust one moment of the first for ever.
    """
    table, evaluate = costs_.target, _verification(target)
    level = table.level  # known from single tokens by now
    if budget is None:  # somebody waits for the model
        budget = min(AGAIN_BUDGET, AGAIN * table.seconds(1))
    known = [n for n in costs.SIZES if n in table.measured and n <= min(LOOKED_AT, target.n_ctx - BEFORE)]
    for n in sorted(known, key=lambda n: table.seen.get(n, 0)):
        expected = min(table.points[n], costs.in_parts(table.points, n)) * table.level
        if expected > budget:
            continue
        before = target.seconds
        evaluate(n)
        table.learn(n, BEFORE, target.seconds - before)
        budget -= target.seconds - before
    table.level = level


class SecondLook:
    """Times sizes again while nobody waits, one at a time, so that one slow moment is not trusted for ever.

    The estimated cost of a draft length decides whether it is tried; one wrongly thought expensive never is.
    """

    def __init__(self, target: Context, table: CostTable) -> None:
        self._target, self._table = target, table
        self._turns = [n for _ in range(LOOKS) for n in costs.SIZES if n in table.measured and n <= LOOKED_AT]

    def take(self) -> bool:
        """Evaluates one size after the longest text held; False if all were seen often enough.

        The sequence then holds some tokens more, which the next request removes.
        """
        seq = max(range(self._target.settings.n_seq), key=lambda seq: self._target.held(seq).size)
        held = self._target.held(seq)
        if not self._turns or self._target.model.has_recurrent_state or not held.size:
            return False
        n = self._turns.pop(0)
        if held.size + n > self._target.n_ctx:
            return False
        want = Want(held, (0,) * (n - 1), n, seq)
        try:
            self._target.score([want])  # a warm-up: idle cores are slow
            before = self._target.seconds
            self._target.score([want])
        except NoRoomError:
            return False
        self._table.learn(n, held.size - 1, self._target.seconds - before)
        return True


def _verification(context: Context) -> Callable[[int], None]:
    """Returns what evaluates n tokens with a row each, as a verification of n - 1 guesses does."""
    n_vocab = context.model.n_vocab

    def evaluate(n: int) -> None:
        # all different: in a mixture of experts, the same token would wake the same experts
        tail = tuple(STRIDE * i % n_vocab for i in range(1, n))
        context.score([Want(np.append(_front(context, n), np.int32(0)), tail, n)])

    return evaluate


def _reading(context: DraftContext) -> Callable[[int], None]:
    """Returns what evaluates n tokens with one row, other ones each time."""
    if isinstance(context, AnyHead):
        return context.rehearse
    if isinstance(context, TranslatedContext):
        context.clear()
        context = context.own
    turn = 0

    def evaluate(n: int) -> None:
        nonlocal turn
        turn = 1 - turn
        context.score([Want(np.append(_front(context, n), np.full(n, turn, np.int32)), (), 1)])

    return evaluate


def _front(context: Context, n: int) -> NDArray[np.int32]:
    """Returns tokens after which n can be evaluated, and no others with them.

    A recurrent model rewinds by evaluating its text again, so there the text grows instead.
    """
    held = context.held(0)
    if context.model.has_recurrent_state and 0 < held.size <= context.n_ctx - n:
        return held
    return np.arange(2, BEFORE + 1, dtype=np.int32) % context.model.n_vocab


def _hardware(model: Model | MedusaModel) -> Hardware:
    if model.on_gpu:
        return "gpu"
    kind = model.metadata.get("general.file_type", "")
    return "cpu-float" if kind.isdigit() and int(kind) in FLOAT_TYPES else "cpu-quantised"


def costs_path(target: Context, draft: DraftContext | None, elsewhere: Sequence[object] = ()) -> Path:
    """Returns the file with what is known of this pair on this machine with these settings.

    elsewhere: what its costs depend on besides: which other machines have how much of the target.
    """
    identities = [_identity(context) for context in (target, draft) if context]
    head = draft.kind if isinstance(draft, AnyHead) else None
    return _kept_in(target.model.path, identities, head, elsewhere)


def costs_path_of(
    target: Path,
    draft: Path | None,
    head: HeadKind | None,
    settings: PairSettings,
    *,
    on_gpu: bool,
    draft_on_gpu: bool,
) -> Path:
    """Returns the same for a pair that is not loaded. head: in its draft's or its target's file.

    on_gpu: a card has all layers of the target; draft_on_gpu: of the draft or head.
    """
    guessing = draft or (target if head else None)
    identities = [
        _parts(path, _placed(there), settings.threads, kv_type, settings.flash_attention, CHUNK)
        for path, there, kv_type in (
            (target, on_gpu, settings.kv_type),
            (guessing, draft_on_gpu, settings.draft_kv_type),
        )
        if path
    ]
    return _kept_in(target, identities, head, ())


def _kept_in(
    target: Path, identities: Sequence[list[str]], head: str | None, elsewhere: Sequence[object]
) -> Path:
    said = [part for identity in identities for part in identity] + ([head] if head else [])
    said += [platform.node(), platform.machine(), metadata.version("llama_cpp_python")]
    said += map(str, elsewhere)
    key = hashlib.sha256(json.dumps(said).encode()).hexdigest()[:20]
    return cache_folder() / "pairs" / f"{target.stem[:40]}-{key}.json"


def _identity(context: DraftContext) -> list[str]:
    """Returns what the costs of a context depend on."""
    model, how = context.model, context.settings
    partly = PROCESSOR in model.layers and model.on_gpu
    place = sorted(model.layers.items()) if partly else _placed(model.on_gpu)
    return _parts(model.path, place, how.threads, how.kv_type, how.flash_attention, how.chunk)


def _placed(on_gpu: bool) -> object:
    """Distinguishes a card with all layers from the processor, and from the card with another build."""
    return built_for() if on_gpu else False


def _parts(
    path: Path, place: object, threads: int | None, kv_type: KvType, flash: bool | None, chunk: int
) -> list[str]:
    file = os.stat(path)
    parts = (
        path.resolve(), file.st_size, file.st_mtime_ns, place,
        threads or threads_wanted(), kv_type, flash, chunk,
    )  # fmt: skip
    return [str(part) for part in parts]
