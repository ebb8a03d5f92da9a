"""Anthropic's messages as the `anthropic` package uses them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from late import anthropic
from served import Served

HELLO: list[Any] = [{"role": "user", "content": "What is EdgeSpec?"}]
GREEDY: dict[str, Any] = {"extra_body": {"temperature": 0}}
DOCS = {
    "name": "search_docs",
    "description": "Returns the docstring of a Python object.",
    "input_schema": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
}


@pytest.fixture(scope="module")
def client(dialects: Served) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(
        base_url=dialects.url.removesuffix("/v1"), api_key="none", max_retries=0
    ) as client:
        yield client


def create(client: anthropic.Anthropic, **fields: Any) -> Any:
    return client.messages.create(
        **{"model": "tiny", "max_tokens": 60, "messages": HELLO, **GREEDY, **fields}
    )


def events(server: Served, **fields: Any) -> list[dict[str, Any]]:
    asked = {"max_tokens": 60, "messages": HELLO, "stream": True, "temperature": 0, **fields}
    lines = server.ask("/v1/messages", asked).body.decode().splitlines()
    return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]


def test_a_message_has_text_and_usage(client: anthropic.Anthropic) -> None:
    got = create(client)
    assert got.content[0].text.startswith("EdgeSpec is speculative decoding")
    assert got.type == "message" and got.role == "assistant" and got.model == "tiny"
    assert got.stop_reason == "end_turn" and got.stop_sequence is None
    assert got._request_id.startswith("req_")  # from a header of its own, which was not sent
    assert got.usage.input_tokens + got.usage.cache_read_input_tokens == 12 and got.usage.output_tokens > 20


def test_a_stream_is_what_the_package_puts_together(client: anthropic.Anthropic, dialects: Served) -> None:
    with client.messages.stream(model="tiny", max_tokens=60, messages=HELLO, **GREEDY) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == create(client).content[0].text and final.stop_reason == "end_turn"
    assert final.usage.output_tokens > 20
    kinds = [event["type"] for event in events(dialects)]
    assert kinds[:3] == ["message_start", "ping", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]


def test_the_async_client_streams_too(dialects: Served) -> None:
    async def ask() -> str:
        root = dialects.url.removesuffix("/v1")
        async with anthropic.AsyncAnthropic(base_url=root, api_key="none", max_retries=0) as client:
            async with client.messages.stream(model="x", max_tokens=60, messages=HELLO, **GREEDY) as stream:
                return "".join([text async for text in stream.text_stream])

    assert asyncio.run(ask()).startswith("EdgeSpec is")


def test_limits_and_stops_are_told_apart(client: anthropic.Anthropic) -> None:
    assert create(client, max_tokens=5).stop_reason == "max_tokens"
    stopped = create(client, stop_sequences=["decoding"])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "decoding")
    assert stopped.content[0].text == "EdgeSpec is speculative "


def test_a_tool_is_called_and_answered(client: anthropic.Anthropic, dialects: Served) -> None:
    asked = [{"role": "user", "content": "What does json.dumps do?"}]
    got = create(client, messages=asked, tools=[DOCS])
    [call] = [block for block in got.content if block.type == "tool_use"]
    assert got.stop_reason == "tool_use" and call.id.startswith("toolu_") and isinstance(call.input, dict)
    received = events(dialects, messages=asked, tools=[DOCS])
    pieces = [
        e["delta"]["partial_json"] for e in received if e.get("delta", {}).get("type") == "input_json_delta"
    ]
    assert json.loads("".join(pieces)) == call.input
    result = {
        "type": "tool_result",
        "tool_use_id": call.id,
        "content": [{"type": "text", "text": "To JSON."}],
    }
    turns = [*asked, {"role": "assistant", "content": got.content},
             {"role": "user", "content": [result, {"type": "text", "text": "Well?"}]}]  # fmt: skip
    answered = create(client, messages=turns, tools=[DOCS], max_tokens=30)
    assert answered.content and answered.usage.output_tokens > 0


def test_tokens_are_counted_with_everything_that_is_in_the_prompt(client: anthropic.Anthropic) -> None:
    def count(**fields: Any) -> int:
        return client.messages.count_tokens(**{"model": "x", "messages": HELLO, **fields}).input_tokens

    assert count() == 12
    two = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    joined = [{"role": "user", "content": "a\nb"}]
    assert count(messages=[{"role": "user", "content": two}]) == count(messages=joined)
    assert count(system="You are brief.") > 15 and count(tools=[DOCS]) > 60
    blocks = [{"type": "text", "text": "You are brief."}]
    assert count(system=blocks) == count(system="You are brief.")


def test_a_stamp_that_changes_does_not_spoil_the_cache(client: anthropic.Anthropic) -> None:
    def stamped(fields: str) -> Any:
        header = f"x-anthropic-billing-header: {fields}You are brief and kind to all."
        return create(client, system=header, max_tokens=4)

    stamped("cc_version=2.1.100.7b4; cc_entrypoint=cli; cch=a5145;")
    for fields in ("cc_version=2.1.100.01c; cch=00b7f;", "cc_version=2.1.300.8ab; cc_turn_origin=user;"):
        got = stamped(fields)
        assert got.usage.input_tokens <= 2
        assert got.edgespec["normalized"] == ["Claude Code: x-anthropic-billing-header"]


def test_a_prompt_that_must_call_is_counted_as_it_is_read(dialects: Served) -> None:
    asked = {"messages": [{"role": "user", "content": "Well?"}], "tools": [DOCS]}
    for choice in ("auto", "any", "none"):
        body = {**asked, "tool_choice": {"type": choice}}
        usage = dialects.ask("/v1/messages", {**body, "max_tokens": 1}).json["usage"]
        counted = dialects.ask("/v1/messages/count_tokens", body).json["input_tokens"]
        assert counted == usage["input_tokens"] + usage["cache_read_input_tokens"]


def test_a_found_page_is_in_the_prompt(dialects: Served) -> None:
    """`search_result` blocks were dropped silently."""
    page = {
        "type": "search_result",
        "source": "https://example.com/page",
        "title": "A page",
        "content": [{"type": "text", "text": "zqfoundqz " * 50}],
        "citations": {"enabled": True},
    }
    tool = {"type": "tool_reference", "tool_name": "search_docs"}

    def count(*blocks: Any) -> int:
        body = {"messages": [{"role": "user", "content": [*blocks, {"type": "text", "text": "Well?"}]}]}
        return int(dialects.ask("/v1/messages/count_tokens", body).json["input_tokens"])

    assert count(page) > count() + 100 and count(tool) > count()
    result = {"type": "tool_result", "tool_use_id": "t", "content": [page]}
    assert count(result) > count() + 100


def test_mistakes_have_anthropics_shape(client: anthropic.Anthropic, dialects: Served) -> None:
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "x"}}
    for fields, word in (
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "king", "content": "x"}]}, "king"),
        ({"messages": [{"role": "user", "content": [picture]}]}, "image input is not supported"),
        ({"tool_choice": {"type": "tool"}, "tools": [DOCS]}, "tool_choice"),
        ({"messages": [{"role": "user", "content": "word " * 3000}]}, "prompt is too long: 30"),
        ({"messages": [{"role": "user", "content": "word " * 3000}]}, " tokens > 2048 maximum"),
    ):
        with pytest.raises(anthropic.BadRequestError) as caught:
            create(client, **fields)
        body: Any = caught.value.body
        assert body["request_id"] == caught.value.response.headers["request-id"]
        assert body["type"] == "error" and body["error"]["type"] == "invalid_request_error"
        assert word in body["error"]["message"], fields
    assert dialects.ask("/v1/messages", b"{").json["type"] == "error"
    assert dialects.ask("/v1/messages").json["error"]["type"] == "invalid_request_error"  # GET
