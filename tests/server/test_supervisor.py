"""One pair at a time: who waits for whom, what is reported meanwhile, and what is left when it goes wrong."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from served import served, until
from tiny_gguf import CONTROL, write_llama

from edgespec.core.request import Request
from edgespec.core.values import Emitted, Round, Started
from edgespec.pairs.settings import PairSettings
from edgespec.protocol.messages import LoadRequest, StepReport, Submit, ToWorker
from edgespec.sampling.sampler import Sampling
from edgespec.server.engine_status import EngineStatus
from edgespec.server.refusal import Refusal
from edgespec.server.supervisor import Supervisor
from edgespec.server.worker_life import WorkerLife
from edgespec.server.worker_process import WorkerProcess, new_worker
from edgespec.server.worker_requests import WorkerEvent

WAIT_S = 30.0
NO_END = {token: -1e9 for token in range(512 - len(CONTROL), 512)}
SUBMIT = Submit("", "the water", False, Request(Sampling(temperature=0, logit_bias=NO_END), max_tokens=4))


@dataclass(slots=True)
class Asker:
    """A client of the supervisor, and what it hears."""

    worker: Supervisor
    id: str
    heard: list[WorkerEvent] = field(default_factory=list)
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def hear(self, _id: str, said: WorkerEvent, _at: float) -> None:
        self.heard.append(said)
        if isinstance(said, Refusal) or (isinstance(said, Emitted) and said.round.finish):
            self.ended.set()

    async def ask(self, load: LoadRequest | None = None, max_tokens: int = 4) -> str:
        """Has a pair, asks it for an answer, and returns the name of its target once that is on its way."""
        async with self.worker.lease(load) as worker:
            request = replace(SUBMIT.request, max_tokens=max_tokens)
            worker.engine.submit(replace(SUBMIT, id=self.id, request=request), self.hear)
            return name(worker)

    @property
    def refusal(self) -> Refusal:
        assert isinstance(self.heard[-1], Refusal), self.heard
        return self.heard[-1]


def name(worker: WorkerLife) -> str:
    assert worker.about
    return worker.about.name


@pytest.fixture(scope="module")
def loads(tmp_path_factory: pytest.TempPathFactory) -> tuple[LoadRequest, LoadRequest]:
    folder = tmp_path_factory.mktemp("models")
    settings = PairSettings(n_ctx=512, threads=1, slots=2)
    return (
        LoadRequest(str(write_llama(folder / "one.gguf", seed=1)), None, settings, 4),
        LoadRequest(str(write_llama(folder / "two.gguf", seed=2)), None, settings, 4),
    )


@contextlib.asynccontextmanager
async def supervised(
    load: LoadRequest, *, idle_s: float | None = None, **how: Any
) -> AsyncIterator[Supervisor]:
    worker = Supervisor(load, **how)
    worker.unload_after(idle_s)
    worker.start()
    try:
        async with asyncio.timeout(WAIT_S):
            await worker.settled.wait()
            yield worker
    finally:
        await worker.stop()


async def until_is(worker: Supervisor, true: Callable[[EngineStatus], bool]) -> EngineStatus:
    async for status in worker.changes():
        if true(status):
            return status
    raise AssertionError("it never was so")


def test_during_the_first_load_a_stream_waits_and_others_are_refused(
    loads: tuple[LoadRequest, LoadRequest],
) -> None:
    """A stream got 503 where signs of life were promised."""

    async def play() -> None:
        worker = Supervisor(loads[0])
        worker.start()
        try:
            async with asyncio.timeout(WAIT_S):
                with pytest.raises(Refusal, match="is being loaded") as refused:
                    async with worker.lease():
                        pass
                assert refused.value.status == 503
                async with worker.lease(waits=True) as ready:
                    assert ready.state == "ready"
        finally:
            await worker.stop()

    asyncio.run(play())


@pytest.mark.slow
def test_a_request_for_another_pair_waits_for_who_is_answered_and_others_wait_behind_it(
    loads: tuple[LoadRequest, LoadRequest],
) -> None:
    """First come, first served: neither of two clients can keep the other's pair away for ever."""

    async def play() -> None:
        one, two = loads
        async with supervised(one) as worker:
            first, second, third = (Asker(worker, id) for id in "abc")
            assert await first.ask(max_tokens=300) == "one"
            other = asyncio.create_task(second.ask(two))
            same = asyncio.create_task(third.ask())
            status = await until_is(worker, lambda now: now.next is not None)
            assert status.next == two and status.state == "ready" and status.requests == 1
            assert await other == "two"
            assert first.ended.is_set() and isinstance(first.heard[-1], Emitted)
            assert await same == "two", "who names none has the one that is there"
            await asyncio.gather(second.ended.wait(), third.ended.wait())

    asyncio.run(play())


