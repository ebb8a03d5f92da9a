"""Where a request starts: which slot it gets, what it finds there, and what is saved before it is lost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from test_scheduler import FakePair
from tiny_gguf import write_llama

from edgespec.core.loop import Want
from edgespec.core.request import Request
from edgespec.core.values import Emitted, Failed, Started
from edgespec.engine.engine import Engine
from edgespec.engine.pair import Pair
from edgespec.engine.prefixes import LONG_TAIL
from edgespec.llama.context import Context
from edgespec.pairs.settings import PairSettings
from edgespec.sampling.sampler import Sampling

LENGTH = 100
REQUEST = Request(Sampling(temperature=0), max_tokens=4)


def text(seed: int, n: int = LENGTH) -> NDArray[np.int32]:
    return np.random.default_rng(seed).integers(0, 8, n).astype(np.int32)


def answered(engine: Engine, *prompts: NDArray[np.int32]) -> list[int]:
    """Answers all, one after another; returns how many tokens of each need not be evaluated."""
    cached = []
    for prompt in prompts:
        engine.submit("r", prompt, REQUEST)
        while not engine.idle:
            cached += [one.cached_tokens for one in engine.step() if isinstance(one, Started)]
    return cached


def more(prompt: NDArray[np.int32], n: int = 10) -> NDArray[np.int32]:
    """Returns a prompt that goes on where another one ended."""
    return np.concatenate([prompt, text(99, n)])


def test_several_prompts_are_kept_in_slots() -> None:
    engine = Engine(FakePair(slots=3), slots=3)
    assert answered(engine, text(1), text(2), text(3)) == [0, 0, 0]
    assert answered(engine, more(text(2)), more(text(1)), more(text(3))) == [LENGTH] * 3


def test_what_is_in_no_slot_any_more_comes_back_from_host_memory() -> None:
    pair = FakePair(slots=1)
    engine = Engine(pair, slots=1, cache_ram=10**6)
    assert max(answered(engine, text(1), text(2), text(3))) < 5, "by chance"
    before = pair.target.evaluated
    assert answered(engine, more(text(1)), more(text(2))) == [LENGTH] * 2
    assert pair.target.evaluated - before < LENGTH and pair.target.restored


def test_when_nobody_waits_all_but_the_last_text_goes_to_host_memory() -> None:
    """Texts that were written at the same time lie in each other's cells: reading among them takes longer."""
    pair = FakePair(slots=3)
    engine = Engine(pair, slots=3, cache_ram=10**6)
    answered(engine, text(1), text(2), text(3))
    engine.submit("r", more(text(2)), REQUEST)
    engine.step()
    assert not engine.tidy(), "not while somebody is answered"
    while not engine.idle:
        engine.step()
    assert [engine.tidy() for _ in range(3)] == [True, True, False]
    assert [pair.target.held(seq).size > 0 for seq in range(3)] == [False, True, False]
    assert answered(engine, more(text(2)), more(text(1)), more(text(3))) == [LENGTH + 9, LENGTH, LENGTH]


@pytest.mark.parametrize(("cache_ram", "moves"), [(0, 0), (10_000, 0), (60_000, 3)])
def test_what_finds_no_room_in_host_memory_stays_in_its_slot(cache_ram: int, moves: int) -> None:
    """As much as half of it is used for texts that could stay where they are. One takes 11,000 bytes here."""
    pair = FakePair(slots=6, drafter="none")
    engine = Engine(pair, slots=6, cache_ram=cache_ram)
    answered(engine, *(text(i) for i in range(6)))
    assert sum(engine.tidy() for _ in range(9)) == moves
    assert answered(engine, *(more(text(i)) for i in range(6))) == [LENGTH] * 6


def test_without_host_memory_it_is_evaluated_again() -> None:
    engine = Engine(FakePair(slots=1), slots=1)
    assert answered(engine, text(1), text(2), more(text(1))) == [0, 0, 0]


def test_an_unlike_prompt_takes_an_empty_slot_and_not_a_long_conversation() -> None:
    """Two prompts share what their template begins with; that is no reason to lose the rest of one."""
    engine = Engine(FakePair(slots=2), slots=2)
    chat, other = text(1), np.concatenate([text(1)[:10], text(2)])
    answered(engine, chat, other)
    assert answered(engine, more(chat)) == [LENGTH]


