"""OpenAI's Responses API as the `openai` package uses it, and as an assistant of OpenAI's does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from late import openai
from served import Served

HELLO = "What is EdgeSpec?"
GREEDY: dict[str, Any] = {"model": "tiny", "temperature": 0}
DOCS = {
    "type": "function",
    "name": "search_docs",
    "description": "Returns the docstring of a Python object.",
    "parameters": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
    "strict": False,
}


@pytest.fixture(scope="module")
def client(dialects: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=dialects.url, api_key="none", max_retries=0) as client:
        yield client


def create(client: openai.OpenAI, **fields: Any) -> Any:
    return client.responses.create(**{"input": HELLO, **GREEDY, **fields})


def events(server: Served, **fields: Any) -> list[dict[str, Any]]:
    body = server.ask("/v1/responses", {"input": HELLO, "stream": True, "temperature": 0, **fields}).body
    lines = body.decode().splitlines()
    return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]


def test_a_response_has_a_message_and_its_usage(client: openai.OpenAI) -> None:
    got = create(client)
    assert got.output_text.startswith("EdgeSpec is speculative decoding")
    assert got.status == "completed" and got.model == "tiny" and got.id.startswith("resp_")
    assert [item.type for item in got.output] == ["message"] and got.output[0].id.startswith("msg_")
    assert got.usage.input_tokens == 12 and got.usage.total_tokens == 12 + got.usage.output_tokens


def test_a_stream_tells_of_the_prompt_and_of_the_speed_where_that_is_asked_for(dialects: Served) -> None:
    received = events(dialects, return_progress=True, timings_per_token=True, max_output_tokens=4)
    [*_, last] = [event for event in received if "prompt_progress" in event]
    assert last["type"] == "response.in_progress" and last["prompt_progress"]["processed"] == 12
    texts = [event for event in received if event["type"] == "response.output_text.delta"]
    assert texts and all(event["timings"]["prompt_n"] >= 1 for event in texts)


def test_a_stream_is_what_the_package_puts_together(client: openai.OpenAI) -> None:
    with client.responses.stream(input=HELLO, **GREEDY) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert final.output_text == create(client).output_text
    assert kinds[:2] == ["response.created", "response.in_progress"] and kinds[-1] == "response.completed"
    assert {"response.output_item.added", "response.output_text.delta", "response.output_item.done"} <= set(
        kinds
    )


def test_events_are_numbered_and_places_are_named(dialects: Served) -> None:
    received = events(dialects)
    assert [event["sequence_number"] for event in received] == list(range(len(received)))
    assert all(event["output_index"] == 0 for event in received if "output_index" in event)
    [done] = [event for event in received if event["type"] == "response.output_text.done"]
    text = "".join(event["delta"] for event in received if event["type"] == "response.output_text.delta")
    assert done["text"] == text and received[-1]["response"]["output"][0]["content"][0]["text"] == text
    assert received[-1]["timings"]["predicted_n"] == received[-1]["response"]["usage"]["output_tokens"]


def test_a_call_is_made_and_answered(client: openai.OpenAI, dialects: Served) -> None:
    """The embedded pair has learned to call tools, if not which."""
    asked = {"role": "user", "content": "What does json.dumps do?"}
    got = create(client, input=[asked], tools=[DOCS])
    [call] = got.output
    assert call.type == "function_call" and call.call_id and isinstance(json.loads(call.arguments), dict)
    received = events(dialects, input=[asked], tools=[DOCS])
    pieces = [e["delta"] for e in received if e["type"] == "response.function_call_arguments.delta"]
    assert "".join(pieces) == call.arguments and pieces
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "Serialize obj to JSON."}
    items = [asked, call.model_dump(exclude_none=True), output]
    answered = create(client, input=items, tools=[DOCS], max_output_tokens=40)
    assert answered.output and answered.usage.input_tokens > got.usage.input_tokens


def test_instructions_and_earlier_items_are_in_the_prompt(client: openai.OpenAI, dialects: Served) -> None:
    def count(**fields: Any) -> int:
        return int(
            dialects.ask("/v1/responses/input_tokens", {"input": HELLO, **fields}).json["input_tokens"]
        )

    plain = count()
    assert plain == create(client).usage.input_tokens
    assert count(instructions="Be brief and kind.") > plain + 5
    thought = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]}
    said = {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "Something."}],
    }
    items = [
        {"role": "developer", "content": "Be brief."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": HELLO}]},
        thought, said, {"role": "user", "content": "And?"},
    ]  # fmt: skip
    assert count(input=items) > plain + 10


def test_an_answer_cut_short_is_incomplete(client: openai.OpenAI, dialects: Served) -> None:
    got = create(client, max_output_tokens=5)
    assert got.status == "incomplete" and got.incomplete_details.reason == "max_output_tokens"
    assert got.usage.output_tokens == 5
    assert events(dialects, max_output_tokens=5)[-1]["type"] == "response.incomplete"


def test_tools_of_an_assistant_are_taken_as_they_come(dialects: Served) -> None:
    """Codex CLI sends custom tools, families of functions, and what only OpenAI runs: none is an error."""
    grammar = {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"}
    tools = [
        DOCS,
        {"type": "custom", "name": "apply_patch", "description": "Edits files.", "format": grammar},
        {"type": "namespace", "name": "mcp__docs", "tools": [{**DOCS, "name": "search_docs"}]},
        {"type": "web_search", "external_web_access": True},
        {"type": "image_generation", "output_format": "png"},
        {"type": "local_shell"},
    ]
    patched = {"type": "custom_tool_call", "call_id": "c1", "name": "apply_patch", "input": "*** Begin Patch"}
    done = {"type": "custom_tool_call_output", "call_id": "c1", "output": "Done!"}
    asked = {
        "type": "message",
        "role": "user",
        "content": [{"type": "input_text", "text": "What does json.dumps do?"}],
    }
    said = events(
        dialects, input=[asked, patched, done, asked], tools=tools, tool_choice="auto", store=False,
        include=["reasoning.encrypted_content"], prompt_cache_key="x", parallel_tool_calls=False,
        reasoning={"effort": "medium", "summary": "auto"}, instructions="You are an agent.",
        max_output_tokens=60,
    )  # fmt: skip
    assert said[-1]["type"] in ("response.completed", "response.incomplete")
    [called] = output(dialects, asked, tools[2])
    assert (called["type"], called["name"], called["namespace"]) == (
        "function_call",
        "search_docs",
        "mcp__docs",
    )
    [custom] = output(dialects, asked, {"type": "custom", "name": "search_docs"})
    assert custom["type"] == "custom_tool_call" and custom["input"]


def output(server: Served, asked: Any, tool: Any) -> Any:
    return events(server, input=[asked], tools=[tool], max_output_tokens=60)[-1]["response"]["output"]


def test_mistakes_are_named(client: openai.OpenAI) -> None:
    for fields, word in (
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"input": [{"role": "king", "content": "x"}]}, "king"),
        ({"input": []}, "input has no message"),  # it said "messages is []", a field that was not sent
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "image"),
        ({"temperature": "hot"}, "hot"),
        ({"text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": 7}}}}, "schema"),
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            create(client, **fields)
        assert word in str(caught.value), fields
