"""Is the text with a draft the text without? Checks as plain functions, on any pair.

In the byte-identical profile (algorithms 3.4; probed by `byte_identical`) it always is. Elsewhere a batch
of tokens is computed by other kernels than a single one, logits differ in their last digits, and where two
tokens stand equal the choice may flip. Such a first difference is *excused* only if evaluating that very
prefix again, once in the shapes the plain run used and once in those of the run with a draft, gives the two
different choices, so that nothing but arithmetic is left to blame.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgespec.context import Context, ContextSettings
from edgespec.decode import Want
from edgespec.engine import Pair, Request
from edgespec.events import Round
from edgespec.llama import Model
from edgespec.sampling import Sampler
from edgespec.verify import Coupled

EXCUSED_AT_MOST = 0.05  # of the texts
LOGITS_DIFFER_AT_MOST = 0.25
END = -1  # stands for whichever end token was chosen


@dataclass(frozen=True, slots=True)
class Output:
    """One generation: what was asked and every round of the answer."""

    prompt: NDArray[np.int32]
    request: Request
    rounds: tuple[Round, ...]

    @property
    def tokens(self) -> tuple[int, ...]:
        return tuple(token for round_ in self.rounds for token in round_.tokens)

    @property
    def text(self) -> str:
        return "".join(round_.text for round_ in self.rounds)

    @property
    def drafted(self) -> int:
        return sum(round_.drafted for round_ in self.rounds)

    @property
    def accepted(self) -> int:
        return sum(round_.accepted for round_ in self.rounds)


@dataclass(frozen=True, slots=True)
class Difference:
    """The first token in which two outputs differ, and whether arithmetic alone explains it."""

    at: int
    excused: bool
    logits_differ: float


def output(pair: Pair, prompt: Sequence[int] | NDArray[np.int32], request: Request) -> Output:
    """Generates behind `prompt` with empty caches, so that a run can be repeated shape for shape."""
    for context in (pair._target_context, pair._draft_context):
        if context:
            context._clear(0)
    return Output(np.array(prompt, np.int32), request, tuple(pair.generate(prompt, request)))


def byte_identical(model: Model, settings: ContextSettings, tokens: NDArray[np.int32], k: int) -> bool:
    """True where this machine computes the same bytes for single tokens and for batches of up to k + 1."""
    start = tokens.size // 2
    with Context(model, settings) as single, Context(model, settings) as batched:
        single.score([Want(tokens[:start])])
        rows = [single.score([Want(tokens[: n + 1])])[0][0].copy() for n in range(start, tokens.size)]
        for size in range(2, k + 2):
            batched.score([Want(tokens[:start])])
            for at in range(start, tokens.size - size + 1, size):
                got = batched.score([Want(tokens[: at + size], rows=size)])[0]
                if not np.array_equal(got, np.stack(rows[at - start : at - start + size])):
                    return False
    return True


def first_difference(a: Sequence[int], b: Sequence[int]) -> int | None:
    """Returns the first index at which two token lists differ; where one ends before the other, its end."""
    shared = min(len(a), len(b))
    return next((i for i in range(shared) if a[i] != b[i]), None if len(a) == len(b) else shared)


def replayed_row(model: Model, settings: ContextSettings, run: Output, at: int) -> NDArray[np.float32]:
    """Evaluates again what `run` did, shape for shape; returns the row that output token `at` came from.

    Rejected guesses are not known any more and replaced by token 0: no row depends on a later token.
    """
    tokens = run.prompt
    with Context(model, settings) as context:
        for round_ in run.rounds:
            kept = round_.tokens[: round_.accepted]
            tail = (*kept, *(0,) * (round_.drafted - len(kept)))
            rows = context.score([Want(tokens, tail, round_.drafted + 1)])[0]
            i = at - (tokens.size - run.prompt.size)
            if i < len(round_.tokens) or round_.finish:
                return rows[i].copy()
            tokens = np.concatenate([tokens, np.array(round_.tokens, np.int32)])
    raise ValueError(f"the run has no token {at}")


def difference(model: Model, settings: ContextSettings, plain: Output, drafted: Output) -> Difference | None:
    """Compares an output of plain decoding with one that had a draft; None where they are the same."""
    at = first_difference(plain.tokens, drafted.tokens)
    if at is None:
        return None
    sampler = Sampler(plain.request.sampling, model.n_vocab)
    rule = Coupled(plain.request.seed or 0, plain.request.choice)  # greedy leaves nothing to draw
    rows, explained = [], True
    for run in (plain, drafted):
        rows.append(replayed_row(model, settings, run, at))
        before = np.concatenate([run.prompt, np.array(run.tokens[:at], np.int32)])
        chosen = rule.draw(sampler(rows[-1], before), before.size)
        said = run.tokens[at] if at < len(run.tokens) else END
        explained &= said == (END if chosen in model.end_tokens else chosen)
    return Difference(at, explained, float(np.abs(rows[0] - rows[1]).max()))


def complaint(differences: Sequence[Difference | None], *, identical: bool) -> str | None:
    """Says what is wrong with the differences of many texts; None where nothing is.

    identical: the byte-identical profile, in which nothing is excused.
    """
    found = [found for found in differences if found]
    if identical and found:
        return f"{len(found)} of {len(differences)} texts differ in the byte-identical profile: {found[:3]}"
    blamed = [d for d in found if not d.excused or d.logits_differ > LOGITS_DIFFER_AT_MOST]
    if blamed:
        return f"{len(blamed)} of {len(differences)} texts differ for no reason of arithmetic: {blamed[:3]}"
    if len(found) > EXCUSED_AT_MOST * len(differences):
        return f"{len(found)} of {len(differences)} texts are excused, more than {EXCUSED_AT_MOST:.0%}"
    return None
