"""Models that are tables, randomness that can be enumerated, and the yardsticks of the statistical tests.

`TableModel` takes the place of a llama.cpp context: the loop runs on it unchanged. `World` takes the place of
a random generator and tries every outcome of every draw, so that the law of a rule's output, or of the whole
loop's, is computed and not estimated.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import TypeVar
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from edgespec.core import verify
from edgespec.core.drafters import Drafter, NoDrafter
from edgespec.core.loop import Limits, Loop, Rows, Scorer, Want, generate
from edgespec.core.media import cuts, is_cell
from edgespec.core.pace.batch_plan import BatchPlan
from edgespec.core.pace.costs import Costs, unmeasured
from edgespec.core.pace.pace import FixedLength, Pace
from edgespec.core.request import Request, Scoring
from edgespec.core.stream import Stream
from edgespec.core.text import TextRelease
from edgespec.core.values import LONGEST_DRAFT, Ask, Draft, ModelName, Reach, Round
from edgespec.core.verify import Independent, Rule, Target
from edgespec.engine.alone import alone
from edgespec.engine.slots import Cache, Parts
from edgespec.grammar.grammar import Grammar
from edgespec.llama.checkpoints import Checkpoints
from edgespec.llama.saved import Saved
from edgespec.sampling.sampler import Distribution, Sampler, Sampling

Outcome = TypeVar("Outcome", bound=Hashable)
Tree = Callable[[tuple[int, ...]], Distribution]  # tokens so far -> distribution of the next
Judge = Callable[[Draft, Target, np.random.Generator], verify.Verdict]

# --- models -----------------------------------------------------------------------------------------------


class OneSequence:
    """What a context can do beside evaluating, for fakes of one sequence that nobody saves or shares."""

    batches = True
    fills = True
    tried = 0.0
    parts: Parts | None = None
    checkpoints: Checkpoints | None = None

    def held(self, seq: int = 0) -> NDArray[np.int32]:
        return np.empty(0, np.int32)

    def clear(self, s: int = 0) -> None:
        raise NotImplementedError

    def cut(self, s: int, n: int) -> None:
        raise NotImplementedError

    def save(self, s: int) -> Saved:
        raise NotImplementedError

    def restore(self, s: int, saved: Saved) -> bool:
        raise NotImplementedError

    def share(self, source: int, s: int, n: int) -> bool:
        raise NotImplementedError

    def keep_cells(self, on: bool) -> None:
        pass

    def give_back_cells(self) -> bool:
        return False


class TableModel(OneSequence):
    """A model whose next-token logits are a fixed pseudo-random function of the last `order` tokens.

    order None: of the whole history. near: another model whose logits these are, plus `spread` of noise, so
    that the one drafts well for the other. padding: columns past the vocabulary with enormous logits, which
    nobody may ever look at.

    Like a real context it keeps a record of the tokens it holds, decodes what is missing (always the last
    `rows` tokens), and takes back the rows of the call before: they turn into NaN.
    """

    def __init__(
        self,
        n_vocab: int,
        *,
        seed: int,
        order: int | None = 2,
        spread: float = 1.5,
        near: TableModel | None = None,
        padding: int = 0,
    ) -> None:
        self.n_vocab, self.seed, self.order, self.spread = n_vocab, seed, order, spread
        self.near, self.padding = near, padding
        self.texts: dict[int, list[int]] = {}
        self.decoded: list[int] = []  # for each call the number of tokens that it evaluated
        self.asked: list[int] = []  # for each call the number of rows
        self.evaluated = 0  # tokens, by all calls
        self._table: dict[tuple[int, ...], NDArray[np.float32]] = {}
        self._lent: list[Rows] = []

    def row(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Returns the logits of what follows `tokens`: (n_vocab + padding,) float32."""
        state = (
            tuple(int(t) for t in tokens) if self.order is None else tuple(map(int, tokens[-self.order :]))
        )
        if state not in self._table:
            noise = np.random.default_rng([self.seed, *map(abs, state)]).normal(0, self.spread, self.n_vocab)
            if self.near:
                noise += self.near.row(tokens)[: self.n_vocab]
            full = np.concatenate([noise, np.full(self.padding, 1e4)])
            self._table[state] = full.astype(np.float32)
        return self._table[state]

    def held(self, seq: int = 0) -> NDArray[np.int32]:
        return np.array(self.texts.get(seq, []), np.int32)

    def missing(self, want: Want) -> int:
        """Returns how many tokens `score` would evaluate for this."""
        return self._plan(want)[1]

    def score(self, wants: Sequence[Want]) -> list[Rows]:
        """Answers like a real context (see the class)."""
        for rows in self._lent:
            rows[:] = np.nan
        self._lent = [self._score(want) for want in wants]
        return self._lent

    def _score(self, want: Want) -> Rows:
        tokens, missing = self._plan(want)
        tokens, missing = [*tokens, *tokens[-1:] * want.filling], missing + want.filling
        assert 1 <= want.rows <= len(tokens), "rows are of tokens"
        assert all(0 <= t < self.n_vocab or is_cell(t) for t in tokens), "it knows every token it is shown"
        assert not cuts(want.tokens, len(tokens) - missing), "a medium is read whole"
        self.texts[want.seq] = tokens
        self.decoded.append(missing)
        self.evaluated += missing
        self.asked.append(want.rows)
        end = len(tokens) - want.filling
        ends = range(end - want.rows + 1, end + 1)
        return np.stack([self.row(tokens[:end]) for end in ends])

    def _plan(self, want: Want) -> tuple[list[int], int]:
        """Returns the tokens wanted, and how many of the last are not held yet or wanted again."""
        tokens = [*want.tokens.tolist(), *want.tail]
        held = self.texts.get(want.seq, [])
        keep = min(len(held), len(tokens) - want.rows)
        return tokens, len(tokens) - next((i for i in range(keep) if held[i] != tokens[i]), keep)