def test_a_supervisor_that_closes_ends_waiting_and_lets_running_answers_finish(
    loads: tuple[LoadRequest, LoadRequest],
) -> None:
    """A server told to end loaded another pair first, for a request that waited for it."""

    async def play() -> None:
        one, two = loads
        async with supervised(one) as worker:
            first, second, third = (Asker(worker, id) for id in "abc")
            await first.ask(max_tokens=300)
            waiting = [asyncio.create_task(second.ask(two)), asyncio.create_task(third.ask())]
            await until_is(worker, lambda now: now.next is not None)
            worker.close(Refusal(503, "the server is stopping"))
            for said in await asyncio.gather(*waiting, return_exceptions=True):
                assert isinstance(said, Refusal) and said.message == "the server is stopping"
            await first.ended.wait()
            assert isinstance(first.heard[-1], Emitted)

    asyncio.run(play())


def test_loading_is_reported_as_it_goes_on(loads: tuple[LoadRequest, LoadRequest]) -> None:
    async def play() -> None:
        one, two = loads
        async with supervised(one) as worker:
            seen: list[EngineStatus] = []

            async def watch() -> None:
                async for status in worker.changes():
                    seen.append(status)

            watching = asyncio.create_task(watch())
            await asyncio.sleep(0)
            await worker.load(two)
            while not any(now.progress == 1 and now.load == two for now in seen):
                await asyncio.sleep(0.01)  # what comes close together is told once
            await worker.stop()
            await watching
        assert [s.state for s in seen][0] == "ready" and seen[-1].state == "stopped"
        loading = [s for s in seen if s.state == "loading" and s.load == two]
        stages = list(dict.fromkeys(s.stage for s in loading if s.stage))
        assert stages and stages == [s for s in ("target", "caches", "measuring") if s in stages]
        progress = [s.progress for s in loading]
        assert progress == sorted(progress) and 0 <= progress[0] <= progress[-1] < 1
        assert any(s.state == "ready" and s.load == two and s.progress == 1 for s in seen)

    asyncio.run(play())


def test_by_force_running_and_waiting_requests_are_ended(loads: tuple[LoadRequest, LoadRequest]) -> None:
    async def play() -> None:
        one, two = loads
        async with supervised(one) as worker:
            running, waiting = Asker(worker, "a"), Asker(worker, "b")
            await running.ask(max_tokens=400)
            turn = asyncio.create_task(waiting.ask(replace(two, queue=5)))
            await until_is(worker, lambda now: now.next is not None)
            assert name(await worker.load(two, force=True)) == "two"
            assert running.refusal.code == "model_switched" and running.refusal.retry_s
            with pytest.raises(Refusal, match="by force"):
                await turn
            after = Asker(worker, "c")
            assert await after.ask() == "two"
            await after.ended.wait()
            assert isinstance(after.heard[-1], Emitted)

    asyncio.run(play())


def test_a_load_by_force_stays_one_though_another_ends_before_it(
    loads: tuple[LoadRequest, LoadRequest],
) -> None:
    """The first of two took the mark away from both, so others waited in vain beside the second."""

    async def play() -> None:
        async with supervised(loads[0]) as worker:
            first, second = worker._my_turn(True), worker._my_turn(True)
            await first.__aenter__()
            entering = asyncio.create_task(second.__aenter__())
            await asyncio.sleep(0)
            await first.__aexit__(None, None, None)
            await entering
            with pytest.raises(Refusal, match="by force"):
                worker._check(False)
            await second.__aexit__(None, None, None)
            worker._check(False)

    asyncio.run(play())


@pytest.mark.slow
def test_force_waits_for_no_pair_that_is_being_loaded_and_leaves_no_worker_of_it(
    loads: tuple[LoadRequest, LoadRequest],
) -> None:
    """A switch that was overtaken between `fork` and the first message left a process, and its memory."""

    async def play() -> None:
        one, two = loads
        async with supervised(one) as worker:
            slow = asyncio.create_task(worker.load(two))
            await until_is(worker, lambda now: now.state == "loading")
            process = worker.current.pid
            assert name(await worker.load(one, force=True)) == "one"
            with pytest.raises(Refusal, match="by force"):
                await slow
            assert worker.current.pid != process
            ours = [
                p for p in psutil.Process().children() if "edgespec.engine.worker" in " ".join(p.cmdline())
            ]
            assert [p.pid for p in ours] == [worker.current.pid]

    asyncio.run(play())


