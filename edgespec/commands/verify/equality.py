"""Is the text with a draft the text without? Comparisons as plain functions, on any pair.

In the byte-identical profile (probed by `batch_shapes`) it always is. Elsewhere a batch of tokens is
computed by other kernels than a single one, logits differ in their last digits, and where two tokens are
equal the choice may flip. Such a first difference is *explained* only if evaluating that very prefix again,
once in the shapes the plain run used and once in those of the run with a draft, gives the two different
choices, so that only arithmetic can be the cause.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgespec.core.loop import Rows, Want
from edgespec.core.request import Request
from edgespec.core.values import Round
from edgespec.core.verify import Coupled
from edgespec.engine.pair import Pair
from edgespec.errors import EngineError
from edgespec.llama.context import Context, ContextSettings
from edgespec.llama.model import Model
from edgespec.sampling.sampler import Sampler

REACH = 60.0  # a token whose logit is so far below the largest has a probability of 1e-26
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

    at: int  # index of the token in the output
    explained: bool  # the replay of either run gives that run's own choice
    logits_differ: float  # `largest_difference` of the two replayed rows
    # by how much, in the row of the plain run, the logit of the plain run's token is above that of the
    # other run's (in a greedy text the distance that arithmetic had to bridge)
    margin: float = 0.0


@dataclass(frozen=True, slots=True)
class BatchShape:
    """How a batch of `size` rows after `held` tokens compares with the same tokens one at a time."""

    size: int
    held: int
    identical: bool  # bit for bit
    logits_differ: float  # the `largest_difference`


def output(
    pair: Pair,
    prompt: Sequence[int] | NDArray[np.int32],
    request: Request,
    *,
    cancelled: Callable[[], bool] = lambda: False,
) -> Output:
    """Generates after `prompt` with empty caches, so that a run can be repeated shape for shape."""
    pair.forget()
    rounds = tuple(pair.generate(prompt, request, cancelled=cancelled))
    if rounds[-1].notice:
        raise EngineError(rounds[-1].notice)
    return Output(np.array(prompt, np.int32), request, rounds)


def batch_shapes(
    model: Model,
    settings: ContextSettings,
    tokens: NDArray[np.int32],
    start: int,
    sizes: Iterable[int],
    *,
    over: Callable[[], bool] = lambda: False,
) -> Iterator[BatchShape]:
    """Compares tokens[start:], evaluated in batches of each size, with the same evaluated one at a time.

    settings: n_rows must cover the largest size. A size that the tokens do not fill once is left out.
    over: asked between evaluations; what is not finished by then is left out too.
    """
    with ExitStack() as opened:
        context = opened.enter_context(Context(model, settings))
        context.score([Want(tokens[:start])])
        rows: list[NDArray[np.float32]] = []
        for n in range(start, tokens.size):
            if over():
                return
            rows.append(context.score([Want(tokens[: n + 1])])[0][0].copy())
        for size in sizes:
            if model.has_recurrent_state:  # it cannot go back to the state after the same evaluations
                opened.close()
                context = opened.enter_context(Context(model, settings))
                context.score([Want(tokens[:start])])
            identical, differ = True, 0.0
            ends = range(start + size, tokens.size + 1, size)
            for end in ends:
                if over():
                    return
                got = context.score([Want(tokens[:end], rows=size)])[0]
                one_by_one = np.stack(rows[end - size - start : end - start])
                identical &= got.tobytes() == one_by_one.tobytes()
                differ = max(differ, largest_difference(got, one_by_one))
            if ends:
                yield BatchShape(size, start, identical, differ)


def largest_difference(a: NDArray[np.float32], b: NDArray[np.float32]) -> float:
    """Returns the largest difference between two logits of one token that could be drawn at all.

    a, b: (..., V). Ignores what is more than `REACH` below the top of its row in `a`, padding mostly.
    """
    with np.errstate(invalid="ignore"):  # inf - inf
        apart = np.abs(a - b)
    return float(apart[~(a < a.max(axis=-1, keepdims=True) - REACH)].max())


def first_difference(a: Sequence[int], b: Sequence[int]) -> int | None:
    """Returns the first index at which two token lists differ; if one ends before the other, its end."""
    shared = min(len(a), len(b))
    return next((i for i in range(shared) if a[i] != b[i]), None if len(a) == len(b) else shared)


def replayed_row(model: Model, settings: ContextSettings, run: Output, at: int) -> NDArray[np.float32]:
    """Evaluates again what `run` did, shape for shape; returns the row that output token `at` came from.

    Rejected guesses are unknown by then and replaced by token 0: no row depends on a later token.
    """
    tokens = run.prompt
    with Context(model, settings) as context:
        for round_ in run.rounds:
            kept = round_.tokens[: round_.accepted]
            tail = (*kept, *(0,) * (round_.drafted - len(kept)))
            rows: Rows = context.score([Want(tokens, tail, round_.drafted + 1)])[0]
            i = at - (tokens.size - run.prompt.size)
            if i < len(round_.tokens) or round_.finish:
                row: NDArray[np.float32] = rows[i].copy()
                return row
            tokens = np.concatenate([tokens, np.array(round_.tokens, np.int32)])
    raise ValueError(f"the run has no token {at}")


def difference(model: Model, settings: ContextSettings, plain: Output, drafted: Output) -> Difference | None:
    """Compares an output of plain decoding with one that had a draft; None if they are the same.

    settings: those that both ran with (n_ctx may be smaller, as long as the texts fit).
    """
    at = first_difference(plain.tokens, drafted.tokens)
    if at is None:
        return None
    sampler = Sampler(plain.request.sampling, model.n_vocab)
    rule = Coupled(plain.request.seed or 0, plain.request.choice)  # greedy leaves nothing to draw
    rows, chosen, explained = [], [], True
    for run in (plain, drafted):
        rows.append(replayed_row(model, settings, run, at))
        before = np.concatenate([run.prompt, np.array(run.tokens[:at], np.int32)])
        chosen.append(rule.draw(sampler(rows[-1], before), before.size))
        token = run.tokens[at] if at < len(run.tokens) else END
        explained &= token == (END if chosen[-1] in model.end_tokens else chosen[-1])
    margin = float(rows[0][chosen[0]] - rows[0][chosen[1]])
    return Difference(at, explained, largest_difference(*rows), margin)


def complaint(
    differences: Sequence[Difference | None],
    *,
    identical: bool,
    logits_differ_at_most: float,
) -> str | None:
    """Says what is wrong with the differences of many texts; None if nothing is.

    identical: the byte-identical profile, in which no difference can be explained. logits_differ_at_most:
    what arithmetic can plausibly explain.
    """
    n, found = len(differences), [found for found in differences if found]
    if identical and found:
        return f"{len(found)} of {n} texts differ although batches are bit-identical: {_shown(found)}"
    if blamed := [d for d in found if not d.explained]:
        return f"{len(blamed)} of {n} texts differ for reasons other than rounding: {_shown(blamed)}"
    if wild := [d for d in found if not d.logits_differ <= logits_differ_at_most]:
        return f"{len(wild)} of {n} texts differ by more than rounding explains: {_shown(wild)}"
    return None


def _shown(found: Sequence[Difference]) -> str:
    shown = [f"token {d.at} (a logit is {d.logits_differ:.3g} off)" for d in found[:3]]
    return ", ".join(shown)
