"""Several streams at once: each writes what it writes alone, whoever drafts, comes, goes or waits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count, groupby, islice
from typing import Literal

import numpy as np
import pytest
from fakes import Remembering, TableModel, fits, joint, letter, speculate, tokens_of
from many_streams import CARDS, Box, play
from numpy.typing import NDArray

from edgespec.core.drafters import Drafter, Drafting, Guesser, NoDrafter
from edgespec.core.drafters.competition import Competition
from edgespec.core.drafters.draft_model import DraftModel
from edgespec.core.drafters.lookup import SuffixLookup
from edgespec.core.drafters.recycling import TokenRecycling
from edgespec.core.loop import Limits, Rows, Want, generate
from edgespec.core.pace.controller import Controller
from edgespec.core.pace.cost_table import CostTable
from edgespec.core.pace.costs import Costs
from edgespec.core.pace.pace import FixedLength
from edgespec.core.pace.record import Record
from edgespec.core.request import Request
from edgespec.core.stream import Stream
from edgespec.core.text import TextRelease
from edgespec.core.values import (
    Draft,
    Emitted,
    EngineEvent,
    Failed,
    Judged,
    ModelName,
    PromptProgress,
    Round,
    Started,
)
from edgespec.core.verify import Coupled, Independent, Rule
from edgespec.engine.engine import Engine
from edgespec.engine.lanes import BLOCK, MOST_TURNS
from edgespec.engine.pair import MOST_ROWS
from edgespec.engine.prompt_reader import PAUSE_S, PAUSES
from edgespec.engine.slots import Cache
from edgespec.errors import FatalDecodeError, NoRoomError, PromptTooLongError, QueueFullError, SettingError
from edgespec.llama.saved import Saved
from edgespec.sampling.sampler import Distribution, Sampling
from edgespec.server.choice_results import ChoiceResults

GREEDY = Sampling(temperature=0)
SAMPLED = Sampling(temperature=1.0, top_p=1.0, min_p=0.0)
FLAT = {1: 1.0, 8: 1.05, 16: 1.1, 63: 1.5}  # verification costs next to nothing: drafts pay
STEEP = {1: 1.0, 8: 8.0, 63: 63.0}  # no row is free: they never do
CORES = {1: 0.029, 2: 0.049, 4: 0.06, 8: 0.093, 63: 0.23, 512: 1.7}  # 0.6B F16 on two cores, in seconds
FAST = {1: 0.001, 512: 0.01}
DRAFTERS = ("none", "model", "lookup", "recycling", "auto")
N_CTX = 256


class Watched(TableModel):
    """A table that notes for each call whose tokens it evaluated: {sequence: (tokens, rows)}."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self.calls: list[dict[int, tuple[int, int]]] = []
        self.cells = 1 << 30
        self.refused = 0
        self.restored: list[int] = []  # tokens, of each restoration
        self.shared: list[int] = []

    def clear(self, s: int = 0) -> None:
        self.texts.pop(s, None)

    def cut(self, s: int, n: int) -> None:
        self.texts[s] = self.texts.get(s, [])[:n]

    def keep_cells(self, on: bool) -> None:
        self.keeps_cells = on

    def save(self, s: int) -> Saved:
        return Saved(self.held(s).tobytes(), np.zeros(100 * len(self.texts[s]), np.uint8), least=0)

    def restore(self, s: int, saved: Saved) -> bool:
        self.clear(s)
        if sum(map(len, self.texts.values())) + len(saved.tokens) // 4 > self.cells:
            return False
        self.texts[s] = np.frombuffer(saved.tokens, np.int32).tolist()
        self.restored.append(len(self.texts[s]))
        return True

    def share(self, source: int, s: int, n: int) -> bool:
        self.texts[s] = self.texts[source][:n]
        self.shared.append(n)
        return True

    def score(self, wants: Sequence[Want]) -> list[Rows]:
        assert len({want.seq for want in wants}) == len(wants), "a sequence is asked for once in a call"
        held = {seq: len(tokens) for seq, tokens in self.texts.items()}
        held |= {want.seq: want.tokens.size + len(want.tail) for want in wants}
        if sum(held.values()) > self.cells:
            self.refused += 1
            raise NoRoomError("no cells")
        self.calls.append({want.seq: (self.missing(want), want.rows) for want in wants})
        return super().score(wants)