class Remembering(Sampler):
    """The real sampler, asked once for each row and history: speeds up thousands of short generations."""

    def __init__(self, sampling: Sampling, n_vocab: int) -> None:
        super().__init__(sampling, n_vocab)
        self._known: dict[tuple[bytes, bytes], Distribution] = {}

    def __call__(
        self, row: NDArray[np.float32], history: Sequence[int] | NDArray[np.int32] = ()
    ) -> Distribution:
        s = self.sampling
        seen = np.asarray(history[-s.penalty_last_n :], np.int32).tobytes() if s.penalises else b""
        key = row.tobytes(), seen
        if key not in self._known:
            self._known[key] = super().__call__(row, history)
        return self._known[key]


def letter(token: int) -> bytes:
    """Returns the text of a token: a, b, c, ..."""
    return bytes([ord("a") + token])


@dataclass
class Alone:
    """A pair of fakes with one slot, where a loaded pair is expected, and the one generation it runs."""

    contexts: Mapping[ModelName, Cache]
    made: Stream
    slots: int = 1
    n_rows: int = LONGEST_DRAFT + 1
    cells: int = 1 << 30

    def costs(self) -> Costs:
        return unmeasured()

    def scales(self, request: Request) -> tuple[float, ...]:
        return ()

    def adapt(self, scales: tuple[float, ...]) -> None: ...

    def stream(self, prompt: NDArray[np.int32], request: Request) -> Stream:
        return self.made


def rounds_of(
    loop: Loop,
    contexts: Mapping[ModelName, Cache],
    pace: Pace,
    prompt: Sequence[int] | NDArray[np.int32],
    *,
    text: TextRelease | None = None,
    grammar: bool = False,
    costs: Costs | None = None,
    scorers: Mapping[ModelName, Scorer] | None = None,
    cancelled: Callable[[], bool] = lambda: False,
    clock: Callable[[], float] = time.perf_counter,
) -> Iterator[Round]:
    """Runs a loop over fakes in the real engine; yields its rounds."""
    pair = Alone(contexts, Stream(loop, text or TextRelease(letter), pace))
    request = Request(grammar=Grammar("regex", ".*") if grammar else None)
    return alone(pair, prompt, request, cancelled=cancelled, costs=costs, scorers=scorers, clock=clock)


