"""Other servers' answers, however odd: each is a text, or one sentence that says what is wrong with it."""

from __future__ import annotations

import asyncio
import io
import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, cast

import pytest
from fake_endpoint import FAKE, FakeEndpoint
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from test_tui_chat import on_a_loop
from textual.command import CommandPalette
from tui_driver import driven

from edgespec.client.answer import AnswerOptions, Ended, StreamedRound
from edgespec.client.chunk import chunk_of
from edgespec.client.client import Client
from edgespec.client.connection import complaint
from edgespec.client.stream import not_a_stream, sent_events
from edgespec.errors import EdgeSpecError, EndpointError, EndpointLostError
from edgespec_tui.app import ChatApp
from edgespec_tui.endpoint.attached import AttachedEndpoint, connecting
from edgespec_tui.endpoint.endpoint import Message

ASK = [{"role": "user", "content": "Hello?"}]
MODELS = json.dumps({"data": [{"id": "big"}]}).encode()
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4)
JSON: SearchStrategy[Any] = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
)
NAMES = (
    "choices delta content reasoning reasoning_content tool_calls finish_reason model usage timings edgespec "
    "prompt_progress total processed cache time_ms completion_tokens prompt_tokens prompt_tokens_details "
    "cached_tokens predicted_n predicted_ms tokens pieces sources gain drafted round error message "
    "code detail"
).split()
OBJECTS = st.recursive(
    SCALARS | st.sampled_from(NAMES),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=12,
)


@contextmanager
def server(
    answer: bytes,
    *,
    listing: bytes = MODELS,
    status: int = 200,
    kind: str = "text/event-stream",
    to: str = "",
) -> Iterator[tuple[Client, list[dict[str, Any]]]]:
    """Runs another program's server; yields a client of it, and what it is asked."""
    asked: list[dict[str, Any]] = []

    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send(200 if status in (301, 404, 429) else status, "application/json", listing)

        def do_POST(self) -> None:
            asked.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self._send(status, "text/event-stream", answer)

        def _send(self, status: int, kind: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("content-type", kind)
            if to:
                self.send_header("location", to)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Other) as running:
        thread = Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield Client.at(f"127.0.0.1:{running.server_port}"), asked
        finally:
            running.shutdown()
            thread.join()


def event(**told: Any) -> bytes:
    return b"data: " + json.dumps(told).encode() + b"\n\n"


def delta(**told: Any) -> bytes:
    return event(choices=[{"index": 0, "delta": told}])


def end(reason: str = "stop") -> bytes:
    return event(choices=[{"index": 0, "delta": {}, "finish_reason": reason}]) + b"data: [DONE]\n\n"


def answered(client: Client) -> tuple[str, Ended]:
    *rounds, ended = client.chat(ASK, AnswerOptions())
    assert isinstance(ended, Ended)
    return "".join(one.round.text for one in rounds if isinstance(one, StreamedRound)), ended


WHOLE = json.dumps({"choices": [{"message": {"content": "Hi."}, "finish_reason": "stop"}]}).encode()
WRONG = {  # what a server sends, and words of the sentence that it becomes
    "a whole answer": (WHOLE, "answered in one piece"),
    "an indented whole answer": (json.dumps(json.loads(WHOLE), indent=1).encode(), "answered in one piece"),
    "an error with 200": (b'{"error": {"message": "no such model"}}', "no such model"),
    "an error event": (b'event: error\ndata: {"error": {"message": "too hot"}}\n\n', "too hot"),
    "an error as text": (event(error="overheated"), "overheated"),
    "a page": (b"<!doctype html><p>Sign in</p>", "a web page"),
    "plain text": (b"Service warming up", "Service warming up"),
    "a detail": (b'{"detail": "Not Found"}', "Not Found"),
    "details": (b'{"detail": [{"loc": ["body"], "msg": "field required"}]}', "field required"),
    "a message": (b'{"message": "invalid key"}', "invalid key"),
    "a detail in an event": (event(detail="quota used up"), "quota used up"),
    "a list of errors": (b'[{"error": {"message": "API key expired", "code": 400}}]', "API key expired"),
    "nothing": (b"", "went away in the middle"),
    "no end": (delta(content="half"), "went away in the middle"),
    "no JSON": (b"data: hello\n\n", "something other than JSON"),
    "a list as an event": (b"data: [1]\n\n", "a list where an event"),
    "choices as a number": (event(choices=3), "a number as choices"),
    "a choice as a text": (event(choices=["a"]), "a text as a choice"),
    "a delta as a text": (event(choices=[{"delta": "a"}]), "a text as delta"),
    "a delta as a list": (event(choices=[{"delta": ["a"]}]), "a list as delta"),
    "a message for the delta": (event(choices=[{"message": {"content": "a"}}]), "'message' in its stream"),
    "a text for the delta": (event(choices=[{"text": "a"}]), "'text' in its stream"),
    "content as a number": (delta(content=3), "a number as content"),
    "content as an object": (delta(content={"a": 1}), "an object as content"),
    "an odd part of content": (delta(content=[{"type": "image_url"}]), "a part of content"),
    "reasoning as an object": (delta(reasoning={"a": 1}), "an object as reasoning"),
    "calls as a number": (delta(tool_calls=3), "a number as tool_calls"),
    "a call as a text": (delta(tool_calls=["f"]), "as tool_calls"),
    "the end as a list": (event(choices=[{"delta": {}, "finish_reason": []}]), "a list as finish_reason"),
    "nested beyond all measure": (b"data: " + b"[" * 100_000 + b"\n\n", "something other than JSON"),
}


