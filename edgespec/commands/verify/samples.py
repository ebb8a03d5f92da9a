"""Sampled tokens of the whole loop against the model's own distribution, at a stated rate of false alarms."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgespec.commands.verify.budget import Deadline, TokenizedPrompt
from edgespec.commands.verify.equality import largest_difference
from edgespec.commands.verify.goodness import (
    LEAST,
    Prefix,
    chi_square,
    divergence,
    expected_cells,
    shares,
    total_variation,
    visible,
)
from edgespec.commands.verify.texts import Way
from edgespec.core.loop import Rows, Want
from edgespec.core.request import Request
from edgespec.core.values import ModelName
from edgespec.engine.pair import Pair
from edgespec.errors import EngineError
from edgespec.llama.heads.guessing import DraftContext
from edgespec.sampling.sampler import Distribution, Sampler, Sampling

WIDE = Sampling(temperature=1.0, top_k=8, top_p=0.98, min_p=0.02)  # few sequences, and none too rare
NARROW = Sampling(temperature=1.0, top_k=3, top_p=1.0, min_p=0.0)  # fewer still, for slow models
FEW = 5000  # evaluations in the available time, below which a model counts as slow
FIRST = 3  # tokens whose distribution is tested: the first is plain, the others are drafted
KEPT = 256  # logits kept of a row, its largest: rows of a large vocabulary would fill the memory


@dataclass(frozen=True, slots=True)
class ChiSquare:
    """The chi-square test of one way of drafting."""

    way: Way
    kind: str
    sampling: Sampling
    samples: int
    cells: int
    p_value: float  # how often chance alone deviates this much
    false_alarm: float
    visible: float  # total variation from which on 9 of 10 deviations would be found
    # total variation between the model's distribution in batches and token by token, which is allowed for
    arithmetic: float
    logits_differ: float
    drafted: int
    accepted: int

    @property
    def passed(self) -> bool:
        return self.p_value >= self.false_alarm


class RowMemory:
    """Wraps a context and answers from memory what was asked before: the same tokens in one shape.

    So thousands of samples cost a slow model no more than their different prefixes. What is
    asked the first time is evaluated in the very shape it would have without the memory. Logits
    past the `KEPT` largest come out as -inf, always: for samplers with a top-k below that.
    """

    def __init__(self, context: DraftContext) -> None:
        self._context = context
        self.evaluated = context.evaluated
        self._known: dict[tuple[bytes, tuple[int, ...], int], list[tuple[NDArray[np.intp], Rows]]] = {}

    def missing(self, want: Want) -> int:
        """Returns how many tokens the context itself would evaluate."""
        return self._context.missing(want)

    def score(self, wants: Sequence[Want]) -> list[Rows]:
        """Answers like the context; the rows stay valid."""
        return [self._score(want) for want in wants]

    def _score(self, want: Want) -> Rows:
        key = want.tokens.tobytes(), want.tail, want.rows
        if key not in self._known:
            before = want.tokens[: want.tokens.size + len(want.tail) - want.rows]
            held = self._context.held()
            if before.size and not np.array_equal(held[: before.size], before):
                self._context.score([Want(before)])  # what the loop had evaluated by now
            rows = self._context.score([want])[0]
            self.evaluated = self._context.evaluated
            self._known[key] = [(ids := _largest(row), row[ids]) for row in rows]
        rows = np.full((want.rows, self._context.n_vocab), -np.inf, np.float32)
        for row, (ids, logits) in zip(rows, self._known[key], strict=True):
            row[ids] = logits
        return rows


def _largest(row: NDArray[np.float32]) -> NDArray[np.intp]:
    """Returns the ids of the KEPT largest logits, in no order."""
    return np.argpartition(row, -KEPT)[-KEPT:] if row.size > KEPT else np.arange(row.size)


@dataclass(slots=True)
class Sampled:
    """Draws first tokens from the whole loop, over contexts that remember; counts guesses."""

    pair: Pair
    prompt: TokenizedPrompt
    way: Way
    sampling: Sampling
    rng: np.random.Generator
    scorers: dict[ModelName, RowMemory]
    drafted: int = 0
    accepted: int = 0

    def draw(self) -> Prefix:
        """Returns the first tokens of one more generation."""
        request = self.way.of(Request(self.sampling, 4 * FIRST + 4, rng_seed=int(self.rng.integers(2**32))))
        tokens: list[int] = []
        for round_ in self.pair.generate(self.prompt.tokens, request, scorers=self.scorers):
            tokens += round_.tokens
            if round_.notice:
                raise EngineError(round_.notice)
            self.drafted += round_.drafted
            self.accepted += round_.accepted
            if len(tokens) >= FIRST:
                break
        return tuple(tokens[:FIRST])


def sampling_for(watch: Deadline) -> Sampling:
    """Returns how to sample: the fewer evaluations there is time for, the fewer sequences there may be."""
    return NARROW if watch.left < FEW * watch.speed.token else WIDE


def check_distribution(
    pair: Pair,
    prompt: TokenizedPrompt,
    way: Way,
    sampling: Sampling,
    watch: Deadline,
    *,
    samples: int,
    false_alarm: float,
    rng: np.random.Generator,
) -> ChiSquare | None:
    """Tests the first tokens after `prompt`, drafted in this way and sampled so, by chi-square.

    Draws at most `samples`. If time ends before, the current sample still counts: so each cell's
    expected count stays its share of those drawn (Wald), though slower ones are likelier to be the last.
    None if there is no time, or the user stopped it.
    """
    token_s = watch.speed.token
    if watch.hopeless(20 * FIRST * token_s):
        return None
    memories: dict[ModelName, RowMemory] = {name: RowMemory(c) for name, c in pair.contexts.items()}
    drawn, drawing = Sampled(pair, prompt, way, sampling, rng, memories), watch.share(0.75)
    sequences: list[Prefix] = []
    while len(sequences) < samples and not drawing.over():
        if len(sequences) % 20 == 0:
            watch.on_progress("first tokens", len(sequences), samples)
        sequences.append(drawn.draw())
    if watch.cancelled() or not sequences:
        return None
    n = len(sequences)
    tree = _Tree(prompt, Sampler(sampling, pair.target.n_vocab), memories["target"], way.length or 4)
    prefixes = max(watch.left, 1.0) / (2 * token_s)  # that there is time to evaluate, in both shapes
    least = max(LEAST, n * min(0.05, 2 / prefixes))  # at most 1 / share of each length are looked into
    cells = expected_cells(tree.plain, FIRST, n, pair.target.end_tokens, least=least)
    batched = shares(cells, tree.batched, pair.target.end_tokens)
    allowed = divergence(cells.probs, batched)
    p_value, df = chi_square(cells, sequences, allowed)
    return ChiSquare(
        way=way,
        kind=prompt.kind,
        sampling=sampling,
        samples=n,
        cells=df + 1,
        p_value=p_value,
        false_alarm=false_alarm,
        visible=visible(df, n, false_alarm, allowed) if df else math.inf,
        arithmetic=total_variation(cells.probs, batched),
        logits_differ=tree.logits_differ,
        drafted=drawn.drafted,
        accepted=drawn.accepted,
    )


@dataclass(slots=True)
class _Tree:
    """The model's own distribution after a prompt, token by token and in the batches of speculation."""

    prompt: TokenizedPrompt
    sampler: Sampler
    memory: RowMemory
    k: int
    logits_differ: float = 0.0

    def _one(self, prefix: Prefix) -> NDArray[np.float32]:
        tokens = np.concatenate([self.prompt.tokens, np.array(prefix, np.int32)])
        row: NDArray[np.float32] = self.memory.score([Want(tokens)])[0][0]
        return row

    def plain(self, prefix: Prefix) -> Distribution:
        """Returns what follows, evaluated one token at a time."""
        return self.sampler(self._one(prefix))

    def batched(self, prefix: Prefix) -> Distribution:
        """Returns what follows, evaluated in a batch of k + 1 after the first token (which has none)."""
        if not prefix:
            return self.plain(prefix)
        tokens = np.append(self.prompt.tokens, np.int32(prefix[0]))
        tail = (*prefix[1:], *(0,) * self.k)[: self.k]
        row = self.memory.score([Want(tokens, tail, self.k + 1)])[0][len(prefix) - 1]
        one = self._one(prefix)
        kept = np.isfinite(row) & np.isfinite(one)  # by the memory, of both
        self.logits_differ = max(self.logits_differ, largest_difference(row[kept], one[kept]))
        return self.sampler(row)