def speculate(
    target: TableModel,
    prompt: Sequence[int],
    *,
    sampler: Sampler,
    rule: Rule,
    drafter: Drafter | None = None,
    draft: TableModel | None = None,
    pace: Pace | int = 4,
    max_tokens: int = 20,
    n_ctx: int = 512,
    end: Iterable[int] = (),
    stop: Sequence[str] = (),
    piece: Callable[[int], bytes] = letter,
    cancelled: Callable[[], bool] = lambda: False,
    scoring: Scoring | None = None,
) -> list[Round]:
    """Runs the real loop in the real engine on fakes; returns its rounds."""
    text = TextRelease(piece, stop)
    loop = generate(
        np.array(prompt, np.int32),
        drafter=drafter or NoDrafter(),
        sampler=sampler,
        rule=rule,
        text=text,
        limits=Limits(max_tokens, n_ctx, frozenset(end)),
        scoring=scoring,
    )
    contexts: dict[ModelName, Cache] = {"target": target}
    if draft:
        contexts["draft"] = draft
    pace, masked = FixedLength(pace) if isinstance(pace, int) else pace, sampler.masks is not None
    return list(rounds_of(loop, contexts, pace, prompt, text=text, grammar=masked, cancelled=cancelled))


def tokens_of(rounds: Sequence[Round]) -> tuple[int, ...]:
    """Returns all tokens of a generation."""
    return tuple(token for round_ in rounds for token in round_.tokens)


def text_of(rounds: Sequence[Round]) -> str:
    """Returns all text of a generation."""
    return "".join(round_.text for round_ in rounds)


@dataclass
class Restless:
    """A pace whose grants change from round to round, as a controller's do; it never looks at a token.

    Every second round a free guess goes first. least: a guess with a smaller reach is not drawn, which is
    to stop by the shape of the distribution that it would be drawn from.
    """

    lengths: Sequence[int] = (3, 0, 1, 5, 2)
    rounds: int = 0
    least: float = 0.0

    @property
    def length(self) -> int:
        return self.lengths[self.rounds % len(self.lengths)]

    def looks(self) -> bool:
        return True

    def drafts(self) -> bool:
        return True

    @property
    def usual(self) -> int:
        return 2

    def window(self, lag: int) -> int:
        return lag

    def grants_step(self, ask: Ask, lag: int) -> bool:
        if ask.otherwise and self.rounds % 2:
            return False
        if not ask.rows and ask.reach and ask.reach[0] < self.least:
            return False
        return len(ask.tail) < self.length

    def enter(self, load: BatchPlan, slot: int) -> None:
        pass

    def drafted(self) -> None:
        pass

    def read(self, seconds: float) -> None:
        pass

    def offer(self, ask: Ask) -> tuple[int, Reach]:
        return min(len(ask.tail), self.length), ()

    def took(self, guesses: int, gain: float) -> None:
        pass

    def rewound(self, seconds: float) -> None:
        pass

    def observe(self, round_: Round, seconds: float) -> float:
        self.rounds += 1
        return 1.0


# --- enumeration ------------------------------------------------------------------------------------------


@dataclass
class World:
    """One course that chance can take: a generator whose draws follow `script`, then go first branch first.

    `weight` is the probability of the course, `path` the branches taken: (index, branches there were).
    """

    script: Sequence[int] = ()
    weight: float = 1.0
    path: list[tuple[int, int]] = field(default_factory=list)

    def random(self) -> Uniform:
        return Uniform(self)

    def choose(self, weights: Sequence[float] | NDArray[np.floating]) -> int:
        """Returns an index, each as probable as its share of `weights`."""
        shares = np.asarray(weights, np.float64)
        shares = shares / shares.sum()
        open_ = np.flatnonzero(shares)
        depth = len(self.path)
        index = self.script[depth] if depth < len(self.script) else 0
        self.path.append((index, open_.size))
        self.weight *= float(shares[open_[index]])
        return int(open_[index])

    def pick(self, distribution: Distribution) -> int:
        return int(distribution.ids[self.choose(distribution.probs)])