@dataclass
class FakePair:
    """Tables where a pair is expected."""

    slots: int = 4
    n_vocab: int = 8
    drafter: str | Drafter = "auto"
    n_rows: int = MOST_ROWS
    points: Mapping[int, float] = field(default_factory=lambda: FLAT)
    spread: float = 0.5  # how far the draft is off
    order: int | None = 2
    n_ctx: int = N_CTX
    cells: int = 4 * N_CTX

    def __post_init__(self) -> None:
        self.target = Watched(self.n_vocab, seed=1, order=self.order)
        self.draft = Watched(self.n_vocab, seed=2, order=self.order, spread=self.spread, near=self.target)
        self.target.cells = self.draft.cells = self.cells
        self.contexts: dict[ModelName, Cache] = {"target": self.target, "draft": self.draft}
        self.records: dict[int, Record] = {}
        self.recycling = TokenRecycling(self.n_vocab)
        self.samplers: dict[str, Remembering] = {}

    def costs(self) -> Costs:
        return Costs(CostTable(dict(self.points), slope=0.0), CostTable({1: 0.05}, slope=0.0))

    def record(self, streams: int) -> Record:
        return self.records.setdefault(streams, Record())

    def scales(self, request: Request) -> tuple[float, ...]:
        return ()

    def adapt(self, scales: tuple[float, ...]) -> None: ...

    def stream(self, prompt: NDArray[np.int32], request: Request) -> Stream:
        text = TextRelease(letter, request.stop)
        loop = generate(
            prompt,
            drafter=self.drafter_for(request),
            sampler=self.sampler(request),
            rule=self.rule(request),
            text=text,
            limits=Limits(request.max_tokens, self.n_ctx),
        )
        fixed = request.fixed_length
        controller = Controller(self.record, max_tokens=request.max_tokens)
        pace = controller if fixed is None else FixedLength(fixed)
        return Stream(loop, text, pace)

    def rule(self, request: Request) -> Rule:
        if request.seed is not None:
            return Coupled(request.seed)
        return Independent(np.random.default_rng(request.rng_seed))

    def sampler(self, request: Request) -> Remembering:
        known = repr(request.sampling)
        return self.samplers.setdefault(known, Remembering(request.sampling, self.n_vocab))

    def drafter_for(self, request: Request) -> Drafter:
        if not isinstance(self.drafter, str):
            return self.drafter
        model = DraftModel(self.sampler(request), n_ctx=self.n_ctx, n_vocab=self.n_vocab)
        free: dict[str, list[Guesser]] = {
            "lookup": [SuffixLookup()],
            "recycling": [self.recycling],
            "auto": [SuffixLookup(), self.recycling],
        }
        if self.drafter == "none":
            return NoDrafter()
        return Competition(free.get(self.drafter, []), model if self.drafter in ("model", "auto") else None)

    def alone(self, prompt: NDArray[np.int32], request: Request) -> tuple[int, ...]:
        """Returns the tokens of plain decoding."""
        return tokens_of(
            speculate(
                TableModel(self.n_vocab, seed=1, order=self.order), prompt.tolist(),
                sampler=self.sampler(request), rule=self.rule(request), max_tokens=request.max_tokens,
                n_ctx=self.n_ctx, stop=request.stop,
            )
        )  # fmt: skip


@dataclass
class Told:
    """What was told of each request."""

    started: dict[str, Started] = field(default_factory=dict)
    rounds: dict[str, list[Round]] = field(default_factory=dict)
    failed: dict[str, Failed] = field(default_factory=dict)
    known: dict[str, list[int]] = field(default_factory=dict)  # tokens of its prompt, chunk by chunk
    steps: int = 0

    def take(self, happened: Sequence[EngineEvent]) -> None:
        for one in happened:
            ended = self.failed.keys() | {k for k, rounds in self.rounds.items() if rounds[-1].finish}
            assert one.id not in ended, "nothing is told of a request that has ended"
            if isinstance(one, Started):
                self.started[one.id] = one
            elif isinstance(one, Emitted):
                self.rounds.setdefault(one.id, []).append(one.round)
            elif isinstance(one, PromptProgress):
                assert one.id in self.started
                self.known.setdefault(one.id, []).append(one.known_tokens)
            else:
                self.failed[one.id] = one

    def tokens(self, id: str) -> tuple[int, ...]:
        return tokens_of(self.rounds[id])

    def finish(self, id: str) -> str | None:
        return self.rounds[id][-1].finish


def run(engine: Engine, told: Told | None = None, each: Callable[[int], None] = lambda step: None) -> Told:
    """Steps until nothing is left to do."""
    told = told or Told()
    while not engine.idle:
        each(told.steps)
        told.take(engine.step())
        told.steps += 1
        assert told.steps < 10_000
    return told


def prompts(n: int, n_vocab: int = 8, longest: int = 30) -> list[NDArray[np.int32]]:
    rng = np.random.default_rng(5)
    return [rng.integers(0, n_vocab, rng.integers(1, longest)).astype(np.int32) for _ in range(n)]


def make(pair: FakePair, *, queue: int = 64, chunk: int = 512) -> Engine:
    return Engine(pair, slots=pair.slots, queue=queue, chunk=chunk)


# ---- the same text -----------------------------------------------------------------------------------------


