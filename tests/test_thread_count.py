"""Fewer threads evaluate while other programs use the cores, and all again when they have gone.

On a machine of numbers: a thread that shares its core delays all, by a factor that changes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from edgespec.core.loop import Want
from edgespec.llama import thread_count
from edgespec.llama.context import Context, ContextSettings
from edgespec.llama.model import Model
from edgespec.llama.thread_count import ASKED, LAST_BELOW, ThreadCount, Threads, numbers

Sizes = Callable[[np.random.Generator], int]
ONE: Sizes = lambda rng: 1  # noqa: E731
MIXED: Sizes = lambda rng: int(rng.choice([1, 4, 4, 5, 8]))  # noqa: E731


class Machine:
    """Seconds of an evaluation of n tokens on so many threads, beside so many busy cores."""

    def __init__(self, cores: int, seed: int) -> None:
        self.cores, self.busy, self.rng = cores, 0, np.random.default_rng(seed)

    def seconds(self, n: int, threads: int) -> float:
        alone = 0.3 + (0.7 + 0.15 * (n - 1)) * self.cores / threads  # memory, and what threads share
        if threads > self.cores - self.busy:
            alone *= float(self.rng.choice([1.0, 1.5, 2.5, 3.5]))
        pause = 3.0 if self.rng.random() < 0.01 else 1.0
        return alone * pause * (1 + 0.1 * abs(self.rng.standard_normal()))


def run(machine: Machine, count: ThreadCount, sizes: Sizes, times: int) -> tuple[float, float, list[int]]:
    """Returns the seconds of so many evaluations, what all threads would have taken, and what was chosen."""
    taken = all_ = 0.0
    chosen = []
    for _ in range(times):
        n = sizes(machine.rng)
        threads = count.choose(n)
        seconds = machine.seconds(n, threads)
        count.note(n, threads, seconds)
        taken, all_ = taken + seconds, all_ + machine.seconds(n, machine.cores)
        chosen.append(threads)
    return taken, all_, chosen


@pytest.mark.parametrize("sizes", [ONE, MIXED], ids=["plain", "mixed"])
@pytest.mark.parametrize("cores", [2, 8])
def test_on_a_quiet_machine_trying_costs_two_hundredths_at_most(cores: int, sizes: Sizes) -> None:
    """Over 4,000 evaluations; measured: 0 to 1 hundredth."""
    machine, count = Machine(cores, 1), ThreadCount(cores)
    taken, all_, _ = run(machine, count, sizes, 4000)
    assert taken < 1.02 * all_


@pytest.mark.parametrize("sizes", [ONE, MIXED], ids=["plain", "mixed"])
@pytest.mark.parametrize(("cores", "busy", "share"), [(2, 1, 0.97), (4, 1, 0.75), (8, 2, 0.75)])
def test_next_to_busy_cores_fewer_threads_are_faster_than_all(
    cores: int, busy: int, share: float, sizes: Sizes
) -> None:
    """Share of the time that all cores take; of two cores, one alone takes nearly as long here."""
    machine, count = Machine(cores, 2), ThreadCount(cores)
    machine.busy = busy
    run(machine, count, sizes, 300)
    taken, all_, _ = run(machine, count, sizes, 1000)
    assert taken < share * all_


def test_a_neighbour_is_noticed_soon_and_so_is_that_it_has_gone() -> None:
    machine, count = Machine(2, 3), ThreadCount(2)
    run(machine, count, ONE, 3000)  # tries are as rare as they get
    machine.busy = 1
    run(machine, count, ONE, 200)
    assert count.now == 1
    machine.busy = 0
    run(machine, count, ONE, 3 * LAST_BELOW)
    assert count.now == 2


def test_all_cores_are_used_again_as_soon_as_others_have_left_them() -> None:
    """Nothing shows in the evaluations of fewer threads: it took up to 130 of them."""
    soon = 0
    for seed in range(8):
        machine = Machine(4, seed)
        count = ThreadCount(4, lambda machine=machine: machine.busy)
        machine.busy = 2
        run(machine, count, ONE, 200)
        while count.now == 4:  # a try of them may just have been lucky
            run(machine, count, ONE, 1)
        machine.busy = 0
        run(machine, count, ONE, ASKED + 8)
        soon += count.now == 4
    assert soon > 5, "but for a try in a moment in which the machine paused"


@pytest.mark.parametrize("cores", [2, 4])
def test_threads_that_share_one_core_give_way_after_one_evaluation(cores: int) -> None:
    """For ten seconds, a token took 1.1 seconds beside one busy core of two: a single thread takes 2 ms."""
    busy = [0.0]
    count = ThreadCount(cores, lambda: busy[0])

    def evaluate(n: int) -> float:
        threads = count.choose(n)
        seconds = 0.001 * (1 + 0.1 * n) * cores / threads
        if threads > cores - busy[0]:
            seconds += 0.3 * cores
        count.note(n, threads, seconds)
        return seconds

    sizes = np.random.default_rng(5)
    for _ in range(500):
        evaluate(MIXED(sizes))
    busy[0] = 1.0
    stuck = [evaluate(MIXED(sizes)) > 0.1 for _ in range(500)]
    assert sum(stuck) == 1
    busy[0] = 0.0
    for _ in range(ASKED + 12):
        evaluate(MIXED(sizes))
    assert count.now == cores


def test_the_system_is_asked_rarely_and_fewer_threads_that_are_faster_stay() -> None:
    """As on cores that share more than they add."""
    asked = 0

    def nobody() -> float:
        nonlocal asked
        asked += 1
        return 0.0

    count, taken = ThreadCount(2, nobody), []
    for _ in range(1000):
        threads = count.choose(1)
        count.note(1, threads, 1.0 if threads == 1 else 1.5)
        taken.append(threads)
    assert count.now == 1 and asked <= 4
    assert taken[100:].count(2) < 20


def test_every_number_is_tried_and_none_twice() -> None:
    assert numbers(1) == (1,)
    assert numbers(2) == (2, 1)
    assert numbers(4) == (4, 3, 2, 1)
    assert numbers(16) == (16, 15, 14, 12, 8, 1)
    machine, count = Machine(16, 4), ThreadCount(16)
    _, _, chosen = run(machine, count, ONE, 4000)
    assert set(chosen) == set(numbers(16))


@pytest.mark.parametrize("said", [None, 2])
def test_a_context_changes_its_threads_where_nobody_set_how_many(
    said: int | None, tiny_draft: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("EDGESPEC_THREADS")
    monkeypatch.setattr(thread_count, "threads_wanted", lambda: 2)
    changed: list[int] = []
    set_threads = thread_count.C.llama_set_n_threads

    def noted(handle: object, n: int, n_batch: int) -> None:
        changed.append(n)
        set_threads(handle, n, n_batch)

    monkeypatch.setattr(thread_count.C, "llama_set_n_threads", noted)
    with (
        Model(tiny_draft) as model,
        Context(model, ContextSettings(n_ctx=128, threads=said, flash_attention=False)) as context,
    ):
        rows = [
            context.score([Want(np.arange(300, 300 + n, dtype=np.int32))])[0][0].argmax()
            for n in range(1, 60)
        ]
        context.clear()
        whole = context.score([Want(np.arange(300, 359, dtype=np.int32))])[0][0].argmax()
    assert bool(changed) == (said is None)
    assert rows[-1] == whole


@pytest.mark.parametrize(("most", "beside", "used"), [(2, 1, 1), (2, 9, 1), (8, 1, 7), (8, 9, 4), (1, 1, 1)])
def test_our_own_work_next_to_gets_cores_and_teaches_nothing(
    most: int, beside: int, used: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("EDGESPEC_THREADS")
    monkeypatch.setattr(thread_count, "threads_wanted", lambda: most)
    chosen = [most]
    monkeypatch.setattr(thread_count.C, "llama_set_n_threads", lambda _, n, __: chosen.append(n))
    threads = Threads(None, None, fixed=False)
    monkeypatch.setattr(Threads, "own_work", beside)
    for _ in range(100):
        threads.choose(1)
        assert chosen[-1] == used
        threads.note(1, 1.0)
    monkeypatch.setattr(Threads, "own_work", 0)
    threads.choose(1)
    assert chosen[-1] == most


def test_what_a_try_took_longer_is_counted_apart() -> None:
    """So that no pace thinks of it as what guesses cost."""
    count, beyond = ThreadCount(2), 0.0
    for _ in range(200):
        threads = count.choose(1)
        beyond += count.note(1, threads, 1.0 if threads == 2 else 1.7)
    assert beyond == pytest.approx(0.7 * round(beyond / 0.7))
    assert 0.7 <= beyond <= 3.5