@pytest.mark.slow
def test_unloading_gives_the_memory_back_and_the_next_request_loads(
    loads: tuple[LoadRequest, LoadRequest],
) -> None:
    async def play() -> None:
        async with supervised(loads[0]) as worker:
            asker = Asker(worker, "a")
            await asker.ask(max_tokens=300)
            pid = worker.current.pid
            assert pid and psutil.pid_exists(pid)
            await worker.unload()
            assert asker.ended.is_set() and isinstance(asker.heard[-1], Emitted), "it was waited for"
            assert worker.status_of().state == "unloaded" and not psutil.pid_exists(pid)
            await worker.unload()  # nothing to do
            again = Asker(worker, "b")
            assert await again.ask() == "one"
            await again.ended.wait()
            assert worker.current.restarts == 0, "nothing had died"

    asyncio.run(play())


def test_a_pair_that_cannot_be_loaded_gives_way_to_the_one_before(
    loads: tuple[LoadRequest, LoadRequest], tmp_path: Path
) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(100))

    async def play() -> None:
        async with supervised(loads[0]) as worker:
            with pytest.raises(Refusal, match="broken.gguf") as refused:
                await worker.load(replace(loads[1], target=str(broken)))
            assert refused.value.code == "model_load_failed"
            assert worker.status_of().state == "unloaded" and "broken.gguf" in str(worker.status_of().error)
            asker = Asker(worker, "a")
            assert await asker.ask() == "one"
            await asker.ended.wait()
            assert worker.status_of().error is None

    asyncio.run(play())


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="signals as POSIX has them")
def test_a_pair_that_kills_its_worker_while_it_loads_gives_way_too(
    loads: tuple[LoadRequest, LoadRequest],
) -> None:
    async def play() -> None:
        async with supervised(loads[0]) as worker:
            loading = asyncio.create_task(worker.load(loads[1]))
            await until_is(worker, lambda now: now.state == "loading" and now.stage is not None)
            assert worker.current.pid
            psutil.Process(worker.current.pid).kill()
            with pytest.raises(Refusal, match="killed"):
                await loading
            assert name(await worker.load()) == "one"

    asyncio.run(play())


def test_who_gives_up_waiting_leaves_the_turn_to_others(loads: tuple[LoadRequest, LoadRequest]) -> None:
    async def play() -> None:
        one, two = loads
        async with supervised(one) as worker:
            running = Asker(worker, "a")
            await running.ask(max_tokens=300)
            impatient = asyncio.create_task(worker.load(two))
            await until_is(worker, lambda now: now.next is not None)
            impatient.cancel()
            with pytest.raises(asyncio.CancelledError):
                await impatient
            assert worker.status_of().next is None
            other = Asker(worker, "b")
            assert await other.ask() == "one"
            await asyncio.gather(running.ended.wait(), other.ended.wait())

    asyncio.run(play())


def test_an_idle_pair_is_unloaded_and_one_that_is_used_is_not(loads: tuple[LoadRequest, LoadRequest]) -> None:
    async def play() -> None:
        async with supervised(loads[0], idle_s=0.2) as worker:
            async with worker.lease():
                await asyncio.sleep(0.4)
                assert worker.current.state == "ready"
            await until_is(worker, lambda now: now.state == "unloaded")
            asker = Asker(worker, "a")
            await asker.ask()
            await asker.ended.wait()
            assert any(isinstance(said, Started) for said in asker.heard)
            await until_is(worker, lambda now: now.state == "unloaded")

    asyncio.run(play())


@pytest.mark.slow
def test_the_endpoint_loads_again_what_was_idle(
    tmp_path: Path, loads: tuple[LoadRequest, LoadRequest]
) -> None:
    with served(tmp_path, "--target", loads[0].target, "--ctx", "256", "--idle-unload", "0.005") as server:
        until(lambda: not server.workers)
        assert server.ask("/health").status == 200
        answered = server.ask("/v1/completions", {"prompt": "the water", "max_tokens": 3})
        assert answered.status == 200, answered