@pytest.mark.sample(16)
@pytest.mark.parametrize("mode", ["greedy", "coupled"])
@pytest.mark.parametrize("length", [None, 0, 3, 48])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_every_text_is_that_of_its_request_alone(
    drafter: str, length: int | None, mode: Literal["greedy", "coupled"]
) -> None:
    pair = FakePair(drafter=drafter)
    engine, rng = make(pair), np.random.default_rng(3)
    asked = {}
    for i, prompt in enumerate(prompts(12)):
        seed = i if mode == "coupled" else None
        sampling = SAMPLED if mode == "coupled" else GREEDY
        asked[str(i)] = prompt, Request(sampling, int(rng.integers(1, 40)), seed=seed, draft_length=length)

    def join(step: int) -> None:
        for id in list(asked)[3 * step : 3 * step + 3]:
            engine.submit(id, *asked[id])

    join(0)
    generated = run(engine, each=lambda step: join(step + 1))
    for id, (prompt, request) in asked.items():
        assert generated.tokens(id) == pair.alone(prompt, request), id
        assert generated.finish(id) == "length"
        assert generated.started[id].prompt_tokens == prompt.size
    if drafter != "none" and length not in (0, None):
        assert sum(r.accepted for rounds in generated.rounds.values() for r in rounds) > 0
    for call in pair.target.calls:
        together = sum(n for n, _ in call.values())
        assert len(call) == 1 or together <= MOST_ROWS


@pytest.mark.sample(1)
@pytest.mark.parametrize("drafter", ["model", "auto"])
def test_rows_refused_by_joint_worth_do_not_bias_what_is_drawn(drafter: str) -> None:
    """Four streams without a seed, few rows for all of them: every text follows the target's own law."""
    pair = FakePair(n_vocab=3, drafter=drafter, n_rows=7, points={1: 1.0, 4: 1.05, 7: 1.6}, spread=0.7)
    engine = make(pair, queue=2000)
    found: dict[int, Counter[tuple[int, ...]]] = {0: Counter(), 1: Counter()}
    starts = [np.array(start, np.int32) for start in ([0, 1, 2], [2, 2])]
    for i in range(1600):
        length = (None, 2, 5)[i % 3]
        request = Request(SAMPLED, 4, rng_seed=i, draft_length=length)
        engine.submit(f"{i % 2}/{i}", starts[i % 2], request)
    told = run(engine)
    drafted = 0
    for id, rounds in told.rounds.items():
        found[int(id[0])][tokens_of(rounds)] += 1
        drafted += sum(r.drafted for r in rounds)
    assert drafted > 1000
    sampler = pair.sampler(Request(SAMPLED))
    for i, start in enumerate(starts):
        p = partial(_law, pair.target, sampler, start.tolist())
        assert fits(found[i], joint(p, 4))


class Blurting:
    """A drafter that draws without asking whether it may."""

    def __init__(self, q: Distribution) -> None:
        self.q = q

    def draft(self, tokens: NDArray[np.int32], limit: int, rule: Rule) -> Drafting:
        n = min(limit, 2)
        guesses = tuple(rule.draw(self.q, tokens.size + i) for i in range(n))
        return Draft(guesses, (self.q,) * n, ("blurting",) * n)
        yield

    def learn(self, judged: Judged) -> None:
        pass


def test_guesses_that_were_drawn_without_asking_are_verified_whole() -> None:
    """They were cut to what had been granted, which was nothing: and a drawn guess may not be withdrawn."""
    pair = FakePair(n_vocab=3, drafter=Blurting(Distribution(np.arange(3), np.full(3, 1 / 3))))
    engine = make(pair)
    for id in "abc":
        engine.submit(id, np.array([0, 1], np.int32), Request(SAMPLED, 20, rng_seed=ord(id)))
    told = run(engine)
    for rounds in told.rounds.values():
        assert [r.drafted for r in rounds[1:-2]] == [2] * len(rounds[1:-2])


def _law(target: TableModel, sampler: Remembering, start: list[int], tokens: tuple[int, ...]) -> Distribution:
    return sampler(target.row([*start, *tokens]))


# ---- coming and going --------------------------------------------------------------------------------------


@pytest.mark.sample(3)
@pytest.mark.parametrize("seed", range(6))
def test_requests_join_and_leave_at_any_step(seed: int) -> None:
    """Whoever is cancelled leaves within a step, with the text so far; nobody else notices."""
    pair = FakePair()
    engine, rng, told = make(pair), np.random.default_rng(seed), Told()
    waiting = dict(enumerate(prompts(20)))
    asked: dict[str, tuple[NDArray[np.int32], Request]] = {}
    cancelled: set[str] = set()

    def disturb(step: int) -> None:
        while waiting and rng.random() < 0.4:
            i, prompt = waiting.popitem()
            asked[str(i)] = prompt, Request(SAMPLED, int(rng.integers(1, 40)), seed=i)
            engine.submit(str(i), *asked[str(i)])
        alive = [id for id in asked if id not in told.rounds or told.finish(id) is None]
        if alive and rng.random() < 0.2:
            id = str(rng.choice(alive))
            cancelled.add(id)
            engine.cancel(id)
            assert all(slot.running is None or slot.running.id != id for slot in engine._slots)
            told.take(engine.step())
            assert told.finish(id) == "cancelled"

    while waiting or not engine.idle:
        disturb(told.steps)
        told.take(engine.step())
        told.steps += 1
    assert not told.failed and len(asked) == 20
    for id, (prompt, request) in asked.items():
        alone = pair.alone(prompt, request)
        assert told.tokens(id) == alone[: len(told.tokens(id))]
        assert told.finish(id) == ("cancelled" if id in cancelled else "length")
        assert id in cancelled or told.tokens(id) == alone