@pytest.mark.sample(8)
@pytest.mark.parametrize("how", WRONG)
def test_each_way_of_answering_wrongly_has_its_own_sentence(how: str) -> None:
    """Most ended with "went away in the middle", some with a traceback and an answer that never ended."""
    answer, words = WRONG[how]
    with server(answer) as (client, _), pytest.raises(EdgeSpecError) as caught:
        answered(client)
    assert words in str(caught.value) and len(str(caught.value)) < 400


def test_the_sentences_differ() -> None:
    words = {words for _, words in WRONG.values()}
    assert len(words) >= 25


@pytest.mark.parametrize(
    ("chunk", "text"),
    [
        (b"\xef\xbb\xbf" + delta(content="a"), "a"),
        (delta(content=[{"type": "text", "text": "a"}, {"type": "thinking", "thinking": "b"}]), "a"),
        (event(choices=[{"delta": {"content": "a"}}], usage="x", timings=[], edgespec="y", model=3), "a"),
        (event(choices=[{"delta": {"content": "a"}}], usage={"prompt_tokens_details": "x"}), "a"),
        (event(choices=[{"delta": {"content": "a\ud800"}}]), "a\ufffd"),
        (b'data: {"choices": [{"delta": {"content": "a"}}], "usage": {"completion_tokens": 1e999}}\n\n', "a"),
    ],
)
def test_odd_figures_cost_no_text(chunk: bytes, text: str) -> None:
    with server(chunk + end()) as (client, _):
        assert answered(client)[0] == text


@settings(max_examples=60, deadline=None, database=None)
@given(OBJECTS | JSON)
def test_any_json_is_a_chunk_or_one_error(told: object) -> None:
    data = json.dumps(told).encode()
    try:
        chunk = chunk_of(data, "http://x")
    except EdgeSpecError as error:
        assert str(error).strip()
    else:
        assert isinstance(chunk.text, str) and isinstance(chunk.reasoning, str)
        assert math.isfinite(chunk.round().gain) and hash(chunk.round().tokens)
    assert isinstance(complaint(data, 400, "nan"), EdgeSpecError)
    assert isinstance(not_a_stream(data, "http://x"), EdgeSpecError)


@settings(max_examples=40, deadline=None, database=None)
@given(st.binary(max_size=60) | st.lists(OBJECTS, max_size=4).map(lambda all: b"".join(map(as_event, all))))
def test_any_bytes_are_events_or_one_error(sent: bytes) -> None:
    try:
        for data in sent_events(cast(Any, io.BytesIO(sent)), "http://x"):
            chunk_of(data, "http://x")
    except EdgeSpecError as error:
        assert str(error).strip()


def as_event(told: object) -> bytes:
    return b"data: " + json.dumps(told).encode() + b"\n\n"


