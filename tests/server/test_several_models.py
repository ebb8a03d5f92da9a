"""Several models in memory: who comes, who goes, who is left alone, and what is told meanwhile."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from late import ollama, openai
from little_memory import memory_is
from pydantic import ValidationError
from served import NO_END, Served, served, until
from tiny_gguf import write_llama

from edgespec.memory import at_load
from edgespec.pairs.settings import PairSettings
from edgespec.protocol.messages import LoadRequest
from edgespec.server.dialects.anthropic.answers import MessageStream
from edgespec.server.dialects.ollama.answers import LineStream
from edgespec.server.dialects.ollama.requests import OllamaChat
from edgespec.server.event_stream import EarlyStream, EventStream, at_once_or_early
from edgespec.server.refusal import Refusal
from edgespec.server.supervisor import Supervisor
from edgespec_models import tiny
from edgespec_models.fit.allotment import RAM_MARGIN
from edgespec_models.shelf.store import InstalledModel, InstalledPair, Store

HELLO: list[Any] = [{"role": "user", "content": "What is EdgeSpec?"}]
LONG = {"max_tokens": 300, "temperature": 2, "logit_bias": NO_END}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The embedded pair, and two small targets; two of the three may be in memory."""
    folder = tmp_path_factory.mktemp("several")
    store = Store(folder / "data")
    for seed, name in enumerate(("second", "third"), 2):
        target = write_llama(folder / f"{name}.gguf", seed=seed)
        model = InstalledModel((str(target),), target.stat().st_size)
        store.add(InstalledPair(name, model, None, "imported", 0.0))
    places = {"EDGESPEC_DATA_DIR": str(folder / "data"), "EDGESPEC_STATE_DIR": str(folder / "state")}
    files = ("--target", str(tiny.target_path()), "--draft", str(tiny.draft_path()))
    with served(folder, *files, "--alias", "first", "--ctx", "512", "--models-max", "2", **places) as server:
        yield server


def states(server: Served) -> dict[str, str]:
    return {model["id"]: model["status"]["value"] for model in server.ask("/v1/models").json["data"]}


def are(server: Served, *loaded: str) -> Callable[[], bool]:
    return lambda: {name for name, state in states(server).items() if state == "loaded"} == set(loaded)


def test_two_models_answer_at_once_and_the_death_of_one_engine_is_not_the_others(server: Served) -> None:
    """Another model could only be had by unloading the first, behind all its answers."""

    def answer(model: str, begun: threading.Event) -> str:
        with openai.OpenAI(base_url=server.url, api_key="x", max_retries=0) as client:
            reply = client.chat.completions.create(model=model, messages=HELLO, stream=True, **LONG)
            text = ""
            for chunk in reply:
                text += chunk.choices[0].delta.content or ""
                begun.set()
            return text

    begun = {name: threading.Event() for name in ("first", "second")}
    [old] = server.workers
    with ThreadPoolExecutor(2) as pool:
        asked = {name: pool.submit(answer, name, begun[name]) for name in ("first", "second")}
        assert all(event.wait(20) for event in begun.values())
        [new] = [worker for worker in server.workers if worker.pid != old.pid]
        new.kill()
        with pytest.raises(openai.APIError, match="the engine stopped while answering"):
            asked["second"].result()
        assert len(asked["first"].result()) > 300
    until(are(server, "first", "second"))
    assert old.is_running() and server.ask("/health").status == 200
    props = {name: server.ask(f"/props?model={name}").json for name in ("first", "second")}
    assert props["first"]["model_alias"] == "first" and props["second"]["model_alias"] == "second"


@pytest.mark.slow
def test_the_routers_routes_load_and_unload_and_the_least_used_makes_room(server: Served) -> None:
    def change(what: str, model: str) -> tuple[int, Any]:
        got = server.ask(f"/models/{what}", {"model": model})
        return got.status, got.json

    until(lambda: server.ask("/tokenize", {"model": "first", "content": "hi"}).status == 200)
    if "second" not in [name for name, state in states(server).items() if state == "loaded"]:
        assert change("load", "second") == (200, {"success": True})
        until(are(server, "first", "second"))
    assert change("load", "second")[0] == 400 and change("load", "nobody")[0] == 404
    server.ask("/tokenize", {"model": "first", "content": "hi"})
    with closing(server.raw(b"GET /models/sse HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")) as events:
        assert change("load", "third") == (200, {"success": True}), server.logged()
        until(are(server, "first", "third"))
        told = b""
        while b'"third","event":"model_status","data":{"status":"loaded"}' not in told:
            told += events.recv(65536)
    assert b'"data":{"status":"loading","progress":{"current":"' in told
    assert change("unload", "third") == (200, {"success": True})
    until(are(server, "first"))
    assert change("unload", "third")[0] == 400


