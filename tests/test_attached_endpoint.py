"""The app's endpoint over a real engine of its own, and over servers that misbehave."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import psutil
import pytest
from tui_driver import driven

from edgespec.client.answer import AnswerOptions, Ended, EngineState, StreamedRound
from edgespec.errors import EndpointError, EngineDiedError, SettingError
from edgespec.local.attach import Attached, OnProgress, Progress, WantedEngine, attach
from edgespec_tui.app import ChatApp
from edgespec_tui.endpoint import attached
from edgespec_tui.endpoint.attached import AGAIN_S, AttachedEndpoint, Begun, Cancelled, Patience, connecting
from edgespec_tui.endpoint.endpoint import Message, StreamEvent

HELLO = [Message("system", "Be brief."), Message("user", "What is EdgeSpec?")]
GREEDY = AnswerOptions(sampling={"temperature": 0.0}, max_tokens=24)


async def received(
    endpoint: AttachedEndpoint, options: AnswerOptions = GREEDY
) -> tuple[str, list[StreamEvent]]:
    events = [event async for event in endpoint.answer(HELLO, options)]
    return "".join(h.round.text for h in events if isinstance(h, StreamedRound)), events


def worker_of(server: psutil.Process) -> psutil.Process:
    (worker,) = [own for own in server.children() if "edgespec.engine.worker" in own.cmdline()]
    return worker


def engines() -> list[psutil.Process]:
    """The engines that this process has started."""
    return [child for child in psutil.Process().children() if child.is_running()]


@pytest.mark.skipif(os.name != "posix", reason="ends an engine by a signal")
def test_a_private_engine_answers_is_cancelled_dies_comes_back_and_ends_with_the_app() -> None:
    """All on one engine, because each start of one takes a second."""

    async def talk() -> None:
        progress: list[Progress] = []
        endpoint = AttachedEndpoint(partial(attach, WantedEngine()), on_progress=progress.append)
        with pytest.raises(EndpointError, match="there is no engine yet"):
            await endpoint.count(HELLO)
        before = engines()
        info = await endpoint.start()
        assert info.embedded and info.speculates and info.draft and info.n_ctx and info.plain_s
        assert [p.stage for p in progress][0] == "starting" and progress[-1].stage == "ready"

        count = await endpoint.count(HELLO)
        text, events = await received(endpoint)
        ended = events[-1]
        assert isinstance(ended, Ended) and ended.prompt_tokens == count and ended.ttft_s
        assert ended.finish in ("stop", "length") and ended.n_tokens and ended.tok_per_s
        assert text and all(isinstance(h, StreamedRound) for h in events[:-1])
        plain, _ = await received(endpoint, replace(GREEDY, speculation=False))
        assert plain == text

        long = AnswerOptions(sampling={"temperature": 1.5}, max_tokens=2000, seed=1)
        async with aclosing(endpoint.answer(HELLO, long)) as answer:
            async for _ in answer:
                break  # as Esc does
        assert (await received(endpoint))[0] == text

        (child,) = [engine for engine in engines() if engine not in before]
        with pytest.raises(EngineDiedError):
            async for _ in endpoint.answer(HELLO, long):
                child.send_signal(signal.SIGKILL)
        assert (await endpoint.restart()).model == info.model
        assert (await received(endpoint))[0] == text

        (child,) = [engine for engine in engines() if engine not in before]
        worker_of(child).kill()
        waited: list[Progress] = []
        again = await endpoint.count(HELLO, on_wait=waited.append)
        assert again == count and waited, "its server starts it again: a question waits for that"
        assert (await received(endpoint))[0] == text
        await endpoint.close()
        assert not [engine for engine in engines() if engine not in before]

    asyncio.run(talk())


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="ends an engine by a signal")
def test_a_chat_goes_on_by_itself_where_the_worker_dies_in_mid_answer() -> None:
    """It asked for F9, although the server starts its engine again by itself."""

    async def goes_on() -> None:
        before = engines()
        async with driven(ChatApp(AttachedEndpoint(partial(attach, WantedEngine()))), ready=False) as it:
            await it.until(lambda: it.app.context.engine.state == "ready", "an engine", seconds=60)
            (child,) = [engine for engine in engines() if engine not in before]
            worker, talk = worker_of(child), it.chat.conversation
            # with this seed it says some thousand words without an end
            talk.max_tokens, talk.seed, talk.sampling = (
                1900,
                1,
                {"temperature": 9.0, "top_p": 1.0, "min_p": 0.0},
            )
            await it.say("Tell me a long story.")
            await it.until(
                lambda: it.chat.answers.figures and it.chat.answers.figures.n_tokens, "a part of it"
            )
            worker.kill()
            await it.until(lambda: not it.chat.answering, "the end of the answer")
            answer = talk.path()[1]
            reason = str(answer.figures.get("reason"))  # which is kept: what is so for seconds is not
            assert answer.text and "the engine was killed" in reason and "started again" not in reason
            await it.until(lambda: "the engine stopped while answering" in it.text(), "what happened")
            await it.until(lambda: "Ctrl+R asks again" in it.text(), "what can be done")
            assert it.app.context.engine.state == "ready"
            talk.max_tokens, talk.sampling = 8, {"temperature": 0}  # hot ones may say nothing that is shown
            await it.say("And a short one?")
            await it.until(lambda: not it.chat.answering, "an answer", seconds=60)
            assert it.texts()[1] == answer.text and it.texts()[3]

    asyncio.run(goes_on())


@pytest.mark.slow
def test_a_borrowed_engine_that_goes_with_its_owner_is_replaced_by_one_of_our_own() -> None:
    async def talk() -> None:
        owner, guest = (AttachedEndpoint(partial(attach, WantedEngine())) for _ in range(2))
        await owner.start()
        before = engines()
        await guest.start()
        assert engines() == before, "it was borrowed"
        text, _ = await received(owner)
        await owner.close()
        assert await guest.count(HELLO) and (await received(guest))[0] == text
        await guest.close()

    asyncio.run(talk())


def test_a_file_that_is_not_there_is_reported_when_the_engine_is_started(tmp_path: Path) -> None:
    endpoint = AttachedEndpoint(partial(attach, WantedEngine(target=tmp_path / "none.gguf")))
    with pytest.raises(EndpointError, match=r"none\.gguf"):
        asyncio.run(endpoint.start())


@contextmanager
def another(chunks: list[str], *, pause: float = 0.0, status: int = 200) -> Iterator[str]:
    """Yields the address of an OpenAI-style server that is none of ours."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send(json.dumps({"data": [{"id": "other", "max_model_len": 100}]}))

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.end_headers()
            for chunk in chunks:
                time.sleep(pause)
                self.wfile.write(f"data: {chunk}\n\n".encode())
                self.wfile.flush()

        def _send(self, text: str) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            pass

        def handle(self) -> None:
            try:
                super().handle()
            except ConnectionError:  # the client has gone, as it may
                pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        server.server_close()