def test_a_request_that_waits_can_be_cancelled_and_an_unknown_one_is_passed_over() -> None:
    engine = make(FakePair(slots=1))
    for id in "ab":
        engine.submit(id, np.zeros(3, np.int32), Request(GREEDY, 5))
    engine.cancel("b")
    engine.cancel("nobody")
    told = run(engine)
    assert (told.finish("a"), told.finish("b")) == ("length", "cancelled")
    assert told.tokens("b") == () and "b" not in told.started


def test_an_answer_reports_how_long_its_prompt_waited_for_a_slot() -> None:
    """From the engine to `timings`, as every figure that the engine knows at a request's start."""
    now, found = 0.0, {}
    engine = Engine(FakePair(slots=1), slots=1, clock=lambda: now)
    for id in ("first", "second"):
        engine.submit(id, prompts(1)[0], Request(sampling=GREEDY, max_tokens=4))
    while not engine.idle:
        for started in (one for one in engine.step() if isinstance(one, Started)):
            (choice := ChoiceResults()).began(started, now)
            found[started.id] = choice.timings(plain_s=0.1)["queued_ms"]
        now += 1.0
    assert found["first"] == 0 < found["second"] < now * 1000


def test_lanes_run_in_turn_a_few_rounds_each_and_every_round_says_how_long_it_took() -> None:
    """As in a race: no evaluation is shared, time is shared evenly, and texts are those of each alone."""
    pair, ticks = FakePair(slots=3, drafter="model"), count()
    engine, told, turns = Engine(pair, slots=3, clock=lambda: 0.01 * next(ticks)), Told(), list[str]()
    plain, guessing = (Request(sampling=GREEDY, max_tokens=60, lane=lane) for lane in ("plain", "guessing"))
    asked = {"plain": replace(plain, drafter="none"), "guessing": guessing}
    for id, request in asked.items():
        engine.submit(id, prompts(1)[0], request)
    while not engine.idle:
        if told.steps == 20:
            next(islice(ticks, 5000, 5000), None)  # a pause, which hits one of them
            engine.submit("beside", prompts(2)[1], replace(plain, lane=""))
        happened = engine.step()
        emitted = [one for one in happened if isinstance(one, Emitted)]
        turns += [one.id for one in emitted if one.id in asked]
        assert all((one.seconds > 0) == (one.id in asked) for one in emitted)
        told.take(happened)
        told.steps += 1
    both = turns[: len(turns) - turns[::-1].index("guessing") - 1]
    blocks = [len(list(block)) for _, block in groupby(both)]
    assert len(blocks) > 5 and max(blocks) <= MOST_TURNS * BLOCK
    assert not any({0, 1} <= call.keys() for call in pair.target.calls), "no evaluation is shared"
    assert any(len(call) == 2 for call in pair.target.calls), "but with one who is in no lane"
    for id, request in asked.items():
        assert told.tokens(id) == pair.alone(prompts(1)[0], request)


def test_held_back_text_comes_out_of_a_cancellation() -> None:
    engine, told = make(FakePair()), Told()
    pair = FakePair()
    prompt = np.array([1, 2], np.int32)
    first = letter(pair.alone(prompt, Request(GREEDY, 1))[0]).decode()
    engine.submit("a", prompt, Request(GREEDY, 30, stop=(first + "?",)))
    told.take(engine.step())
    assert told.rounds["a"][0].text == "" and told.rounds["a"][0].tokens
    engine.cancel("a")
    told.take(engine.step())
    assert told.rounds["a"][-1].text == first


def test_what_cannot_be_answered_is_refused_at_once() -> None:
    engine = make(FakePair(slots=1), queue=2)
    prompt = np.zeros(3, np.int32)
    with pytest.raises(PromptTooLongError):
        engine.submit("long", np.zeros(N_CTX, np.int32), Request())
    with pytest.raises(SettingError, match="no tokens"):
        engine.submit("empty", np.zeros(0, np.int32), Request())
    with pytest.raises(SettingError, match="does not exist"):
        engine.submit("unknown token", np.array([99], np.int32), Request())
    assert engine.idle and engine.step() == []
    for id in "abc":  # one for the slot, two wait
        engine.submit(id, prompt, Request(GREEDY, 3))
    with pytest.raises(QueueFullError, match="3 requests are already waiting"):
        engine.submit("d", prompt, Request(GREEDY, 3))
    engine.step()
    with pytest.raises(SettingError, match="'b'"):
        engine.submit("b", prompt, Request())
    told = run(engine)
    assert set(told.rounds) | {"a"} == {"a", "b", "c"}
    with pytest.raises(SettingError, match="9 slots"):
        Engine(FakePair(slots=4), slots=9)


