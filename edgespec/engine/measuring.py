"""Measuring a loaded pair: what one token, or several, cost on target and draft."""

import hashlib
import json
import math
import os
import platform
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgespec.core.loop import Want
from edgespec.core.pace import costs
from edgespec.core.pace.cost_table import CostTable
from edgespec.core.pace.costs import Costs
from edgespec.core.pace.row_costs import ON_CARD, Shape, shape_of
from edgespec.core.values import LONGEST_DRAFT
from edgespec.errors import NoRoomError
from edgespec.llama.attention import slopes_of
from edgespec.llama.context import Context
from edgespec.llama.devices import cpu_features
from edgespec.llama.heads.guessing import AnyHead, DraftContext
from edgespec.llama.heads.medusa_context import MedusaModel
from edgespec.llama.model import PROCESSOR, Model
from edgespec.llama.translated_context import TranslatedContext
from edgespec.system.builds import built_for
from edgespec.system.config import cache_folder
from edgespec.system.cores import threads_wanted

BUDGET = 0.6  # seconds; about one together with what follows
SLOW_S = BUDGET / 4  # for one token; somebody waits for the model
TURNS = 3  # times that each size is timed, if there is time
KNOWN = 2.0  # observations after which a size is not timed again
LOOKS, LOOKED_AT = 3, 16  # times that a size is timed again when idle, and the largest
PATIENCE = 240  # times that an idle moment may belong to others before nobody looks any more
ALLOWED = 0.3  # cores that other programs may use during it
SUPPOSED = 0.1  # of a target's token: one of a draft that could not be timed
READING = 48  # tokens of a prompt on which the draft is timed
BEFORE = 4  # tokens before those that are timed
STRIDE = 7919  # between the tokens of a verification
AGAIN_BUDGET, AGAIN = 0.3, 15  # for timing sizes again: seconds at most, and token times
SETTLING = 2  # see `CostTable`: llama.cpp captures a card's graph at the second evaluation of a size
STRANGE = 2.0  # factor over the first two tokens just now that one token is not believed to take


def measure_costs(target: Context, draft: DraftContext | None, *, draft_fails: bool = False) -> Costs:
    """Times evaluations of both contexts in about a second. Their caches hold nothing afterwards.

    draft_fails: it is not evaluated, and supposed to cost little, so that an answer asks it and tells of it.
    """
    timed = None if draft_fails else draft
    verify, step = _timed(target, _verification(target)), _timed(timed, _reading(timed)) if timed else None
    table = _assumed(target, verify)
    if timed is None or step is None:
        found = Costs(table, CostTable({1: table.points[1] * (SUPPOSED if draft else 1)}))
    else:
        found = Costs(table, _assumed(timed, step))
    kind = draft.kind if isinstance(draft, AnyHead) else None
    note_places(found, target, draft)
    found.rereads = kind not in (None, "medusa")  # it reads what the target has just made
    found.at_once = kind == "dflash"
    sizes = [n for n in costs.SIZES if n <= LONGEST_DRAFT + 1 and n + BEFORE <= target.n_ctx]
    read = [n for n in (2, READING) if timed and n + BEFORE <= timed.n_ctx]
    left = costs.look(found, verify, step, sizes=sizes, read=read, n_ctx=BEFORE, budget=BUDGET)
    for _ in range(TURNS - 1):
        sizes.sort(key=lambda n: table.weights.get(n, 0.0))
        left = costs.look(found, verify, step, sizes=sizes, read=read, n_ctx=BEFORE, budget=left)
    _clear(target, draft)
    return found


def note_places(costs_: Costs, target: Context, draft: DraftContext | None) -> None:
    """Notes in the costs of a pair which of the two is on a card."""
    costs_.target.settling = SETTLING * target.model.on_gpu
    costs_.draft.settling = SETTLING * (draft is not None and draft.model.on_gpu)


def _single(evaluate: Callable[[int], float]) -> float:
    """Times one token behind a warm-up: the less of two, where a second one does not take long."""
    evaluate(1)
    seconds = evaluate(1)
    return seconds if seconds > SLOW_S else min(seconds, evaluate(1))


def _clear(target: Context, draft: DraftContext | None) -> None:
    """Forgets what was evaluated: nobody else knows of it."""
    for context in (target, draft):
        if context:
            context.clear(0)


def believable(costs_: Costs, target: Context, draft: DraftContext | None) -> bool:
    """Returns whether kept costs of one token are near those of the first two just now, cold caches included.

    What is far above them would take too long to time again.
    """
    known = (target, costs_.target), (draft, costs_.draft)
    return all(table.seconds(1) <= STRANGE * context.first_s for context, table in known if context)