@pytest.mark.slow
def test_a_model_is_kept_as_long_as_ollamas_clients_ask(server: Served) -> None:
    """keep_alive did nothing but unload, and loaded the model first for that."""
    with ollama.Client(host=server.url.removesuffix("/v1")) as client:

        def left() -> dict[str, float]:
            now = datetime.now(UTC)
            return {model.model: (model.expires_at - now).total_seconds() for model in client.ps().models}

        client.generate("second", "", keep_alive="1h30m")
        client.generate("first", "the water", keep_alive=-1, options={"num_predict": 2})
        assert 5300 < left()["second:latest"] <= 5400 and left()["first:latest"] > 1e9
        client.chat("second", HELLO, keep_alive=90.5, options={"num_predict": 2})
        assert 80 < left()["second:latest"] <= 90.5
        assert client.chat("second", HELLO, options={"num_predict": 2}).done
        assert 80 < left()["second:latest"] <= 90.5, "without the field, the last one holds"
        for keep in ("0.2s", 0):
            for _ in client.chat("second", HELLO, keep_alive=keep, stream=True, options={"num_predict": 2}):
                pass
            until(lambda: list(left()) == ["first:latest"])
        assert client.generate("second", "", keep_alive=0).done_reason == "unload"
        assert states(server)["second"] == "unloaded"
        with pytest.raises(ollama.ResponseError, match="keep_alive is 'soon': give seconds"):
            client.chat("first", HELLO, keep_alive="soon")


@pytest.mark.skipif(os.name != "posix", reason="a worker is suspended by a signal")
@pytest.mark.slow
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/api/chat", "/v1/messages"])
def test_a_stream_shows_signs_of_life_while_its_model_loads(server: Served, path: str) -> None:
    """Clients and proxies gave up on a large model: nothing came before it was loaded."""
    server.ask("/models/unload", {"model": "second"})
    until(lambda: states(server)["second"] == "unloaded")
    there = {worker.pid for worker in server.workers}
    body = {"model": "second", "messages": HELLO, "max_tokens": 3, "stream": True}
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(server.ask, path, body)
        until(lambda: {worker.pid for worker in server.workers} - there)
        [new] = [worker for worker in server.workers if worker.pid not in there]
        new.suspend()
        time.sleep(4.0)
        [answer] = [m for m in server.ask("/v1/models").json["data"] if m["id"] == "second"]
        new.resume()
        got = asked.result()
    assert got.status == 200 and answer["status"]["value"] == "loading"
    if path == "/api/chat":
        first, *_, last = map(json.loads, got.body.splitlines())
        assert first["message"]["content"] == "" and not first["done"] and last["done"]
    else:
        assert got.body.startswith(b": loading second, ") and got.body.count(b"event: message_start") < 2
    assert b'"error"' not in got.body


# -- without a server


@pytest.mark.parametrize(
    ("said", "idle_s"),
    [(0, 0), ("0", 0), (90.5, 90.5), ("5m", 300), ("1h30m", 5400), ("300ms", 0.3), (-1, None), ("-1m", None)]
    + [(10**400, None), (1e12, None), (float("nan"), None), ("9" * 400 + "h", None)],
)
def test_keep_alive_is_in_seconds_or_in_words(said: object, idle_s: float | None) -> None:
    """What no clock can count is for ever: 10**400 seconds were added to the time of day."""
    assert OllamaChat.model_validate({"model": "x", "keep_alive": said}).idle_s == idle_s
    for wrong in ("soon", "5 m", "m", True):
        with pytest.raises(ValidationError):
            OllamaChat.model_validate({"model": "x", "keep_alive": wrong})


async def received(stream: EarlyStream | EventStream, *, leaves: bool = False) -> bytes:
    said: list[Any] = []

    async def receive() -> Any:
        if not leaves:
            await asyncio.sleep(100)
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        said.append(message)

    state = {"shapes": {}, "request_id": "r1"}
    await stream({"type": "http", "method": "POST", "path": "/v1/x", "state": state}, receive, send)
    assert [m["type"] for m in said].count("http.response.start") == 1
    return b"".join(message.get("body", b"") for message in said)