class Uniform:
    """A number drawn from [0, 1) that nobody has looked at: every comparison splits the world in two."""

    def __init__(self, world: World) -> None:
        self.world, self.low, self.high, self.scale = world, 0.0, 1.0, 1.0

    def __mul__(self, factor: float) -> Uniform:
        assert factor >= 0
        self.scale *= float(factor)
        return self

    def __lt__(self, bound: float) -> bool:
        """Settles whether scale * u < bound, and what is known of u from then on."""
        if self.scale == 0:
            return bound > 0
        cut = min(max(float(bound) / self.scale, self.low), self.high)
        below = self.world.choose([cut - self.low, self.high - cut]) == 0
        self.low, self.high = (self.low, cut) if below else (cut, self.high)
        return below

    def __ge__(self, bound: float) -> bool:
        return not self < bound

    __le__, __gt__ = __lt__, __ge__  # a single value has probability 0


def law(run: Callable[[World], Outcome]) -> dict[Outcome, float]:
    """Returns the exact distribution of what `run` returns, over everything that chance can do.

    `run` gets a World for a generator; `verify.draw`, which would look at a number that nobody may see, is
    replaced by a branching over the whole distribution.
    """
    found: dict[Outcome, float] = {}
    script: list[int] | None = []
    with patch.object(verify, "draw", lambda distribution, u: u.world.pick(distribution)):
        while script is not None:
            world = World(script)
            outcome = run(world)
            found[outcome] = found.get(outcome, 0.0) + world.weight
            script = _next_script(world.path)
    assert abs(sum(found.values()) - 1) < 1e-9
    return found


def _next_script(path: list[tuple[int, int]]) -> list[int] | None:
    while path and path[-1][0] + 1 == path[-1][1]:
        path.pop()
    if not path:
        return None
    script = [index for index, _ in path]
    script[-1] += 1
    return script


def emitted(judge: Judge, p: Tree, q: Tree, k: int) -> dict[tuple[int, ...], float]:
    """Returns the exact law of the tokens that one round emits: k guesses from q, judged against p."""

    def run(world: World) -> tuple[int, ...]:
        rule = Independent(world, judge)  # type: ignore[arg-type]
        tokens: list[int] = []
        for i in range(k):
            tokens.append(rule.draw(q(tuple(tokens)), i))
        probs = tuple(q(tuple(tokens[:i])) for i in range(k))
        verdict = rule.verify(Draft(tuple(tokens), probs, ("fake",) * k), lambda i: p(tuple(tokens[:i])), 0)
        return (*tokens[: verdict.accepted], verdict.token)

    return law(run)


def joint(p: Tree, n: int, start: tuple[int, ...] = ()) -> dict[tuple[int, ...], float]:
    """Returns the target's own law of sequences of n tokens that begin with `start`, given `start`."""
    if len(start) == n:
        return {start: 1.0}
    found: dict[tuple[int, ...], float] = {}
    distribution = p(start)
    for token, share in zip(distribution.ids.tolist(), distribution.probs.tolist(), strict=True):
        for sequence, probability in joint(p, n, (*start, token)).items():
            found[sequence] = share * probability
    return found


def completed(law_: Mapping[tuple[int, ...], float], p: Tree, n: int) -> dict[tuple[int, ...], float]:
    """Returns the law with every sequence shorter than n continued by the target itself."""
    found: Counter[tuple[int, ...]] = Counter()
    for start, weight in law_.items():
        for sequence, probability in joint(p, n, start).items():
            found[sequence] += weight * probability  # type: ignore[assignment]
    return dict(found)


def distance(a: Mapping[Outcome, float], b: Mapping[Outcome, float]) -> float:
    """Returns the largest difference in the probability of one outcome."""
    return max(abs(a.get(x, 0.0) - b.get(x, 0.0)) for x in {*a, *b})


def mean_length(law_: Mapping[tuple[int, ...], float]) -> float:
    """Returns the expected number of tokens."""
    return sum(len(sequence) * weight for sequence, weight in law_.items())