def test_who_came_first_is_answered_first() -> None:
    engine, order = make(FakePair(slots=2)), []
    for i in range(8):
        engine.submit(str(i), np.full(i + 1, 3, np.int32), Request(GREEDY, 4))
    while not engine.idle:
        order += [one.id for one in engine.step() if isinstance(one, Started)]
    assert order == [str(i) for i in range(8)]


def test_one_streams_failure_is_its_own() -> None:
    """A request whose bias bans everything fails when its first row is sampled; the others go on."""
    engine, pair = make(FakePair()), FakePair()
    ban = Sampling(temperature=0, logit_bias=dict.fromkeys(range(8), -np.inf))
    asked = {id: np.array([i, 1], np.int32) for i, id in enumerate("abc")}
    for id, prompt in asked.items():
        engine.submit(id, prompt, Request(ban if id == "b" else GREEDY, 10))
    told = run(engine)
    assert set(told.failed) == {"b"} and isinstance(told.failed["b"].error, SettingError)
    for id in "ac":
        assert told.tokens(id) == pair.alone(asked[id], Request(GREEDY, 10))


def test_a_failure_of_llama_cpp_ends_those_who_were_evaluated() -> None:
    pair = FakePair()
    engine, told = make(pair), Told()
    for id in "ab":
        engine.submit(id, np.zeros(3, np.int32), Request(GREEDY, 20))
    told.take(engine.step())
    whole = pair.target.score

    def broken(wants: Sequence[Want]) -> list[Rows]:
        raise FatalDecodeError("the backend failed")

    pair.target.score = broken  # type: ignore[method-assign]
    told.take(engine.step())
    pair.target.score = whole  # type: ignore[method-assign]
    assert set(told.failed) == {"a", "b"} and engine.idle
    engine.submit("c", np.zeros(3, np.int32), Request(GREEDY, 20))
    assert run(engine, told).tokens("c") == pair.alone(np.zeros(3, np.int32), Request(GREEDY, 20))


def test_a_step_out_of_which_a_stream_falls_says_nothing_of_free_guesses() -> None:
    """Its tokens were missing among those expected, so that all later streams trusted free guesses less."""
    pair = FakePair(slots=2, drafter="lookup", order=1)
    engine, told = make(pair), Told()
    for i in range(2):
        engine.submit(str(i), np.full(3, i, np.int32), Request(GREEDY, 200))
    trust = engine._trust[2]
    while trust.expected == 0:
        told.take(engine.step())
    before = replace(trust)

    def broken(wants: Sequence[Want]) -> list[Rows]:
        raise FatalDecodeError("the backend failed")

    pair.target.score = broken  # type: ignore[method-assign]
    told.take(engine.step())
    assert len(told.failed) == 2 and trust == before


# ---- what is evaluated -------------------------------------------------------------------------------------


def test_a_step_has_one_verification_and_one_draft_evaluation_for_each_guess() -> None:
    pair = FakePair(drafter="model")
    engine = make(pair)
    for i, prompt in enumerate(prompts(4, longest=6)):
        engine.submit(str(i), prompt, Request(GREEDY, 40, draft_length=3))
    engine.step()
    while not engine.idle:
        pair.target.calls.clear()
        pair.draft.calls.clear()
        running = len(engine._running())
        engine.step()
        assert len(pair.target.calls) <= 1 and len(pair.draft.calls) <= 3
        assert all(len(call) <= running for call in pair.target.calls)


def test_long_prompts_are_read_in_chunks_and_nobody_waits_for_more_than_one() -> None:
    pair = FakePair(drafter="none", n_rows=10, points=FAST)
    engine, told = make(pair, chunk=32), Told()
    engine.submit("a", np.zeros(3, np.int32), Request(GREEDY, 60, drafter="none"))
    told.take(engine.step())
    long = [np.arange(200, dtype=np.int32) % 8, np.arange(150, dtype=np.int32) % 7]
    for i, prompt in enumerate(long):
        engine.submit(f"long {i}", prompt, Request(GREEDY, 5))
    engine.submit("short", np.ones(20, np.int32), Request(GREEDY, 5))
    starts: dict[str, int] = {}
    read = 0
    for step in range(1, 40):
        before = len(told.rounds["a"])
        pair.target.calls.clear()
        told.take(engine.step())
        assert len(pair.target.calls) <= 1
        goes_on = len(told.rounds["a"]) > before
        read = 0 if goes_on else read + sum(n for call in pair.target.calls for n, _ in call.values())
        assert read <= 32, "a running stream waits for no more than a chunk"
        starts |= {id: step for id in told.rounds if id not in starts}
    assert starts["short"] <= 5, "a short prompt does not wait for long ones to end"
    assert starts["long 0"] <= 34 and starts["long 1"] <= 34
    run(engine, told)
    for i, prompt in enumerate(long):
        assert told.tokens(f"long {i}") == pair.alone(prompt, Request(GREEDY, 5))