def test_an_early_stream_goes_on_ends_with_its_error_or_with_its_client() -> None:
    async def late(answer: object) -> object:
        await asyncio.sleep(0.05)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def play() -> None:
        for answer, end in (
            ({"n": 1}, b'{"n":1}'),
            (Refusal(503, "it is broken"), b'"it is broken", "type": "unavailable_error"'),
            (KeyError("x"), b"a fault of EdgeSpec's own (KeyError): its log has more under r1"),
        ):
            working = asyncio.ensure_future(late(answer))
            early = await at_once_or_early(working, EventStream, lambda: b": sign\n\n", 0.01)
            assert isinstance(early, EarlyStream)
            said = await received(early)
            assert said.startswith(b": sign\n\n: sign\n\n") and end in said
        working = asyncio.ensure_future(late(Refusal(503, "it is broken")))
        early = await at_once_or_early(working, MessageStream, lambda: b": sign\n\n", 0.01)
        assert isinstance(early, EarlyStream)
        assert b"\n\nevent: error\ndata: {" in await received(early), "Anthropic's clients ignore others"
        working = asyncio.ensure_future(late({}))
        early = await at_once_or_early(working, EventStream, lambda: b": sign\n\n", 0.01)
        assert isinstance(early, EarlyStream) and b"n" in await received(early, leaves=True)
        await asyncio.sleep(0)
        assert working.cancelled(), "nobody waits for it"
        with pytest.raises(Refusal):
            await at_once_or_early(asyncio.ensure_future(late(Refusal(400, "no"))), EventStream, bytes, 1.0)

    asyncio.run(play())


@pytest.mark.parametrize("kind", [EventStream, MessageStream, LineStream])
def test_a_stream_that_waits_for_its_turn_or_its_prompt_gives_signs(kind: type[EventStream]) -> None:
    """Proxies and clients end a connection in which nothing comes; Ollama's clients got nothing."""

    class Closed:
        def close(self) -> None: ...

    async def events() -> AsyncIterator[bytes]:
        await asyncio.sleep(0.15)
        yield b"the answer"

    async def play() -> bytes:
        generation: Any = Closed()
        return await received(kind(events(), generation, 5.0, "pair", ping_s=0.02))

    signs, _, rest = asyncio.run(play()).partition(b"the answer")
    assert signs.count(kind.sign("pair")[:20]) > 1
    for line in filter(None, [*signs.split(b"\n"), *rest.split(b"\n")]):
        assert line == b": pair is at work" or json.loads(line)["message"]["content"] == ""


@pytest.mark.slow
def test_who_is_unloaded_for_another_is_idle_and_least_used(tmp_path: Path) -> None:
    """Where memory has no room for both, one goes, but never one that answers."""
    settings = PairSettings(n_ctx=256, threads=1, slots=1)
    loads = [
        LoadRequest(str(write_llama(tmp_path / f"{n}.gguf", seed=n)), None, settings, 4) for n in range(3)
    ]
    room = 2

    async def play() -> None:
        nonlocal room
        engines = Supervisor(loads[0], most=3, fits=lambda _, others: len(others) < room)
        engines.start()
        try:
            await engines.settled.wait()
            await engines.load(loads[1])
            async with engines.lease(loads[0]):
                await engines.load(loads[2])
                assert [engines.of(load).state for load in loads] == ["ready", "unloaded", "ready"]
                room = 1
                async with engines.lease(loads[2]):
                    waiting = asyncio.create_task(engines.load(loads[1]))
                    await asyncio.sleep(0.2)
                    assert not waiting.done() and engines.status_of().next == loads[1]
            await waiting
            assert [engines.of(load).in_memory for load in loads] == [False, True, False]
            assert engines.current.load == loads[1]
        finally:
            await engines.stop()

    asyncio.run(play())


def test_room_next_to_others_is_asked_of_llama_cpp(
    tiny_target: Path, tiny_draft: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that others have mapped count as free to the system, and are not."""
    settings = PairSettings(slots=4)
    needed = at_load.pair_fit(tiny_target, tiny_draft, settings, []).choice.total
    free = needed + RAM_MARGIN + 2**20
    memory_is(monkeypatch, free, 2 * free)
    assert at_load.fits_with(tiny_target, tiny_draft, settings, [])
    sizes = [2**20, 2**20]
    assert not at_load.fits_with(tiny_target, tiny_draft, settings, [1, 2], mapped=lambda _: sizes.pop())
    assert not at_load.fits_with(tiny_target, tiny_draft, replace(settings, rpc=("10.0.0.1:1",)), [])
    assert at_load.fits_with(Path("nothing.gguf"), None, settings, []), "loading it says why not"