def test_a_sub_agent_leaves_its_coordinator_what_it_holds() -> None:
    """It begins with the same long system prompt; a slot with less behind that is simply used."""
    pair = FakePair(slots=2, n_ctx=8192, cells=20_000)
    engine = Engine(pair, slots=2)
    system, tail = text(1, 2 * LONG_TAIL), text(2, LONG_TAIL + 100)
    coordinator, sub_agent = np.append(system, tail), np.append(system, text(3))
    _, began, went_on = answered(engine, coordinator, sub_agent, more(coordinator))
    assert system.size <= began < system.size + 5 and went_on == coordinator.size
    again, back = answered(engine, np.append(system, text(4)), more(coordinator, 20))
    assert again < system.size + 5 and back >= coordinator.size, "it takes the first sub-agent's slot"


def test_a_beginning_that_a_busy_slot_holds_is_shared() -> None:
    """Many requests with one long system prompt: it is evaluated once."""
    pair = FakePair(slots=3)
    engine = Engine(pair, slots=3)
    engine.submit("first", text(1), Request(Sampling(temperature=0), max_tokens=100))
    for _ in range(3):
        engine.step()
    engine.submit("second", np.concatenate([text(1)[:80], text(2, 10)]), REQUEST)
    happened = [one for _ in range(3) for one in engine.step()]
    assert [one.cached_tokens for one in happened if isinstance(one, Started)] == [80]
    assert pair.target.shared == [80]


def test_a_short_beginning_is_evaluated_again_rather_than_moved() -> None:
    pair = FakePair(slots=3)
    engine = Engine(pair, slots=3, cache_ram=10**6)
    engine.submit("first", text(1), Request(Sampling(temperature=0), max_tokens=100))
    engine.step()
    engine.submit("second", np.concatenate([text(1)[:40], text(2, 10)]), REQUEST)
    happened = [one for _ in range(3) for one in engine.step()]
    assert [one.cached_tokens for one in happened if isinstance(one, Started)] == [0]
    assert not pair.target.shared


def test_the_store_is_as_large_as_was_allowed() -> None:
    pair = FakePair(slots=1)
    budget = 3 * LENGTH * 104 * 2  # of target and draft
    engine = Engine(pair, slots=1, cache_ram=budget)
    answered(engine, *(text(i) for i in range(9)))
    store = engine.prefixes.store
    assert store and 2 <= len(store) <= 5 and budget / 2 < store.n_bytes <= budget


@pytest.mark.parametrize("cache_ram", [0, 10**6])
def test_who_was_suspended_goes_on_where_it_stood(cache_ram: int) -> None:
    """With host memory its tokens are not evaluated again."""
    pair = FakePair(slots=2, cells=260, drafter="none")
    engine = Engine(pair, slots=2, cache_ram=cache_ram)
    request = Request(Sampling(temperature=0), max_tokens=80, drafter="none")
    for id, seed in (("a", 1), ("b", 2)):
        engine.submit(id, text(seed, 70), request)
    found: dict[str, list[int]] = {"a": [], "b": []}
    while not engine.idle:
        for one in engine.step():
            if isinstance(one, Emitted):
                found[one.id] += one.round.tokens
    assert pair.target.refused, "cells have run out"
    assert all(tuple(found[id]) == pair.alone(text(seed, 70), request) for id, seed in (("a", 1), ("b", 2)))
    assert bool(pair.target.restored) == bool(cache_ram)
    if cache_ram:
        assert pair.target.evaluated <= 2 * 150 + 10


def test_what_is_kept_stays_within_its_budget_when_a_restoration_pushes_it_out() -> None:
    """The prefix that was about to be used was dropped for what its slot held, and put back uncounted."""
    pair = FakePair(slots=1, drafter="none")
    engine = Engine(pair, slots=1, cache_ram=60_000)  # 11,000 bytes each, more for the longer ones
    store = engine.prefixes.store
    assert store is not None
    rng = np.random.default_rng(1)
    for _ in range(60):
        answered(engine, more(text(int(rng.integers(4)), int(rng.integers(60, 120))), int(rng.integers(90))))
        held = [kept.n_bytes for kept in store._prefixes]
        assert sum(held) == store.n_bytes <= store.budget
    assert pair.target.restored