def piece(text: str, finish: str | None = None) -> str:
    return json.dumps({"choices": [{"delta": {"content": text}, "finish_reason": finish}]})


def test_another_kind_of_server_answers_without_speculation_and_counts_nothing() -> None:
    async def talk(url: str) -> None:
        endpoint = AttachedEndpoint(connecting(url, "key"))
        info = await endpoint.start()
        assert (info.model, info.speculates, info.n_ctx) == ("other", False, 100)
        assert await endpoint.count(HELLO) is None
        text, events = await received(endpoint)
        ended = events[-1]
        assert text == "Hello!" and isinstance(ended, Ended)
        assert (ended.finish, ended.speedup, ended.drafted) == ("content_filter", None, None)
        await endpoint.close()

    with another([piece("Hel"), piece("lo!"), piece("", "content_filter"), "[DONE]"]) as url:
        asyncio.run(talk(url))


@pytest.mark.parametrize("key, expected", [(None, "wants an API key"), ("x", "refuses the API key")])
def test_a_key_that_is_missing_or_wrong_is_reported_with_where_to_give_it(
    key: str | None, expected: str
) -> None:
    with another([], status=401) as url, pytest.raises(EndpointError, match=f"{expected}.*EDGESPEC_API_KEY"):
        asyncio.run(AttachedEndpoint(connecting(url, key)).start())


def test_a_server_that_goes_away_in_the_middle_is_reported_and_what_came_is_kept() -> None:
    async def talk(url: str) -> list[str]:
        endpoint = AttachedEndpoint(connecting(url, None))
        await endpoint.start()
        came = []
        with pytest.raises(EndpointError, match="in the middle of its answer"):
            async for event in endpoint.answer(HELLO, AnswerOptions()):
                assert isinstance(event, StreamedRound)
                came.append(event.round.text)
        return came

    with another([piece("half")]) as url:
        assert asyncio.run(talk(url)) == ["half"]