@pytest.mark.skipif(os.name != "posix", reason="processes are suspended by a signal")
def test_a_worker_that_does_not_answer_is_killed_and_started_again(
    loads: tuple[LoadRequest, LoadRequest],
) -> None:
    """A stopped or deaf worker looked like a busy one: everybody waited for ever."""

    async def play() -> None:
        notices: list[str] = []
        async with supervised(loads[0], ping_s=0.1, tell=notices.append) as worker:
            await asyncio.sleep(0.9)
            assert worker.current.restarts == 0 and await worker.responds(2.0), "one that hears is left alone"
            asker, old = Asker(worker, "a"), worker.current.pid
            assert old
            psutil.Process(old).suspend()
            await asker.ask()
            await asker.ended.wait()
            assert "has not answered for" in str(asker.refusal) and asker.refusal.status == 503
            await until_is(worker, lambda now: now.state == "ready")
            assert worker.current.pid != old and worker.current.restarts == 1
        assert any("has not answered" in line and "being restarted" in line for line in notices)
        assert "the engine is running again" in notices

    asyncio.run(play())


def test_a_worker_that_cannot_be_started_is_tried_again(loads: tuple[LoadRequest, LoadRequest]) -> None:
    """Where memory was short even for a process, nobody tried again, and the model was "loading" for ever."""
    refused, notices = [OSError(errno.ENOMEM, "Cannot allocate memory")], list[str]()

    async def new() -> WorkerProcess:
        if refused:
            raise refused.pop()
        return await new_worker()

    async def play() -> None:
        async with supervised(loads[0], tell=notices.append, new=new) as worker:
            assert worker.current.state == "ready" and worker.current.restarts == 1

    asyncio.run(play())
    assert notices[0] == "its process cannot be started (Cannot allocate memory); it is being restarted"


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="it is ended by a signal")
def test_a_worker_that_a_card_had_no_memory_for_is_started_again_with_less_on_it(
    loads: tuple[LoadRequest, LoadRequest],
) -> None:
    """It was started again as it was, and ended at the same place with the next long prompt, for ever."""
    sent: list[int] = []

    class Noted(WorkerProcess):
        def send(self, message: ToWorker) -> None:
            if isinstance(message, LoadRequest):
                sent.append(message.settings.plans_failed)
            super().send(message)

    async def play() -> None:
        notices: list[str] = []
        async with supervised(loads[0], tell=notices.append, new=partial(new_worker, Noted)) as worker:
            for _ in range(2):
                process = worker.current._process
                assert process and worker.current.pid
                process.lines.append("  what():  vk::Device::allocateMemory: ErrorOutOfDeviceMemory")
                os.kill(worker.current.pid, signal.SIGABRT)
                await until_is(worker, lambda now: now.state == "down")
                await until_is(worker, lambda now: now.state == "ready")
            assert "ran out of memory" in notices[0] and "with less on the graphics card" in notices[0]
            assert await worker.load(loads[1]) and sent == [0, 1, 2, 0], "another pair begins anew"
            assert worker.status_of().load == loads[1]

    asyncio.run(play())


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="processes are suspended by a signal")
def test_a_server_that_was_stopped_does_not_take_its_worker_for_silent(
    loads: tuple[LoadRequest, LoadRequest],
) -> None:
    """Ctrl+Z stops the web process alone; what it missed meanwhile is not a fault of the worker's."""

    async def play() -> None:
        async with supervised(loads[0], ping_s=0.1) as worker:
            for _ in range(2):
                await asyncio.sleep(0.25)
                time.sleep(1.0)
            await asyncio.sleep(0.3)
            assert worker.current.restarts == 0 and worker.current.state == "ready"

    asyncio.run(play())


def test_the_cause_of_a_failed_draft_is_logged_once_for_each_load(
    loads: tuple[LoadRequest, LoadRequest],
) -> None:
    """It comes with every further round of the answer, for those who watch it."""

    async def scene() -> None:
        notices: list[str] = []
        worker = Supervisor(loads[0], tell=notices.append)
        rounds = [
            Round((1,), "a", 0, 0, ("target",), notice=notice) for notice in ("", "it broke", "it broke")
        ]
        step = StepReport(0.0, 1.0, tuple(Emitted("id", round_) for round_ in rounds), (0.0, 0.0), 0.01)
        worker.current._note(step)
        assert notices == ["it broke"]

    asyncio.run(scene())