@pytest.mark.parametrize("n", [2, 4])
def test_choices_of_one_prompt_read_it_once(n: int) -> None:
    """All were placed before any held it: four choices evaluated 1,613 tokens where one took 404."""
    evaluated = []
    for choices in (1, n):
        pair = FakePair(slots=4, drafter="none")
        engine = Engine(pair, slots=4, chunk=32)
        for i in range(choices):
            engine.submit(str(i), text(1, 200), Request(Sampling(temperature=1.0), 4, seed=i))
        cached = {}
        while not engine.idle:
            cached |= {one.id: one.cached_tokens for one in engine.step() if isinstance(one, Started)}
        assert list(cached.values()) == [0] + [199] * (choices - 1)
        evaluated.append(pair.target.evaluated)
    assert evaluated[1] <= evaluated[0] + (n - 1) * 5


def test_who_waits_for_a_beginning_holds_up_nobody_else() -> None:
    pair = FakePair(slots=3, drafter="none")
    engine, order = Engine(pair, slots=3, chunk=32), []
    for id, prompt in (("a", text(1, 200)), ("b", more(text(1, 150))), ("c", text(2, 20))):
        engine.submit(id, prompt, REQUEST)
    while not engine.idle:
        order += [one.id for one in engine.step() if isinstance(one, Started)]
    assert order == ["a", "c", "b"]


def test_a_fresh_prompt_uses_again_only_whole_pieces_that_were_read_from_nothing() -> None:
    pair = FakePair(slots=1, drafter="none")
    engine = Engine(pair, slots=1, chunk=32)
    fresh = replace(REQUEST, fresh=True)

    def asked(prompt: NDArray[np.int32], wish: Request = fresh) -> tuple[int, list[int]]:
        pair.target.calls.clear()
        engine.submit("r", prompt, wish)
        cached = []
        while not engine.idle:
            cached += [one.cached_tokens for one in engine.step() if isinstance(one, Started)]
        return cached[0], [call[0][0] for call in pair.target.calls]

    assert asked(text(1)) == (0, [32, 32, 36, 1, 1, 1])
    assert asked(text(1)) == (64, [36, 1, 1, 1]), "the evaluations of a fresh reading, but those in front"
    assert asked(text(1)[:90]) == (32, [58, 1, 1, 1]), "of a shorter prompt they are others"
    assert asked(text(1)[:20]) == (0, [20, 1, 1, 1])
    assert asked(text(1)) == (0, [32, 32, 36, 1, 1, 1])
    assert asked(more(text(1)), REQUEST)[0] == LENGTH
    assert asked(more(text(1), 60)) == (64, [32, 32, 32, 1, 1, 1])
    assert asked(text(2))[0] == 0


@pytest.mark.parametrize("left_by", ["measuring", "an engine with more slots"])
def test_what_no_request_left_makes_room_for_one(left_by: str, tmp_path: Path) -> None:
    """Text left by measuring, or in slots that only an earlier engine had, was never emptied."""
    settings = PairSettings(n_ctx=320, cache_tokens=480, slots=4, threads=1, remember=False)
    with Pair(write_llama(tmp_path / "t.gguf"), None, settings) as pair:
        costs, (context, *_) = pair.costs(), pair.contexts.values()
        if left_by == "measuring":
            assert isinstance(context, Context)
            context.score([Want(text(1, 300), (), 1, seq=0)])
            engine = Engine(pair, slots=4)
        else:
            engine = Engine(pair, slots=4, costs=costs)
            for prompt in (text(1), text(2), text(3), text(4)):  # all at once, each in a slot of its own
                engine.submit(str(prompt[:9]), prompt, REQUEST)
            while not engine.idle:
                engine.step()
            engine = Engine(pair, slots=1)
        engine.submit("r", text(5, 300), REQUEST)
        finished = None
        while not engine.idle:
            for one in engine.step():
                assert not isinstance(one, Failed), one.error
                finished = one.round.finish if isinstance(one, Emitted) else None
    assert finished == "length"