@settings(max_examples=10, deadline=None, database=None)
@given(st.lists(OBJECTS, min_size=1, max_size=3))
def test_an_answer_always_ends(told: list[object]) -> None:
    """The thread that read it ended, and the chat waited for ever."""

    async def ends(url: str) -> bool:
        endpoint = AttachedEndpoint(connecting(url, None))
        await endpoint.start()
        try:
            async with asyncio.timeout(20):
                async for _ in endpoint.answer([Message("user", "Hello?")], AnswerOptions()):
                    pass
        except EdgeSpecError as error:
            return "\n" not in str(error)
        return True

    with server(b"".join(map(as_event, told)) + end()) as (client, _):
        assert asyncio.run(ends(client.where))


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (404, b'{"detail": "Not Found"}', "Not Found"),
        (429, b"slow down\nplease", "slow down"),
        (404, b"<html>", "answered 404 without a reason"),
        (301, b"", "sends its callers to https://elsewhere"),
    ],
)
def test_a_refusal_is_reported_with_its_reason(status: int, body: bytes, words: str) -> None:
    with server(body, status=status, to="https://elsewhere/v1" if status == 301 else "") as (client, _):
        with pytest.raises(EndpointError) as caught:
            answered(client)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("listing", "words"),
    [
        (b'[{"id": "big"}]', "has a bare list"),
        (b'"big"', "has a text"),
        (b"<html>", "answered with a web page"),
        (b"hello", "other than JSON"),
        (b"[" * 100_000, "other than JSON"),
        (b'{"data": {"id": "big"}}', "lists no models"),
        (b'{"data": ["big"]}', "lists a text as a model"),
        (b'{"data": []}', "has no model"),
        (b'{"error": "locked"}', "locked"),
        (b'{"detail": "Not Found"}', "Not Found"),
        (b'{"message": "no route"}', "no route"),
    ],
)
def test_an_odd_list_of_models_is_reported_and_a_named_model_needs_none(listing: bytes, words: str) -> None:
    with server(delta(content="Hi.") + end(), listing=listing) as (client, asked):
        with pytest.raises(EndpointError, match="/v1|Not Found|locked|no route|no model") as caught:
            client.info()
        assert words in str(caught.value)
        named = Client(client.server, model="big")
        assert named.info().model == "big" and answered(named)[0] == "Hi."
        assert asked[0]["model"] == "big"


@on_a_loop
async def test_the_app_asks_which_of_several_models_answers_and_lets_another_one() -> None:
    info = replace(FAKE, model="", draft=None, speculates=False, where="http://x/v1")
    async with driven(ChatApp(FakeEndpoint(info=info, listed=["small", "Big-1"]))) as it:
        await it.until(lambda: isinstance(it.app.screen, CommandPalette) and "Big-1" in it.text())
        await it.pilot.press("escape")
        await it.ask("Hello?")
        await it.until(lambda: "several models: Ctrl+L lists them" in it.text())
        await it.pilot.press("ctrl+l")
        await it.until(lambda: isinstance(it.app.screen, CommandPalette))
        await it.pilot.press(*"sma", "enter")
        await it.until(lambda: it.app.context.engine.model == "small")
        await it.pilot.press("ctrl+r")
        await it.until(lambda: it.texts()[-1] == "An answer.")


@on_a_loop
async def test_a_stream_that_broke_off_does_not_mean_that_a_server_is_gone() -> None:
    """Every later question got "there is no engine" until F9."""
    info = replace(FAKE, draft=None, speculates=False)
    endpoint = FakeEndpoint(info=info, answers=[EndpointLostError("It broke off."), "fine"])
    async with driven(ChatApp(endpoint)) as it:
        await it.ask("one")
        await it.ask("two")
        assert it.texts()[-1] == "fine"


def test_the_model_of_a_server_is_sent() -> None:
    """It never was, and OpenAI, Ollama's /v1 and gateways refuse a request without one."""
    for listed, named, sent in (
        (["a"], None, "a"),
        (["a", "b"], None, ""),
        (["a", "b"], "b", "b"),
        (["a"], "c", "c"),
    ):
        listing = json.dumps({"data": [{"id": name} for name in listed]}).encode()
        with server(delta(content="Hi.") + end(), listing=listing) as (client, asked):
            client.model = named
            assert client.info().model == sent, "several are to be chosen from"
            answered(client)
            assert asked[0].get("model", "") == sent