def telling_prompt(
    pair: Pair, prompts: Sequence[TokenizedPrompt], way: Way, sampling: Sampling, watch: Deadline
) -> TokenizedPrompt:
    """Returns the prompt after which a wrong rule would show best.

    The wrong rule is one that draws from p, not from the residual, after a rejection; its distance
    from p is computed for the second token, after the likeliest first one. Without a draft, or with Medusa
    heads, which guess nothing there, a few samples decide. Looks at as many prompts as there is time for, but
    at one.
    """
    if "draft" not in pair.contexts or pair.head and pair.head.kind == "medusa":
        return _copied(pair, prompts, way, sampling, watch)
    best, most, longest = prompts[0], -1.0, 0.0
    sampler, guessing = Sampler(sampling, pair.target.n_vocab), pair.streams.draft_sampler(sampling)
    for prompt in prompts:
        started = watch.clock()
        if watch.over(longest):
            break
        first = sampler(pair.contexts["target"].score([Want(prompt.tokens)])[0][0])
        tokens = np.append(prompt.tokens, np.int32(first.ids[first.probs.argmax()]))
        p = sampler(pair.contexts["target"].score([Want(tokens)])[0][0])
        q = guessing(pair.contexts["draft"].score([Want(tokens)])[0][0])
        accepted = np.minimum(p.probs, q.on(p.ids))
        likely = p.probs > 0
        off = (accepted - p.probs * accepted.sum())[likely]
        worth = float(first.probs.max() * (off**2 / p.probs[likely]).sum())
        if worth > most:
            best, most = prompt, worth
        longest = max(longest, watch.clock() - started)
    return best


def _copied(
    pair: Pair, prompts: Sequence[TokenizedPrompt], way: Way, sampling: Sampling, watch: Deadline
) -> TokenizedPrompt:
    """Returns the prompt after which most guesses of a lookup are accepted, and some are not."""
    found: dict[int, int] = {}
    for i, prompt in enumerate(prompts):
        if not (found and watch.over()):
            memories: dict[ModelName, RowMemory] = {name: RowMemory(c) for name, c in pair.contexts.items()}
            drawn = Sampled(pair, prompt, way, sampling, np.random.default_rng(0), memories)
            for _ in range(12):
                drawn.draw()
            found[i] = drawn.accepted * (drawn.drafted - drawn.accepted) + drawn.drafted
    return prompts[max(found, key=found.__getitem__, default=0)]