def test_a_server_that_says_nothing_keeps_nobody_from_stopping_or_ending() -> None:
    async def talk(url: str) -> None:
        endpoint = AttachedEndpoint(connecting(url, None))
        await endpoint.start()
        answering = asyncio.ensure_future(received(endpoint))
        await asyncio.sleep(0.1)
        answering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await answering

    with another([piece("never")], pause=60) as url:
        began = time.monotonic()
        asyncio.run(talk(url))
        assert time.monotonic() - began < 30


def test_an_address_where_nobody_is_and_one_that_is_none_are_reported() -> None:
    with pytest.raises(SettingError, match="is not an address"):
        connecting("http://", None)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(EndpointError, match=str(port)):
        asyncio.run(AttachedEndpoint(connecting(f"127.0.0.1:{port}", None)).start())


def test_an_engine_loads_before_the_app_asks_for_it_and_anew_when_it_asks_again() -> None:
    opened, go_on, told = threading.Semaphore(0), threading.Event(), []
    there = cast(Attached, object())

    def opening(on_progress: OnProgress, _cancelled: Cancelled) -> Attached:
        opened.release()
        on_progress(Progress("loading", "loading x"))
        assert go_on.wait(10)
        return there

    begun = Begun(opening)
    assert opened.acquire(timeout=10), "nobody has asked yet"
    threading.Timer(0.1, go_on.set).start()
    assert begun(told.append, lambda: False) is there
    assert [one.text for one in told] == ["loading x"] and not opened.acquire(blocking=False)
    assert begun(told.append, lambda: False) is there and opened.acquire(blocking=False)


def test_what_has_begun_hears_that_nobody_waits_for_it_and_its_error_is_reported() -> None:
    def until_given_up(_on_progress: OnProgress, cancelled: Cancelled) -> Attached:
        while not cancelled():
            time.sleep(0.005)
        raise EndpointError("given up")

    with pytest.raises(EndpointError, match="given up"):
        Begun(until_given_up)(lambda _: None, lambda: True)


class Loading:
    """A client of a server whose engine is loaded for an hour, and how it says so."""

    def __init__(self, steps: int) -> None:
        self.now, self.asked, self._steps = 0.0, 0, steps

    def count(self, messages: object) -> int:
        if self.asked == self._steps:
            return 7
        self.asked += 1
        self.now += 3600 / self._steps
        raise EndpointError("the engine is being restarted (SIGKILL)", status=503, retry_s=0.0)

    def engine(self) -> EngineState:
        return EngineState("loading" if self.asked > 1 else "down", "big", progress=self.asked / self._steps)


def counted_by(client: object, monkeypatch: pytest.MonkeyPatch, told: list[Progress]) -> int | None:
    """Returns what an endpoint with this client counts, on the client's clock."""
    monkeypatch.setattr(attached, "Patience", lambda _: Patience(lambda: client.now))  # type: ignore[attr-defined]
    endpoint = AttachedEndpoint(connecting("127.0.0.1:1", None))
    endpoint._attached = cast(Attached, SimpleNamespace(client=client, lent=False))
    return asyncio.run(endpoint.count(HELLO, on_wait=told.append))


def test_a_question_waits_for_an_engine_as_long_as_its_loading_advances(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It waited for 30 s, and failed with a model that takes longer to load."""
    told: list[Progress] = []
    assert counted_by(Loading(steps=150), monkeypatch, told) == 7
    assert told[0] == Progress("waiting", "waiting for the engine: it stopped, and is being started again")
    assert told[-1] == Progress("loading", "waiting for the engine: it is loading big", 1.0)


def test_an_engine_that_does_not_get_on_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither one whose loading stalls, nor one that dies at the same point again and again."""
    with pytest.raises(EndpointError, match="is being restarted"):
        counted_by(Loading(steps=20), monkeypatch, [])
    now = 0.0
    patience = Patience(lambda: now)
    for _ in range(50):
        for progress in (0.1, 0.5, 0.9):
            patience.lasts(EngineState("loading", "big", progress=progress))
            now += 4.0
        patience.lasts(EngineState("down", "big"))
    assert not patience.lasts(EngineState("loading", "big", progress=0.1))
    unknown = Patience(lambda: now)
    now += AGAIN_S
    assert not unknown.lasts(None)
