"""Attaching: a running server is found, or an engine started; whose it is, and its end."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import filelock
import psutil
import pytest
from announced import announced
from commands import posix
from served import NO_END, served, until
from tiny_gguf import write_llama

from edgespec.client.client import AnswerOptions, Client, Ended
from edgespec.client.state_file import ServerState
from edgespec.errors import EndpointError, EndpointLostError
from edgespec.local.attach import Attached, Progress, WantedEngine, attach, connect, start_lock
from edgespec.system.config import cache_folder
from edgespec_models import tiny
from edgespec_models.shelf.store import InstalledModel, InstalledPair, Store

HELLO = [{"role": "user", "content": "What is EdgeSpec?"}]
ENDLESS = AnswerOptions(sampling={"temperature": 2}, extra={"logit_bias": NO_END})


@pytest.fixture
def engine() -> Iterator[Attached]:
    with attach() as engine:
        yield engine


def children() -> set[psutil.Process]:
    return set(psutil.Process().children(recursive=True))


def is_being_started() -> bool:
    """Returns True while somebody holds the lock; that its file is there says only that he is about to.

    Looking takes the lock, too: so seldom that whoever wants it for longer gets it.
    """
    lock = start_lock()
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        return True
    lock.release()
    time.sleep(0.15)
    return False


def web_process() -> psutil.Process:
    """Returns the web process of the one engine that is there."""
    [client] = Client.found()
    assert client.state
    return psutil.Process(client.state.pid)


def gone(processes: Iterable[psutil.Process]) -> bool:
    return not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in processes)


@pytest.mark.slow
def test_an_engine_is_started_and_a_second_program_shares_it(engine: Attached) -> None:
    """The second is told whose it is, and, when it goes, that it went; then it may have its own."""
    assert engine.private and not engine.lent and engine.fault() is None
    [*_, ended] = engine.client.chat(HELLO, AnswerOptions(max_tokens=2))
    assert isinstance(ended, Ended) and ended.n_tokens == 2
    key, running = engine.client.server.key, [web_process(), *web_process().children()]
    assert key and len(running) == 3, "the web process, its engine, and what renders its templates"
    for process in running:
        assert not any(key in word for word in process.cmdline())
        assert key not in process.environ().values()
    second = attach(WantedEngine(n_ctx=1024))
    assert second.lent and not second.private and second.model == engine.model
    answer = second.client.chat(HELLO, ENDLESS)
    next(answer)
    engine.close()
    with pytest.raises(EndpointLostError, match="started this engine has ended"):
        list(answer)
    assert "started this engine has ended" in str(second.fault())
    until(lambda: gone(running))
    with second.again() as own:
        assert own.private and own.fault() is None


@pytest.mark.slow
def test_two_that_start_together_load_one_pair() -> None:
    shutil.rmtree(cache_folder() / "pairs")  # else it may be ready before the web process is
    engines: list[Attached] = []
    progress: list[Progress] = []
    threads = [
        threading.Thread(target=lambda: engines.append(attach(on_progress=progress.append))) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for engine in reversed(engines):
        assert engine.fault() is None
        engine.close()
    assert [engine.private for engine in engines] == [True, False]
    stages = [step.stage for step in progress]
    assert stages.count("starting") == stages.count("waiting") == stages.count("ready") == 1
    assert {"loading the embedded pair", "measuring its speed"} & {step.text for step in progress}
    fractions = [step.fraction for step in progress if step.stage == "loading"]
    assert fractions == sorted(fractions, key=lambda known: known or 0) and 0 < (fractions[-1] or 0) <= 1


@posix
def test_an_engine_ends_with_its_owner_even_by_kill_9() -> None:
    code = "from edgespec.local.attach import attach\ne = attach()\nprint('attached', flush=True)\ninput()"
    owner = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert owner.stdin and owner.stdout
    with owner.stdin, owner.stdout:
        assert owner.stdout.readline() == b"attached\n"
        running = psutil.Process(owner.pid).children(recursive=True)
        assert len(running) == 3
        owner.kill()
        owner.wait()
        until(lambda: gone(running), 15)


@posix
def test_an_engine_that_was_killed_says_so_and_another_takes_its_place(engine: Attached) -> None:
    answer = engine.client.chat(HELLO, ENDLESS)
    next(answer)
    web = web_process()
    left = web.children()
    web.kill()
    with pytest.raises(EndpointLostError):
        list(answer)
    until(lambda: engine.fault())
    assert "killed" in str(engine.fault())
    until(lambda: gone(left))
    with engine.again() as another:
        assert another.private and another.client.count(HELLO) == 12


@pytest.mark.slow
def test_why_it_cannot_be_started_is_a_sentence(tmp_path: Path) -> None:
    before = children()
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF\x03\0\0\0" + bytes(100))
    for wanted, words in (
        (WantedEngine(target=tmp_path / "nothing.gguf"), "there is no file"),
        (WantedEngine(target=broken), "broken.gguf"),
    ):
        with pytest.raises(EndpointError, match=words) as caught:
            attach(wanted)
        assert "\n" not in str(caught.value) and caught.value.code == "load_failed"
    until(lambda: gone(children() - before), 20)


@pytest.mark.slow
def test_a_chat_waits_for_a_server_that_is_being_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGESPEC_STATE_DIR", str(tmp_path / "state"))
    steps: list[Progress] = []
    with ThreadPoolExecutor(1) as pool, ExitStack() as running:
        starting = pool.submit(lambda: running.enter_context(served(tmp_path)))
        until(is_being_started)
        engine = attach(on_progress=steps.append)
        assert not engine.private and engine.client.where in starting.result().url
    assert {step.stage for step in steps} <= {"waiting"}


@pytest.mark.slow
def test_starting_can_be_cancelled() -> None:
    before = children()
    steps: list[Progress] = []
    with pytest.raises(EndpointError, match="cancelled"):
        attach(on_progress=steps.append, cancelled=lambda: len(steps) > 0)
    until(lambda: gone(children() - before), 20)


@pytest.mark.slow
def test_a_server_that_fits_is_preferred_and_outlives_us(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_target: Path, tiny_draft: Path
) -> None:
    """A file that outlived its server, and another program on a port, are passed over."""
    monkeypatch.setenv("EDGESPEC_STATE_DIR", str(tmp_path / "state"))
    with served(tmp_path, "--ctx", "600") as server, announced(ServerState("127.0.0.1", 1, 1, "gone")):
        for fits in (
            WantedEngine(),
            WantedEngine(target=tiny_target),
            WantedEngine(target=tiny_target, draft=tiny_draft, n_ctx=600),
        ):
            engine = attach(fits)
            assert not engine.private and not engine.lent and engine.info.n_ctx == 600
            engine.close()
            assert engine.fault() is None
        states = [client.state for client in Client.found()]
        assert len(states) == 1 and states[0]
        assert not WantedEngine(n_ctx=601).is_met(states[0]) and not WantedEngine(target=tmp_path).is_met(
            states[0]
        )
        named = connect(Client.at(server.url))
        assert named.info.speculates and named.again().model == "embedded"
    assert str(named.fault()).endswith("has ended")


@pytest.mark.slow
def test_a_pair_next_to_another_is_found_in_a_server_and_asked_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_target: Path, tiny_draft: Path
) -> None:
    """The server's file tells of the pair that was loaded last: for the other one, an engine was started."""
    monkeypatch.setenv("EDGESPEC_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("EDGESPEC_DATA_DIR", str(tmp_path / "data"))
    small = write_llama(tmp_path / "small.gguf", seed=2)
    Store(tmp_path / "data").add(
        InstalledPair("small", InstalledModel((str(small),), small.stat().st_size), None, "imported", 0.0)
    )
    first, second = WantedEngine(target=tiny_target, draft=tiny_draft), WantedEngine(target=small)
    with served(tmp_path, "embedded") as server:
        assert server.ask("/api/generate", {"model": "small", "keep_alive": -1}).status == 200
        for wanted, name in ((first, "embedded"), (second, "small"), (first, "embedded")):
            engine = attach(wanted)
            assert not engine.private and engine.model == name
            assert (engine.client.count(HELLO) == 12) is (name == "embedded")
            [*_, ended] = engine.client.chat(HELLO, AnswerOptions(max_tokens=2))
            assert isinstance(ended, Ended)
        too_long = replace(second, n_ctx=600), replace(second, template="another")
        [answer] = [client.state for client in Client.found()]
        assert answer and not any(one.has_loaded(answer, engine.info) for one in too_long)
        assert server.ask("/v1/models").json["data"][0]["id"] == "small", "it stays the current one"


def state(**told: object) -> ServerState:
    usual: dict[str, Any] = {
        "target": str(tiny.target_path()),
        "draft": str(tiny.draft_path()),
        "n_ctx": 4096,
    }
    return ServerState("127.0.0.1", 1, 1, "embedded", **{**usual, "private": True, "usual": True, **told})


def test_another_windows_engine_is_taken_only_where_it_is_what_would_be_started() -> None:
    """A bare chat took whichever ran, its --ctx 160 included."""
    bare = WantedEngine()
    assert bare.is_met(state())
    assert not bare.is_met(state(n_ctx=160, usual=False))
    assert not bare.is_met(state(target="/elsewhere/big.gguf"))
    assert not bare.is_met(state(draft=None))
    assert WantedEngine(n_ctx=100).is_met(state(n_ctx=160, usual=False)), "more than was asked for"
    assert WantedEngine(target=tiny.target_path()).is_met(state(n_ctx=160, usual=False)), "it was named"
    assert bare.is_met(state(private=False, target="/elsewhere/big.gguf")), "a server is for everybody"


@pytest.mark.slow
def test_an_engine_is_started_where_nothing_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unwritable home kept a chat from starting: there was no place for a lock."""
    (tmp_path / "home").write_text("no folder")
    for name in ("STATE", "DATA", "CACHE", "CONFIG"):
        monkeypatch.setenv(f"EDGESPEC_{name}_DIR", str(tmp_path / "home" / name))
    with attach(WantedEngine(n_ctx=256)) as engine:
        assert engine.private and engine.client.count(HELLO) == 12