def test_a_first_token_is_reported_before_anything_else_is_evaluated() -> None:
    """It was told with the whole step once: after the prompts of others, the draft's reading, and a round."""
    pair = FakePair(drafter="model", points=FAST)
    engine, told = make(pair, chunk=512), Told()
    engine.submit("running", np.zeros(3, np.int32), Request(GREEDY, 60, draft_length=3))
    told.take(engine.step())
    for i, id in enumerate("abc"):
        engine.submit(id, np.arange(i, 100 + i, dtype=np.int32) % 7, Request(GREEDY, 20, draft_length=3))
    for id in "abc":
        pair.target.calls.clear()
        pair.draft.calls.clear()
        told.take(engine.step())
        assert id in told.rounds and len(pair.target.calls) == 1 and not pair.draft.calls
    told.take(engine.step())
    assert pair.draft.calls
    run(engine, told)


@pytest.mark.parametrize("slower", [1, 4], ids=["in whole tiles", "with the rounds"])
def test_running_streams_stand_still_for_a_short_time_only(slower: int) -> None:
    """Eight prompts of 100 tokens kept a stream waiting for up to five of them, 4.6 s on two cores."""
    pair = FakePair(slots=8, drafter="none", points={n: s * slower for n, s in CORES.items()})
    clock = Virtual(pair)
    engine, generated = Engine(pair, slots=8, clock=clock), Told()
    asked = {str(i): (np.arange(i, 100 + 20 * i, dtype=np.int32) % 8, Request(GREEDY, 20)) for i in range(8)}
    for id, (prompt, request) in asked.items():
        engine.submit(id, prompt, request)
    last: dict[str, float] = {}
    gaps, joined = [], 0
    while not engine.idle:
        before = {id: len(rounds) for id, rounds in generated.rounds.items()}
        happened = engine.step()
        joined += {type(one) for one in happened} >= {PromptProgress, Emitted}
        generated.take(happened)
        for id, rounds in generated.rounds.items():
            if len(rounds) > before.get(id, 0):
                gaps += [clock() - last[id]] if id in last else []
                last[id] = clock()
    round_s, reading_s = pair.costs().target.seconds(8), sum(p.size for p, _ in asked.values()) * slower
    reading_s *= CORES[512] / 512
    assert max(gaps) <= max(PAUSE_S, slower * CORES[1], reading_s / PAUSES) + round_s + 0.05
    assert max(gaps) > round_s, "prompts were read meanwhile"
    assert joined > 8 if slower > 1 else not joined
    for id, (prompt, request) in asked.items():
        assert generated.tokens(id) == pair.alone(prompt, request)


def test_a_prompt_is_read_in_the_chunks_it_would_be_read_in_alone() -> None:
    pair = FakePair(drafter="none", n_rows=10)
    engine = make(pair, chunk=32)
    engine.submit("a", np.arange(100, dtype=np.int32) % 8, Request(GREEDY, 2))
    told = run(engine)
    assert [call[0] for call in pair.target.calls] == [(32, 1), (32, 1), (4, 1), (32, 1), (1, 1)]
    assert told.known["a"] == [32, 64, 68]  # the rest comes with the first round


def test_a_draft_reads_long_prompts_in_chunks_too() -> None:
    pair = FakePair(drafter="model", slots=2)
    engine, generated = make(pair, chunk=32), Told()
    prompt = np.arange(200, dtype=np.int32) % 8
    engine.submit("a", prompt, Request(GREEDY, 60, draft_length=3))
    while not engine.idle:
        pair.draft.calls.clear()
        generated.take(engine.step())
        assert sum(n for call in pair.draft.calls for n, _ in call.values()) <= 32 + 3
    assert generated.tokens("a") == pair.alone(prompt, Request(GREEDY, 60))
    assert sum(r.accepted for r in generated.rounds["a"]) > 0


@pytest.mark.parametrize("length", [None, 3])
def test_a_draft_without_cells_for_a_chunk_of_a_long_text_only_does_not_guess(length: int | None) -> None:
    """Who was refused while it was shown a chunk was refused once more: the step ended in AssertionError."""
    pair = FakePair(drafter="model", slots=3, spread=0.0)
    pair.draft.cells = 120
    engine = make(pair, chunk=32)
    asked = {
        str(i): (np.arange(i, 90 + i, dtype=np.int32) % 8, Request(GREEDY, 60, draft_length=length))
        for i in range(3)
    }
    generated = Told()
    for id, (prompt, request) in asked.items():
        engine.submit(id, prompt, request)
        while len(generated.rounds.get(id, ())) < 4:  # the first drafts before there are others
            generated.take(engine.step())
    run(engine, generated)
    assert pair.draft.refused > 0 and not generated.failed
    for id, (prompt, request) in asked.items():
        assert generated.tokens(id) == pair.alone(prompt, request)


