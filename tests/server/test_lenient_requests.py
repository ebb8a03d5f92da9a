# ruff: noqa: E501
"""Requests as clients that exist send them: nulls, floats, allowed tools, and items that nobody can say."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, ValidationError
from served import Served

from edgespec.server.dialects.anthropic.requests import MessagesRequest
from edgespec.server.dialects.embeddings import EmbeddingRequest, RerankRequest
from edgespec.server.dialects.llama_cpp.requests import (
    InfillRequest,
    LlamaCompletion,
    SlotFile,
    TokenizeRequest,
)
from edgespec.server.dialects.ollama.requests import NamedModel, OllamaChat, OllamaEmbed, OllamaGenerate
from edgespec.server.dialects.openai.requests import CompletionRequest
from edgespec.server.dialects.responses.requests import ResponsesRequest
from edgespec.server.refusal import Refusal
from edgespec.server.requests.chat import ChatRequest

ASKED = [{"role": "user", "content": "Well?"}]
LEAST: list[tuple[type[BaseModel], dict[str, Any]]] = [
    (ChatRequest, {"messages": ASKED}),
    (CompletionRequest, {"prompt": "x"}),
    (MessagesRequest, {"messages": ASKED}),
    (ResponsesRequest, {"input": "x"}),
    (OllamaChat, {"model": "x"}),
    (OllamaGenerate, {"model": "x"}),
    (OllamaEmbed, {}),
    (NamedModel, {"model": "x"}),
    (LlamaCompletion, {"prompt": "x"}),
    (InfillRequest, {"input_prefix": "x", "input_suffix": "y"}),
    (SlotFile, {}),
    (TokenizeRequest, {}),
    (EmbeddingRequest, {"input": "x"}),
    (RerankRequest, {"query": "x"}),
]


def models_of(model: type[BaseModel], seen: set[type[BaseModel]]) -> set[type[BaseModel]]:
    """Returns a model and all that its fields are made of."""
    seen.add(model)
    waiting: list[Any] = [field.annotation for field in model.model_fields.values()]
    while waiting:
        kind = waiting.pop()
        waiting += getattr(kind, "__args__", ())
        if isinstance(kind, type) and issubclass(kind, BaseModel) and kind not in seen:
            models_of(kind, seen)
    return seen


@pytest.mark.parametrize(("model", "least"), LEAST, ids=lambda one: getattr(one, "__name__", ""))
def test_null_is_a_field_that_is_not_given(model: type[BaseModel], least: dict[str, Any]) -> None:
    """LiteLLM sends some; 24 fields that may be left out refused it."""
    for name, field in model.model_fields.items():
        if not field.is_required():
            without = {other: value for other, value in least.items() if other != name}
            given = model.model_validate({**without, field.alias or name: None})
            assert given.model_dump() == model.model_validate(without).model_dump(), name
    for inner in models_of(model, set()):
        optional = {f.alias or n: None for n, f in inner.model_fields.items() if not f.is_required()}
        needed = {f.alias or n for n, f in inner.model_fields.items() if f.is_required()}
        try:
            inner.model_validate(optional)
        except ValidationError as error:
            assert {one["loc"][0] for one in error.errors()} <= needed, inner


def test_nulls_within_a_request(dialects: Served) -> None:
    call = {"id": None, "type": None, "function": {"name": "f", "arguments": None}}
    messages = [*ASKED, {"role": "assistant", "content": None, "tool_calls": [call], "name": None}]
    body = {
        "messages": messages,
        "max_tokens": 1,
        "stream_options": {"include_usage": None},
        "edgespec": None,
    }
    assert dialects.ask("/v1/chat/completions", body).status == 200
    turn = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"function": {"name": "f", "arguments": None}}],
    }
    asked = {"model": "tiny", "messages": [*ASKED, turn], "stream": False, "options": {"num_predict": 1.0}}
    assert dialects.ask("/api/chat", asked).status == 200


WHOLE: list[tuple[type[BaseModel], dict[str, Any]]] = [
    (ChatRequest, {"messages": ASKED, "top_k": 20.0, "seed": 42.0, "max_tokens": 6.0, "n": 1.0, "penalty_last_n": 5.0}),
    (OllamaChat, {"model": "x", "options": {"top_k": 20.0, "num_predict": 6.0, "seed": 42.0, "repeat_last_n": 64.0}}),
    (MessagesRequest, {"messages": ASKED, "max_tokens": 6.0, "top_k": 20.0}),
    (ResponsesRequest, {"input": "x", "max_output_tokens": 6.0}),
    (LlamaCompletion, {"prompt": "x", "n_predict": 6.0, "n_probs": 2.0, "id_slot": -1.0, "mirostat": 0.0}),
    (EmbeddingRequest, {"input": "x", "dimensions": 8.0}),
    (RerankRequest, {"query": "x", "top_n": 1.0}),
]  # fmt: skip


@pytest.mark.parametrize(("model", "given"), WHOLE, ids=lambda one: getattr(one, "__name__", ""))
def test_a_whole_number_may_be_written_as_a_float(model: type[BaseModel], given: dict[str, Any]) -> None:
    """Home Assistant sends `top_k: 20.0`."""
    as_ints = {name: int(one) if isinstance(one, float) else one for name, one in given.items()}
    as_ints.setdefault("x", 1)
    if "options" in given:
        as_ints["options"] = {name: int(one) for name, one in given["options"].items()}
    said, wanted = model.model_validate(given), model.model_validate(as_ints)
    assert said.model_dump_json() == wanted.model_dump_json()
    for wrong in (20.5, True, "20"):
        with pytest.raises(ValidationError):
            ChatRequest.model_validate({"messages": ASKED, "top_k": wrong})


def test_an_empty_stop_is_none() -> None:
    assert not ChatRequest.model_validate({"messages": ASKED, "stop": [""]}).stop
    assert ChatRequest.model_validate({"messages": ASKED, "stop": ["", "x"]}).stop == ["x"]
    assert MessagesRequest.model_validate({"messages": ASKED, "stop_sequences": [""]}).stop_sequences == []
    assert OllamaChat.model_validate({"model": "x", "options": {"stop": ""}}).options.stop is None  # type: ignore[union-attr]


def tools(*names: str) -> Any:
    return [{"type": "function", "function": {"name": name}} for name in names]


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_some_of_the_tools_are_allowed(mode: str) -> None:
    chat = {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools("b")}}
    body = ChatRequest.model_validate({"messages": ASKED, "tools": tools("a", "b"), "tool_choice": chat})
    assert [tool["function"]["name"] for tool in body.usable_tools()] == ["b"] and body.must_call is (
        mode == "required"
    )
    flat = [{"type": "function", "name": name} for name in ("a", "b")]
    choice = {"type": "allowed_tools", "mode": mode, "tools": flat[1:]}
    same = ResponsesRequest.model_validate({"input": "x", "tools": flat, "tool_choice": choice}).as_chat()
    assert [tool["function"]["name"] for tool in same.usable_tools()] == ["b"] and same.must_call is (
        mode == "required"
    )
    with pytest.raises(Refusal, match="'nobody': no tool of this name"):
        chat["allowed_tools"]["tools"] = tools("nobody")  # type: ignore[index]
        ChatRequest.model_validate(
            {"messages": ASKED, "tools": tools("a"), "tool_choice": chat}
        ).usable_tools()


@pytest.mark.parametrize("item", ["item_reference", "local_shell_call", "local_shell_call_output", "mcp_call",
                                  "compaction", "web_search_call", "made_up", ""])  # fmt: skip
def test_an_item_that_nobody_can_say_is_refused_by_name(item: str) -> None:
    """It was dropped silently, a part of the conversation with it."""
    body = ResponsesRequest.model_validate({"input": [*ASKED, {"type": item, "id": "x1"}]})
    with pytest.raises(Refusal, match=f"an item of type '{item}' is not supported") as caught:
        body.as_chat()
    assert caught.value.param == "input" and (item != "item_reference" or "store: false" in str(caught.value))


@pytest.mark.parametrize(("name", "value"), [("conversation", "conv_1"), ("conversation", {"id": "conv_1"}),
                                             ("prompt", {"id": "pmpt_1"}), ("background", True),
                                             ("previous_response_id", "resp_1")])  # fmt: skip
def test_what_would_need_a_store_is_refused_by_name(name: str, value: Any) -> None:
    body = ResponsesRequest.model_validate({"input": "x", name: value})
    with pytest.raises(Refusal, match=f"^{name}: ") as caught:
        body.as_chat()
    assert caught.value.param == name
    ResponsesRequest.model_validate({"input": "x", "background": False}).as_chat()


def test_a_message_that_is_only_the_id_of_a_sound_is_refused() -> None:
    """Its text is at OpenAI alone, so the model would have read an empty message."""
    messages = [*ASKED, {"role": "assistant", "audio": {"id": "audio_1"}}, *ASKED]
    with pytest.raises(Refusal, match="only the id of a sound"):
        [
            message.for_template((), [])
            for message in ChatRequest.model_validate({"messages": messages}).messages
        ]
    with_text = {"role": "assistant", "content": "Well.", "audio": {"id": "audio_1"}}
    assert (
        ChatRequest.model_validate({"messages": [with_text]}).messages[0].for_template((), [])["content"]
        == "Well."
    )
