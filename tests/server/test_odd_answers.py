"""What a model or a client writes that no reader expects: each dialect answers, and what it sends is JSON."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
from late import anthropic, openai
from served import Served

from edgespec.chat.families.known import HERMES
from edgespec.core.values import Round
from edgespec.server.dialects.anthropic.answers import MessageAnswer
from edgespec.server.dialects.llama_cpp.answers import LlamaAnswer
from edgespec.server.dialects.llama_cpp.requests import LlamaCompletion
from edgespec.server.dialects.ollama.answers import OllamaAnswer, encoded
from edgespec.server.dialects.openai.answers import ChatAnswer
from edgespec.server.dialects.responses.answers import ResponseAnswer
from edgespec.server.event_stream import Answerer, event, to_its_end
from edgespec.server.generation import AnswerChoices, ChoiceRound
from edgespec.server.refusal import Refusal
from edgespec.server.requests.chat import ChatRequest
from edgespec.server.turns import TurnReader

ODD = ["[" * 1000, '{"a": NaN}', '{"a": 1e999}', r'{"a": "\ud800"}', '{"a":' * 200, "nonsense", "5", ""]
ASKED = {"role": "user", "content": "What is EdgeSpec?"}


def histories(arguments: str) -> list[tuple[str, dict[str, Any]]]:
    called = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    item = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": arguments}
    messages = [ASKED, {"role": "assistant", "tool_calls": [called]}, {"role": "tool", "tool_call_id": "c1", "content": "ok"}]  # fmt: skip  # noqa: E501
    turns = [ASKED, {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}]  # fmt: skip  # noqa: E501
    few = {"max_tokens": 1}
    return [
        ("/v1/chat/completions", {"messages": messages, **few}),
        ("/apply-template", {"messages": messages}),
        ("/v1/responses", {"input": [ASKED, item], "max_output_tokens": 1}),
        ("/api/chat", {"model": "tiny", "messages": turns, "stream": False, "options": {"num_predict": 1}}),
    ]


@pytest.mark.sample(3)
@pytest.mark.parametrize("arguments", ODD, ids=lambda text: text[:9])
def test_a_call_of_the_history_may_have_any_arguments(dialects: Served, arguments: str) -> None:
    """A thousand brackets were a 500 in four routes."""
    for path, body in histories(arguments):
        answer = dialects.ask(path, body)
        assert answer.status == 200, (path, answer.body)


class Generated(AnswerChoices):
    """A generation of one text. failing: what comes behind it."""

    def __init__(self, text: str, failing: Exception | None = None) -> None:
        from edgespec.server.choice_results import ChoiceResults

        self.text, self.failing, self.failed = text, failing, None
        self.choices = [ChoiceResults()]

    async def rounds(self) -> AsyncIterator[ChoiceRound]:
        yield ChoiceRound(0, Round((1,), self.text, 0, 0, (), None if self.failing else "stop"), ())
        if self.failing:
            raise self.failing

    def usage(self) -> dict[str, Any]:
        return {}


def reader() -> TurnReader:
    return TurnReader(HERMES.parser({"f": {}}))


def answerers() -> dict[str, tuple[Answerer, Answerer]]:
    """Returns two of each dialect: one streams, one answers in one piece."""
    chat = ChatRequest.model_validate({"messages": [ASKED]})
    text = LlamaCompletion.model_validate({"prompt": "x"})

    def one(name: str) -> Answerer:
        made: dict[str, Any] = {
            "chat": lambda: ChatAnswer("m", 0.1, chat, turns=[reader()]),
            "anthropic": lambda: MessageAnswer("m", reader(), "r1"),
            "responses": lambda: ResponseAnswer("m", reader(), {}, {}, 0.1),
            "ollama": lambda: OllamaAnswer("m", reader(), True, 0.0, 0.0, 0.1),
            "llama.cpp": lambda: LlamaAnswer("m", 0.1, 100, text, [], [], False),
        }
        return cast(Answerer, made[name]())

    return {
        name: (one(name), one(name)) for name in ("chat", "anthropic", "responses", "ollama", "llama.cpp")
    }


def sent(answerer: Answerer, generation: AnswerChoices) -> list[bytes]:
    async def all_of_it() -> list[bytes]:
        found = [one async for one in to_its_end(answerer, generation, "r1")]
        return [one if isinstance(one, bytes) else one.encode() for one in found]

    return asyncio.run(all_of_it())


def data(events: list[bytes]) -> list[Any]:
    lines = [line for one in events for line in one.decode().splitlines()]
    texts = [line.removeprefix("data: ") for line in lines if line.startswith(("data: ", "{"))]
    return [json.loads(text, parse_constant=pytest.fail) for text in texts if text != "[DONE]"]


@pytest.mark.parametrize("arguments", ODD, ids=lambda text: text[:9])
@pytest.mark.parametrize("name", ["chat", "anthropic", "responses", "ollama"])
def test_a_call_that_a_model_writes_may_have_any_arguments(name: str, arguments: str) -> None:
    """`NaN`, `1e999` and half a character were a 500, and a streamed /api/chat sent what was no JSON."""
    text = f'<tool_call>{{"name": "f", "arguments": {arguments or "{}"}}}</tool_call>'
    before = f'<tool_call>{{"arguments": {arguments or "{}"}, "name": "f"}}</tool_call>'
    for said in (text, before):
        streamed, whole = answerers()[name]
        assert data(sent(streamed, Generated(said)))
        answer = asyncio.run(whole.whole(Generated(said)))
        json.dumps(answer, allow_nan=False, ensure_ascii=False).encode()


@pytest.mark.parametrize("failing", [KeyError("x"), Refusal(503, "the engine ended")], ids=repr)
@pytest.mark.parametrize("name", ["chat", "anthropic", "responses", "ollama", "llama.cpp"])
def test_whatever_fails_ends_a_stream_with_its_dialects_error(name: str, failing: Exception) -> None:
    """An exception in the middle cut the stream off, and clients took it for the end of the answer."""
    generation = Generated("Well", failing)
    last = sent(answerers()[name][0], generation)[-1]
    [error] = data([last])
    assert "fault of EdgeSpec's own (KeyError)" in str(error) or "the engine ended" in str(error)
    named = {"anthropic": b"event: error", "responses": b"event: response.failed"}.get(name, b"")
    assert last.startswith(named) and b"data: " in last or name == "ollama"
    if name == "responses":
        assert error["response"]["status"] == "failed" and error["response"]["error"]["message"]
    else:
        assert error["error"]


def test_half_a_character_is_escaped_in_a_stream() -> None:
    assert json.loads(event({"a": "\ud800"}).encode().decode().removeprefix("data: ")) == {"a": "\ud800"}
    assert json.loads(encoded({"a": "\ud800"})) == {"a": "\ud800"}


def test_the_clients_raise_what_a_stream_failed_of() -> None:
    """Anthropic's ignores an error event without its name."""
    import httpx2 as httpx

    for name in ("anthropic", "chat"):
        body = b"".join(sent(answerers()[name][0], Generated("Well", KeyError("x"))))
        transport = httpx.MockTransport(
            lambda _, body=body: httpx.Response(
                200, content=body, headers={"content-type": "text/event-stream"}
            )
        )
        with httpx.Client(transport=transport) as http:
            if name == "anthropic":
                with pytest.raises(anthropic.APIStatusError, match="own"):
                    list(anthropic.Anthropic(api_key="x", http_client=http).messages.create(model="m", max_tokens=1, messages=[cast(Any, ASKED)], stream=True))  # fmt: skip  # noqa: E501
            else:
                with pytest.raises(openai.APIError, match="own"):
                    list(openai.OpenAI(api_key="x", http_client=http).chat.completions.create(model="m", messages=[cast(Any, ASKED)], stream=True))  # fmt: skip  # noqa: E501