@pytest.mark.parametrize("error", [FatalDecodeError("it broke"), SettingError("it broke"), MemoryError()])
@pytest.mark.parametrize("drafter", ["model", "auto"])
def test_a_draft_that_fails_ends_guessing_and_no_answer(error: Exception, drafter: str) -> None:
    """Both of two answers failed where the draft alone had. The next one asks it again."""
    pair = FakePair(drafter=drafter, slots=2)
    score = pair.draft.score

    def fails(wants: Sequence[Want]) -> list[Rows]:
        if any(want.tokens.size + len(want.tail) > 60 for want in wants):
            raise error
        return score(wants)

    pair.draft.score = fails  # type: ignore[method-assign]
    engine, generated = make(pair, chunk=32), Told()
    asked = {
        "long": (np.arange(90, dtype=np.int32) % 8, Request(GREEDY, 20, draft_length=3)),  # fails in a chunk
        "grows": (np.arange(9, dtype=np.int32) % 8, Request(Sampling(), 70, seed=1, draft_length=3)),
        "short": (np.arange(9, dtype=np.int32) % 8, Request(GREEDY, 20, draft_length=3)),
    }
    for id, (prompt, request) in asked.items():
        engine.submit(id, prompt, request)
        run(engine, generated)
    for id, (prompt, request) in asked.items():
        assert generated.tokens(id) == pair.alone(prompt, request)
    notices = {id: [round_.notice for round_ in rounds] for id, rounds in generated.rounds.items()}
    assert (
        not generated.failed
        and not any(notices["short"])
        and any(r.drafted for r in generated.rounds["short"])
    )
    why = "memory has run out" if isinstance(error, MemoryError) else "it broke"
    for id in ("long", "grows"):
        told_once = f"guessing failed, so this answer goes on without the draft: {why}"
        assert set(notices[id]) == {"", told_once} and notices[id] == sorted(notices[id])


@dataclass
class Virtual:
    """A clock that goes on by what the evaluations of a pair cost by its tables."""

    pair: FakePair
    now: float = 0.0

    def __call__(self) -> float:
        costs = self.pair.costs()
        for context, table in ((self.pair.target, costs.target), (self.pair.draft, costs.draft)):
            self.now += sum(table.seconds(sum(n for n, _ in call.values())) for call in context.calls)
            context.calls.clear()
        return self.now


def test_where_rows_cost_what_they_bring_several_streams_hardly_draft() -> None:
    """Never slower: eight streams whose every row has its price draft within the budget alone."""
    pair = FakePair(slots=8, points=STEEP, drafter="model", spread=1.5)
    clock = Virtual(pair)
    engine = Engine(pair, slots=8, clock=clock)
    for i, prompt in enumerate(prompts(8)):
        engine.submit(str(i), prompt, Request(SAMPLED, 60, seed=i))
    told = run(engine)
    drafted = sum(r.drafted for rounds in told.rounds.values() for r in rounds)
    assert 0 < drafted < 0.1 * 8 * 60
    emitted = sum(len(told.tokens(id)) for id in told.rounds)
    assert clock() < 1.06 * (emitted + sum(prompt.size - 1 for prompt in prompts(8)))


@pytest.mark.parametrize(("card", "streams", "least", "most"), [
    ("data-centre card", 16, 1.6, 9.0),
    ("data-centre card", 32, 1.4, 9.0),
    ("processor", 8, 0.97, 1.03),
])  # fmt: skip
def test_several_streams_draft_where_an_evaluation_of_all_costs_what_one_does(
    card: str, streams: int, least: float, most: float
) -> None:
    """What a draft has to read of a prompt was priced as if each stream read alone: 16 streams on a card
    whose evaluations cost the same up to 256 tokens never drafted; drafts of 4 were 2.5 times as fast."""
    plain = play(Box(CARDS[card], 0.0, streams, fixed=0), 24).tok_per_s
    assert least < play(Box(CARDS[card], 0.85, streams), 24).tok_per_s / plain < most


GROUPS = {1: 1.0, 2: 1.9, 4: 2.0, 5: 3.4, 7: 3.8, 8: 2.8, 63: 30.0}  # rows cost in groups of four


def test_streams_in_groups_are_as_fast_as_the_cheapest_evaluation_with_room_for_them() -> None:
    pair = FakePair(slots=6, drafter="none", points=GROUPS)
    engine = Engine(pair, slots=6)
    for i in range(6):
        engine.submit(str(i), np.array([1, i % 8], np.int32), Request(Sampling(temperature=0), 20))
    run(engine)
    assert sum(pair.target.decoded[-6:]) == 8