def distribution_of(weights: Sequence[float] | NDArray[np.floating]) -> Distribution:
    """Returns the sparse form of a vector of weights."""
    dense = np.asarray(weights, np.float64)
    ids = np.flatnonzero(dense)
    return Distribution(ids, dense[ids] / dense.sum())


SHAPES = ("dense", "peaked", "zeros", "points", "disjoint", "equal", "nearly equal")


def random_pair(rng: np.random.Generator, n_vocab: int, shape: str) -> tuple[Tree, Tree]:
    """Returns target and draft, each with a distribution of its own after every prefix."""
    known: dict[tuple[int, ...], tuple[Distribution, Distribution]] = {}

    def pair(prefix: tuple[int, ...]) -> tuple[Distribution, Distribution]:
        if prefix not in known:
            known[prefix] = _random_distributions(rng, n_vocab, shape)
        return known[prefix]

    return (lambda prefix: pair(prefix)[0]), (lambda prefix: pair(prefix)[1])


def _random_distributions(
    rng: np.random.Generator, n_vocab: int, shape: str
) -> tuple[Distribution, Distribution]:
    concentration = 0.15 if shape == "peaked" else 1.0
    p, q = rng.dirichlet(np.full(n_vocab, concentration), 2) + 1e-12
    if shape == "zeros":
        p, q = (np.where(_some(rng, n_vocab), w, 0.0) for w in (p, q))
    elif shape == "points":
        for w in (p, q):
            if rng.random() < 0.6:
                w[:] = np.eye(n_vocab)[rng.integers(n_vocab)]
    elif shape == "disjoint":
        mask = _some(rng, n_vocab)
        mask[rng.permutation(n_vocab)[:2]] = True, False
        p, q = np.where(mask, p, 0.0), np.where(mask, 0.0, q)
    elif shape == "equal":
        q = p
    elif shape == "nearly equal":
        q = p * (1 + 1e-9 * rng.normal(size=n_vocab))
    return distribution_of(p), distribution_of(q)


def _some(rng: np.random.Generator, n: int) -> NDArray[np.bool_]:
    """Returns a mask with at least one True."""
    mask = rng.random(n) < 0.6
    mask[rng.integers(n)] = True
    return mask


# --- statistics -------------------------------------------------------------------------------------------

FALSE_ALARM = 1e-6  # rate at which one statistical test fails although all is well; seeds are fixed besides


def chi_square(counts: Mapping[Outcome, int], expected: Mapping[Outcome, float]) -> tuple[float, int]:
    """Returns (statistic, degrees of freedom) of counts against probabilities.

    Cells with fewer than 5 expected are put together. An outcome that cannot happen makes it infinite.
    """
    n = sum(counts.values())
    if any(expected.get(outcome, 0.0) == 0.0 for outcome, count in counts.items() if count):
        return math.inf, 1
    cells = sorted((n * weight, counts.get(outcome, 0)) for outcome, weight in expected.items() if weight > 0)
    merged: list[tuple[float, int]] = []
    mean, count = 0.0, 0
    for cell_mean, cell_count in cells:
        mean, count = mean + cell_mean, count + cell_count
        if mean >= 5:
            merged.append((mean, count))
            mean, count = 0.0, 0
    if mean and merged:
        merged[-1] = merged[-1][0] + mean, merged[-1][1] + count
    return sum((c - m) ** 2 / m for m, c in merged), max(len(merged) - 1, 1)


def chi_square_bound(freedom: int, rate: float = FALSE_ALARM) -> float:
    """Returns what a chi-square of `freedom` degrees exceeds at `rate` (Wilson and Hilferty, 1931)."""
    z = NormalDist().inv_cdf(1 - rate)
    return freedom * (1 - 2 / (9 * freedom) + z * math.sqrt(2 / (9 * freedom))) ** 3


def fits(counts: Mapping[Outcome, int], expected: Mapping[Outcome, float]) -> bool:
    """True where the counts are compatible with the probabilities; of sound ones FALSE_ALARM are not."""
    statistic, freedom = chi_square(counts, expected)
    return statistic < chi_square_bound(freedom)


# --- the sampler, said again in the plainest words ---------------------------------------------------------


