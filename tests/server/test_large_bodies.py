"""Bodies of any size and content hold nobody up: they are bounded before anything is made of them."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from asyncio.subprocess import Process
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from commands import posix
from pydantic import BaseModel, ValidationError
from served import Served, post, until

from edgespec.server import bodies
from edgespec.server.dialects.anthropic.requests import CountRequest
from edgespec.server.dialects.llama_cpp.requests import DetokenizeRequest, InfillRequest, LlamaCompletion
from edgespec.server.dialects.openai.requests import CompletionRequest
from edgespec.server.dialects.responses.requests import InputRequest
from edgespec.server.json_body import MOST_GROUPS, MOST_VALUES, WrongBodyError, parsed
from edgespec.server.refusal import LONGEST, Refusal, quoted
from edgespec.server.requests.chat import ChatRequest

MANY = 9000
HI = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("model", "fields"),
    [
        (ChatRequest, {"messages": [0] * MANY}),
        (ChatRequest, {"messages": [{"role": "user", "content": [{}] * MANY}]}),
        (ChatRequest, {"messages": HI, "tools": [{}] * MANY}),
        (ChatRequest, {"messages": HI, "functions": [{}] * MANY}),
        (ChatRequest, {"messages": [{"role": "assistant", "tool_calls": [{}] * MANY}]}),
        (ChatRequest, {"messages": HI, "dry_sequence_breakers": [0] * MANY}),
        (ChatRequest, {"messages": HI, "stop": [0] * MANY}),
        (ChatRequest, {"messages": HI, "documents": [0] * MANY}),
        (CompletionRequest, {"prompt": [-1] * MANY}),
        (CompletionRequest, {"prompt": [{}] * MANY}),
        (CompletionRequest, {"prompt": [[-1] * MANY]}),
        (CompletionRequest, {"prompt": "a", "logit_bias": {str(i): "x" for i in range(40_000)}}),
        (LlamaCompletion, {"prompt": [{}] * MANY}),
        (LlamaCompletion, {"prompt": "a", "logit_bias": [[1]] * MANY}),
        (InfillRequest, {"input_prefix": "", "input_suffix": "", "input_extra": [{}] * MANY}),
        (DetokenizeRequest, {"tokens": [-1] * MANY}),
        (CountRequest, {"messages": [0] * MANY}),
        (CountRequest, {"messages": [{"role": "user", "content": [{}] * MANY}]}),
        (CountRequest, {"messages": HI, "system": [{}] * MANY, "tools": [{}] * MANY}),
        (InputRequest, {"input": [0] * MANY}),
        (InputRequest, {"input": "a", "tools": [{}] * MANY}),
    ],
)  # fmt: skip
def test_a_list_is_validated_to_its_first_wrong_item(model: type[BaseModel], fields: dict[str, Any]) -> None:
    """One error was built for each: a body of 4 MB made a server deaf for 20 seconds."""
    with pytest.raises(ValidationError) as wrong:
        model.model_validate(fields)
    assert wrong.value.error_count() < 20


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ([{}] * (MOST_GROUPS + 1), "more than 10,000 objects"),
        ({"a": {"b": [[]] * MOST_GROUPS}}, "more than 10,000 objects"),
        ([0] * (MOST_VALUES + 1), "262,144 values"),
        ([[0] * 100_000] * 3, "262,144 values"),
    ],
)  # fmt: skip
def test_a_body_of_too_many_parts_is_refused(body: Any, why: str) -> None:
    with pytest.raises(WrongBodyError) as wrong:
        parsed(json.dumps(body).encode())
    assert why in wrong.value.sentence
    assert parsed(json.dumps([0] * MOST_VALUES).encode())
    assert parsed(json.dumps([{}] * (MOST_GROUPS - 1)).encode())


def test_commas_of_a_text_are_no_parts() -> None:
    text = ",\\" * MOST_VALUES
    assert parsed(json.dumps({"prompt": text}).encode()) == {"prompt": text}
    assert parsed(json.dumps({"prompt": text}).encode("utf-16")) == {"prompt": text}


def test_a_text_that_no_context_holds_is_refused_unless_another_model_is_named() -> None:
    """It went through four processes, as often as it was sent, before the last one refused it."""
    for body in ({"prompt": "x" * 101}, {"model": "a", "messages": [{"content": ["é" * 101]}]}):
        with pytest.raises(WrongBodyError) as wrong:
            parsed(json.dumps(body).encode(), 100, ["other"])
        assert "has more than 100 characters" in wrong.value.sentence
        assert wrong.value.param == list(body)[-1] and wrong.value.code == "context_length_exceeded"
    assert parsed(json.dumps({"model": "other", "prompt": "x" * 101}).encode(), 100, ["other"])
    assert parsed(json.dumps({"prompt": ["x" * 100] * 9}).encode(), 100)


def test_a_large_body_is_taken_in_pieces_and_the_engine_is_reported() -> None:
    """A core that was busy with bodies took it from the engine: a stream stopped for 0.3 seconds."""
    told: list[int] = []
    scope = {"type": "http", "app": SimpleNamespace(state=SimpleNamespace(count_large_body=told.append))}

    async def receive() -> dict[str, Any]:
        pieces.pop()
        return {"type": "http.request", "body": b"x" * 2**16, "more_body": bool(pieces)}

    began = time.monotonic()
    for n in (1, 64):
        pieces = [b""] * n
        request = bodies._Read(scope, receive)
        assert len(asyncio.run(request.body())) == 2**16 and told == [1] * (n > 1)
        request.over()
    assert told == [1, -1]
    assert time.monotonic() - began > 0.9 * 2**22 / bodies.PER_S, "it takes its time"


def test_a_reader_whose_answer_nobody_wants_any_more_ends() -> None:
    """Some Pythons tell its end only once its answer has been read: its request waited for ever."""

    async def given_up(process: Process, body: list[bytes]) -> bytes:
        assert process.stdin and process.stdout
        process.stdin.write(b"".join(body))
        process.stdin.close()
        while len(process.stdout._buffer) < 2**17:  # type: ignore[attr-defined]
            await asyncio.sleep(0.01)
        raise TimeoutError

    async def play() -> None:
        async with asyncio.timeout(20):
            body = [json.dumps(["x" * 1000] * 2000).encode()]
            await bodies.read_in_child(body, (None, []), ask=given_up)

    with pytest.raises(Refusal, match="reading the body took more than 30 s"):
        asyncio.run(play())


@posix
@pytest.mark.parametrize(
    ("number", "expected"),
    [(signal.SIGKILL, "was ended from outside: try again"), (signal.SIGXCPU, "took more than 30 s of")],
)
def test_a_reader_that_is_killed_is_no_fault_of_the_body(number: int, expected: str) -> None:
    """It was refused for "more than 10,000 objects", whatever it held."""

    async def killed(process: Process, body: list[bytes]) -> bytes:
        process.send_signal(number)
        return b""

    with pytest.raises(Refusal, match=expected):
        asyncio.run(bodies.read_in_child([b"{}"], (None, []), ask=killed))


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1E+400", "9" * 400 + ".0"])
def test_a_number_without_an_end_is_refused_wherever_it_is(number: str) -> None:
    """In `metadata`, `tool_choice` or `tools` of /v1/responses it was a fault of ours, or sent as JSON."""
    for encoding in ("utf-8", "utf-16", "utf-32"):
        for body in ('{"metadata":{"a":[1,{"b":%s}]}}', '{"tools":[%s]}', "%s"):
            with pytest.raises(WrongBodyError) as wrong:
                parsed((body % number).encode(encoding))
            assert number in wrong.value.sentence or "must be finite" in wrong.value.sentence
    assert parsed(b'{"a":"NaN 1e999","b":1e300,"c":1e-999}') == {"a": "NaN 1e999", "b": 1e300, "c": 0.0}


def test_an_error_quotes_the_beginning_of_what_was_sent() -> None:
    for value in ("x" * 10**6, [{"a": "x" * 10**6}], ["x"] * 10**6, {"x" * 10**6: 1}):
        assert len(quoted(value)) < 210
    for value in ("it's", 1.5, None, [], {}, [1, [2, "a"]], {"a": {"b": []}, "c": True}):
        assert quoted(value) == repr(value)
    error = Refusal(400, f"tool_choice names {'x' * 10**5}: no tool of this name was given").body()["error"]
    assert len(error["message"]) < LONGEST + 10 and error["message"].endswith(
        "no tool of this name was given"
    )


LARGE = b",".join([b"0"] * 200_000)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", b'{"messages":[%s]}' % LARGE),
        ("/v1/messages", b'{"messages":[%s]}' % LARGE),
        ("/v1/responses", b'{"input":[%s]}' % LARGE),
        ("/completion", b'{"prompt":[%s,{}]}' % LARGE),
        ("/v1/completions", b'{"prompt":[{},%s]}' % LARGE),
        ("/v1/responses", b'{"input":"a","metadata":{"a":[%s,1e999]}}' % LARGE),
        ("/v1/completions", b'{"prompt":"%s"' % LARGE),
    ],
)  # fmt: skip
def test_a_large_body_is_refused_as_a_small_one_is(dialects: Served, path: str, body: bytes) -> None:
    refused = dialects.ask(path, body)
    assert refused.status == 400 and len(refused.error["message"]) < 300, refused


def test_messages_that_no_context_holds_are_not_rendered(dialects: Served) -> None:
    messages = [{"role": "user", "content": "x" * 10**6} for _ in range(5)]
    refused = dialects.ask("/v1/chat/completions", {"messages": messages, "max_tokens": 2})
    assert refused.status == 400 and "5,000,020 characters" in refused.error["message"], refused


def test_a_large_body_is_read(dialects: Served) -> None:
    asked = {"messages": HI, "max_tokens": 2, "unknown": "né" * 200_000}
    assert dialects.ask("/v1/chat/completions", asked).status == 200
    counted = dialects.ask("/v1/messages/count_tokens", {"messages": [{**HI[0], "content": "hi " * 100_000}]})
    assert counted.json["input_tokens"] > 100_000
    listed = dialects.ask("/tokenize", {"content": "hi " * 5000, "with_pieces": True}).json["tokens"]
    assert "".join(token["piece"] for token in listed) == "hi " * 5000


@posix
def test_what_reads_a_large_body_ends_when_its_sender_leaves(dialects: Served) -> None:
    def reading() -> list[psutil.Process]:
        return dialects.children("edgespec.server.body_child")

    head = post("/v1/completions", {}, length=30 * 2**20)[:-2]
    with dialects.raw(head + b"[" + b"[0],{}," * (30 * 2**20 // 7)) as connection:
        connection.sendall(b" " * 100)
        until(reading)
        child = reading()[0]
        group = Path(f"/proc/{child.pid}/autogroup")  # or its niceness would mean nothing to other sessions
        until(lambda: not group.exists() or "nice 10" in group.read_text())
        child.suspend()  # it would be done in a second
    until(lambda: not reading())
    assert dialects.chat(max_tokens=2).status == 200