class Settled(CostTable):
    """Costs that are known for good."""

    def learn(self, n: int, n_ctx: int, seconds: float, *, plain: bool = False) -> None:
        pass


@pytest.mark.parametrize("two", [0.09, 0.5])
def test_a_draft_reads_two_tokens_one_after_the_other_where_that_is_cheaper(two: float) -> None:
    costs = Costs(Settled(dict(FLAT), slope=0.0), Settled({1: 0.05, 2: two, 63: 20.0}, slope=0.0))
    pair = FakePair(slots=1, drafter="model", spread=0.0)
    engine = Engine(pair, slots=1, costs=costs)
    engine.submit("a", np.arange(6, dtype=np.int32), Request(GREEDY, 60))
    assert run(engine).tokens("a") == pair.alone(np.arange(6, dtype=np.int32), Request(GREEDY, 60))
    assert (2 in pair.draft.decoded) == (two < 0.1) and pair.draft.decoded.count(1) > 20


# ---- what is held ------------------------------------------------------------------------------------------


def test_the_next_turn_goes_where_its_prompt_is_held() -> None:
    pair = FakePair(slots=3)
    engine = make(pair)
    first = prompts(3)
    for i, prompt in enumerate(first):
        engine.submit(str(i), prompt, Request(GREEDY, 10))
    told = run(engine)
    for i in (2, 0, 1):
        turn = np.concatenate([first[i], np.array(told.tokens(str(i)), np.int32), np.array([1, 2, 3])])
        before = pair.target.evaluated
        engine.submit(f"{i} again", turn.astype(np.int32), Request(GREEDY, 1))
        run(engine, told)
        # the last token of an answer is never evaluated, and the last of a prompt always is
        assert told.started[f"{i} again"].cached_tokens == turn.size - 4
        assert pair.target.evaluated - before == 4


def test_a_prompt_that_nobody_holds_goes_to_the_slot_used_longest_ago() -> None:
    pair = FakePair(slots=2, n_vocab=20)
    engine = make(pair)
    texts = [np.full(12, i, np.int32) for i in range(3)]
    for i in (0, 1, 0, 2, 0):
        engine.submit("x", texts[i], Request(GREEDY, 2, draft_length=0))
        told = run(engine)
    assert told.started["x"].cached_tokens == 11, "text 2 took the place of text 1"


@pytest.mark.sample(2)
@pytest.mark.parametrize("length", [None, 3])
@pytest.mark.parametrize("mode", ["greedy", "coupled"])
def test_where_cells_run_out_the_youngest_waits_and_no_stream_fails(mode: str, length: int | None) -> None:
    pair = FakePair(n_ctx=200, cells=260)
    engine = make(pair, chunk=32)
    asked = {}
    for i, prompt in enumerate(prompts(9)):
        seed, sampling = (i, SAMPLED) if mode == "coupled" else (None, GREEDY)
        asked[str(i)] = prompt, Request(sampling, 100, seed=seed, draft_length=length)
        engine.submit(str(i), *asked[str(i)])
    generated = run(engine)
    assert pair.target.refused > 0 and not generated.failed
    for id, (prompt, request) in asked.items():
        assert generated.tokens(id) == pair.alone(prompt, request)
        assert generated.finish(id) == "length"


def test_a_suspended_stream_keeps_what_it_drew() -> None:
    """Drawn guesses wait with it: to cut them would bias the text."""
    pair = FakePair(n_vocab=3, drafter="model", spread=0.7, n_ctx=40, cells=45, slots=3)
    engine = Engine(pair, slots=pair.slots, queue=2000, ahead=0)
    start = np.array([0, 1, 2] * 4, np.int32)
    for i in range(800):
        engine.submit(str(i), start, Request(SAMPLED, 12, rng_seed=i, draft_length=3))
    told = run(engine)
    assert pair.target.refused > 100 and not told.failed
    found = Counter(tokens_of(rounds)[-3:] for rounds in told.rounds.values())
    # pairs of tokens decide what follows: the law of the last three, from that of all twelve
    sampler, law = pair.sampler(Request(SAMPLED)), Counter({(1, 2): 1.0})
    steps: list[Counter[tuple[int, ...]]] = [law]
    for _ in range(12):
        following: Counter[tuple[int, ...]] = Counter()
        for state, weight in steps[-1].items():
            p = sampler(pair.target.row(state[-2:]))
            for token, share in zip(p.ids.tolist(), p.probs.tolist(), strict=True):
                following[(*state, token)[-3:]] += weight * share  # type: ignore[assignment]
        steps.append(following)
    assert fits(found, steps[-1])


def test_a_cache_too_small_for_one_request_is_stated() -> None:
    pair = FakePair(cells=20)
    engine = make(pair)
    engine.submit("a", np.zeros(15, np.int32), Request(GREEDY, 30))
    assert isinstance(run(engine).failed["a"].error, NoRoomError)