@dataclass(frozen=True)
class Reference:
    """What should come out, and how near the nearest cut was to falling elsewhere."""

    probs: dict[int, float]
    slack: float


def reference(
    row: Sequence[float] | NDArray[np.float32],
    history: Sequence[int],
    s: Sampling,
    only: Collection[int] | None = None,
) -> Reference:
    """Returns what llama.cpp's chain of samplers does to a row, stage by stage, in float64.

    only: the tokens that a grammar allows.
    """
    logits = {token: float(np.float32(value)) for token, value in enumerate(row)}
    for token, bias in s.logit_bias.items():
        logits[token] = float(np.float32(logits[token] + bias))
    for token, count in Counter(history[-s.penalty_last_n :] if s.penalty_last_n else ()).items():
        if s.penalises and token in logits:
            old = logits[token]
            new = old * s.repeat_penalty if old <= 0 else old / s.repeat_penalty
            logits[token] = float(np.float32(new - count * s.frequency_penalty - s.presence_penalty))
    if only is not None:
        logits = {t: logit for t, logit in logits.items() if t in only}
    alive = sorted((t for t in logits if logits[t] > -math.inf), key=lambda t: (-logits[t], t))
    slack = math.inf

    def cut(kept: int, *, by: Callable[[int], float], of: Sequence[int]) -> list[int]:
        nonlocal slack
        if kept < len(of) and by(of[kept - 1]) != by(of[kept]):
            slack = min(slack, abs(by(of[kept - 1]) - by(of[kept])))
        return list(of[:kept])

    def head(of: Sequence[int], share: float, *, strict: bool) -> int:
        nonlocal slack
        probs = _softmax([logits[t] for t in of])
        cumulative = 0.0
        for i, probability in enumerate(probs):
            cumulative += probability
            slack = min(slack, abs(cumulative - share))
            if cumulative > share or (cumulative == share and not strict):
                return i + 1
        return len(of)

    if s.top_n_sigma > 0:
        values = np.array([logits[t] for t in alive])
        floor = values.max() - s.top_n_sigma * values.std()
        if values.std() > 0:
            slack = min(slack, float(np.abs(values - floor).min()))
        alive = [t for t in alive if logits[t] >= floor]
    if s.top_k > 0:
        alive = cut(min(s.top_k, len(alive)), by=logits.__getitem__, of=alive)
    if s.typical_p < 1:
        probs = dict(zip(alive, _softmax([logits[t] for t in alive]), strict=True))
        alive = [t for t in alive if probs[t] > 0]
        surprise = {t: -math.log(probs[t]) for t in alive}
        entropy = sum(probs[t] * surprise[t] for t in alive)
        order = sorted(alive, key=lambda t: abs(surprise[t] - entropy))  # stable: likelier, then lower, first
        cumulative, kept = 0.0, len(order)
        for i, t in enumerate(order):
            cumulative += probs[t]
            slack = min(slack, abs(cumulative - s.typical_p))
            if cumulative > s.typical_p:
                kept = i + 1
                break
        alive = cut(kept, by=lambda t: abs(surprise[t] - entropy), of=order)
        alive.sort(key=lambda t: (-logits[t], t))
    if s.top_p < 1:
        alive = alive[: head(alive, s.top_p, strict=False)]
    if s.min_p > 0:
        floor = logits[alive[0]] + math.log(s.min_p)
        if s.min_p < 1:  # at 1 the floor is the largest itself, in every arithmetic
            slack = min(slack, *(abs(logits[t] - floor) for t in alive))
        alive = [t for t in alive if logits[t] >= floor]
    if s.temperature == 0:
        return Reference({alive[0]: 1.0}, slack)
    probs = dict(zip(alive, _softmax([logits[t] for t in alive], s.temperature), strict=True))
    return Reference({t: p for t, p in probs.items() if p > 0}, slack)


def _softmax(logits: Sequence[float], temperature: float = 1.0) -> list[float]:
    top = max(logits)
    weights = [math.exp((value - top) / temperature) for value in logits]
    total = math.fsum(weights)
    return [w / total for w in weights]