def time_again(
    costs_: Costs, target: Context, draft: DraftContext | None = None, budget: float | None = None
) -> None:
    """Times sizes again, for about `budget` seconds: those of which least is known. Clears the caches.

    Done at each start, so that programs which are never idle do not trust one moment of the first for ever.
    """
    table = costs_.target
    if budget is None:  # somebody waits for the model
        budget = min(AGAIN_BUDGET, AGAIN * table.seconds(1))
    if budget < 3 * table.seconds(1):
        return  # two of them, and nothing learned yet
    sizes = [n for n in costs.SIZES if n <= min(LOOKED_AT, target.n_ctx - BEFORE)]
    sizes.sort(key=lambda n: table.weights.get(n, 0.0))
    verify, step = _timed(target, _verification(target)), _timed(draft, _reading(draft)) if draft else None
    verify(1)
    costs.look(costs_, verify, step, sizes=sizes, n_ctx=BEFORE, budget=budget)
    _clear(target, draft)


class SecondLook:
    """Times sizes of which little is known again while nobody waits, one at a time.

    What one slow moment has made of a size should not be trusted for ever: one wrongly thought expensive
    is never tried. It ends: each size has a few turns, and while other programs work there are none.
    """

    def __init__(self, target: Context, costs_: Costs, others: Callable[[], float]) -> None:
        """others: returns how many cores other programs kept busy since it was last asked."""
        self._target, self._costs, self._others = target, costs_, others
        self._turns = [n for _ in range(LOOKS) for n in costs.SIZES if n <= LOOKED_AT]
        self._patience = 0 if target.model.has_recurrent_state else PATIENCE

    def take(self) -> bool:
        """Evaluates one size after the longest text held, which stays as it is; False if nothing is left."""
        weights = self._costs.target.weights
        self._turns = [n for n in self._turns if weights.get(n, 0.0) < KNOWN]
        if not self._turns or not self._patience:
            return False
        self._patience -= 1
        seq = max(range(self._target.settings.n_seq), key=lambda seq: self._target.held(seq).size)
        held = self._target.held(seq)
        if self._others() > ALLOWED or not held.size or held.size + LOOKED_AT > self._target.n_ctx:
            return True
        n = self._turns.pop(0)
        text = np.append(held, np.int32(0))

        def verify(n: int) -> float:
            before = _spent(self._target)
            self._target.score([Want(text, (0,) * (n - 1), n, seq)])
            return _spent(self._target) - before

        try:
            verify(1)  # a warm-up: idle cores are slow
            costs.look(self._costs, verify, sizes=[n], n_ctx=held.size, budget=math.inf)
        except NoRoomError:
            self._patience = 0
        self._target.cut(seq, held.size)
        return True


def _timed(context: DraftContext, evaluate: Callable[[int], None]) -> Callable[[int], float]:
    """Returns what evaluates n tokens, and returns its seconds inside llama.cpp."""

    def timed(n: int) -> float:
        before = _spent(context)
        evaluate(n)
        return _spent(context) - before

    return timed


def _spent(context: DraftContext) -> float:
    """Returns the seconds inside llama.cpp, without those that tries of other numbers of threads cost."""
    return context.seconds - context.tried


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


def _assumed(context: DraftContext, evaluate: Callable[[int], float]) -> CostTable:
    """Returns what evaluations are assumed to cost, by one token now and by attention's own timing."""
    one = _single(evaluate)
    table = costs.assumed(_shape(context.model), one)
    if isinstance(context.model, Model) and (slopes := slopes_of(context.model, context.settings)):
        table.slope = slopes[1] / one
        table.reach = {n: seconds / slopes[1] for n, seconds in slopes.items()}
    return table


def _shape(model: Model | MedusaModel) -> Shape:
    return ON_CARD if model.on_gpu else shape_of(model.metadata.get("general.file_type", ""), cpu_features())


def costs_path(target: Context, draft: DraftContext | None, elsewhere: Sequence[object] = ()) -> Path:
    """Returns the file with what is known of this pair on this machine with these settings.

    elsewhere: what its costs depend on besides: which other machines have how much of the target.
    """
    identities = [_identity(context) for context in (target, draft) if context]
    parts = [part for identity in identities for part in identity]
    parts += [draft.kind] if isinstance(draft, AnyHead) else []
    parts += [platform.node(), platform.machine(), metadata.version("llama_cpp_python")]
    parts += map(str, (*elsewhere, *target.settings.rope.flags()))
    key = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:20]
    return cache_folder() / "pairs" / f"{target.model.path.stem[:40]}-{key}.json"


def _identity(context: DraftContext) -> list[str]:
    """Returns what the costs of a context depend on."""
    model, how = context.model, context.settings
    partly = PROCESSOR in model.layers and model.on_gpu
    place = sorted(model.layers.items()) if partly else _placed(model.on_gpu)
    file = os.stat(model.path)
    parts = (
        model.path.resolve(), file.st_size, file.st_mtime_ns, place,
        how.threads or threads_wanted(), how.kv_type, how.flash_attention, how.chunk, how.identical,
    )  # fmt: skip
    return [str(part) for part in (*parts, *model.rules, *model.overridden)]


def _placed(on_gpu: bool) -> object:
    """Distinguishes a card with all layers from the processor, and from the card with another build."""
    return built_for() if on_gpu else False
