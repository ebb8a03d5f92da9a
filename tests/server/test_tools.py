"""Tools as clients of chat completions use them: the `openai` package, an assistant's requests, and `llm`."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from late import openai
from pydantic import BaseModel
from served import Served

from edgespec.chat.conversation import Composed
from edgespec.chat.families.deltas import Content
from edgespec.chat.families.known import HERMES
from edgespec.core.values import Round
from edgespec.server.dialects.openai.answers import ChatAnswer
from edgespec.server.generation import AnswerChoices, ChoiceRound
from edgespec.server.refusal import Refusal
from edgespec.server.requests.chat import ChatRequest
from edgespec.server.turns import TurnReader

ASKED: list[Any] = [{"role": "user", "content": "What does json.dumps do?"}]


def tool(name: str, **properties: Any) -> Any:
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    function = {"name": name, "description": "Returns something.", "parameters": schema}
    return {"type": "function", "function": function}


DOCS = tool("search_docs", query={"type": "string"})
MODE = tool(
    "set_mode", mode={"enum": ["fast", "slow"]}, level={"type": "integer", "minimum": 0, "maximum": 9}
)


@pytest.fixture(scope="module")
def client(dialects: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=dialects.url, api_key="none", max_retries=0) as client:
        yield client


def ask(client: openai.OpenAI, **fields: Any) -> Any:
    wanted = {
        "model": "tiny",
        "messages": ASKED,
        "tools": [DOCS],
        "temperature": 0,
        "max_tokens": 80,
        **fields,
    }
    return client.chat.completions.create(**wanted)


def test_a_model_calls_where_it_wants_to(client: openai.OpenAI) -> None:
    """The embedded pair has learned to look things up, and how a call is written."""
    choice = ask(client).choices[0]
    [call] = choice.message.tool_calls
    assert choice.finish_reason == "tool_calls" and choice.message.content is None
    assert call.function.name == "search_docs" and json.loads(call.function.arguments)["query"]
    assert call.id.startswith("call_") and call.type == "function"


def test_a_streamed_call_comes_in_pieces_and_is_the_same(client: openai.OpenAI) -> None:
    chunks = [chunk for chunk in ask(client, stream=True) if chunk.choices]
    deltas = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or ()]
    assert deltas[0].id and deltas[0].function.name == "search_docs" and not deltas[0].function.arguments
    assert all(delta.index == 0 and delta.id is None for delta in deltas[1:]) and len(deltas) > 2
    text = "".join(delta.function.arguments for delta in deltas)
    assert text == ask(client).choices[0].message.tool_calls[0].function.arguments
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_the_package_puts_a_streamed_call_together(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(
        model="tiny", messages=ASKED, tools=[DOCS], temperature=0, max_tokens=80
    ) as stream:
        kinds = {event.type for event in stream}
        message = stream.get_final_completion().choices[0].message
    assert "tool_calls.function.arguments.done" in kinds
    assert message.tool_calls and message.tool_calls[0].function.name == "search_docs"


def test_the_async_client_gets_calls_too(dialects: Served) -> None:
    async def ask() -> Any:
        async with openai.AsyncOpenAI(base_url=dialects.url, api_key="none", max_retries=0) as client:
            return await client.chat.completions.create(
                model="x", messages=ASKED, tools=[DOCS], temperature=0, max_tokens=80
            )

    assert asyncio.run(ask()).choices[0].message.tool_calls


@pytest.mark.parametrize("seed", range(3))
def test_a_named_tool_is_called_with_what_its_schema_allows(client: openai.OpenAI, seed: int) -> None:
    """Whatever the model thinks of it."""
    named: Any = {"type": "function", "function": {"name": "set_mode"}}
    fields = {
        "tools": [DOCS, MODE],
        "tool_choice": named,
        "temperature": 0.8,
        "seed": seed,
        "max_tokens": 200,
    }
    choice = ask(client, **fields).choices[0]
    [call] = choice.message.tool_calls
    assert call.function.name == "set_mode" and choice.finish_reason == "tool_calls"
    pieces = [
        delta.function.arguments
        for chunk in ask(client, **fields, stream=True)
        for delta in (chunk.choices[0].delta.tool_calls or () if chunk.choices else ())
    ]
    for said in (call.function.arguments, "".join(piece or "" for piece in pieces)):
        arguments = json.loads(said)
        assert arguments["mode"] in ("fast", "slow") and isinstance(arguments["level"], int)


class Point(BaseModel):
    x: Literal[1, 2]


class Line(BaseModel):
    start: Point
    end: Point


def test_a_tools_schema_may_refer_to_itself_by_its_name(client: openai.OpenAI) -> None:
    """A schema with an absolute `$id` was refused: nothing of that name was found."""
    id = "https://example.com/tool.json"
    schema = {
        "$id": id,
        "type": "object",
        "properties": {"p": {"$ref": f"{id}#/$defs/P"}},
        "required": ["p"],
        "$defs": {"P": {"enum": ["x", "y"]}},
    }
    tools = [
        {"type": "function", "function": {"name": name, "parameters": schema}} for name in ("one", "other")
    ]
    [call] = ask(client, tools=tools, tool_choice="required").choices[0].message.tool_calls
    assert json.loads(call.function.arguments)["p"] in ("x", "y")


@pytest.mark.parametrize("draft", ["07", "04", None])
def test_references_of_a_tools_schema_lead_into_that_schema(client: openai.OpenAI, draft: str | None) -> None:
    """What pydantic writes of nested models was refused where a call had to be made: within the schema of the
    calls, '#' was that schema, and a tool that refers to itself so got another call in place of a child."""
    line: Any = openai.pydantic_function_tool(Line, name="draw")
    schema = json.loads(json.dumps(line["function"]["parameters"]).replace("$defs", "definitions"))
    if draft:
        schema["$schema"] = f"http://json-schema.org/draft-{draft}/schema#"
        line["function"]["parameters"] = schema
    tree = tool("grow", v={"const": 7}, child={"$ref": "#"})
    named: Any = {"type": "function", "function": {"name": "draw"}}
    [call] = ask(client, tools=[tree, line], tool_choice=named).choices[0].message.tool_calls
    assert Line.model_validate_json(call.function.arguments)
    [call] = ask(client, tools=[tree], tool_choice="required", seed=1).choices[0].message.tool_calls
    assert call.function.arguments.count('"v"') > 1  # and so on; the length limit may cut it off
    assert '"name"' not in call.function.arguments


def test_some_call_can_be_required_and_all_be_forbidden(client: openai.OpenAI) -> None:
    hello = [{"role": "user", "content": "What is EdgeSpec?"}]
    free = ask(client, messages=hello, tools=[MODE], tool_choice="none")
    assert free.choices[0].message.content.startswith("EdgeSpec") and not free.choices[0].message.tool_calls
    required = ask(client, messages=hello, tools=[DOCS, MODE], tool_choice="required", max_tokens=200)
    [call] = required.choices[0].message.tool_calls
    assert call.function.name in ("search_docs", "set_mode") and isinstance(
        json.loads(call.function.arguments), dict
    )


def test_a_constrained_calls_that_is_cut_off_leaves_no_text(client: openai.OpenAI) -> None:
    """The beginning of its JSON was the answer's text."""
    for most in (1, 2, 4):
        [choice] = ask(client, tools=[DOCS], tool_choice="required", max_tokens=most).choices
        assert not choice.message.content and choice.finish_reason == "length"


def test_speculation_goes_on_under_a_constrained_calls(client: openai.OpenAI) -> None:
    """A seed gives the same call with and without a draft."""
    fields = {
        "tool_choice": "required",
        "tools": [MODE, DOCS],
        "seed": 5,
        "temperature": 1,
        "max_tokens": 120,
    }
    drafted = ask(client, **fields)
    plain = ask(client, **fields, extra_body={"edgespec": {"speculation": False}})
    assert (
        drafted.choices[0].message.tool_calls[0].function == plain.choices[0].message.tool_calls[0].function
    )
    assert plain.timings["draft_n"] == 0


def test_results_of_tools_go_back_in(client: openai.OpenAI) -> None:
    made = ask(client).choices[0].message
    result = {"role": "tool", "tool_call_id": made.tool_calls[0].id, "content": "Serialize obj to JSON."}
    messages = [*ASKED, made.model_dump(exclude_none=True), result]
    got = ask(client, messages=messages, max_tokens=30)
    assert got.usage.prompt_tokens > ask(client).usage.prompt_tokens + 20 and got.choices[0].finish_reason


def test_the_prompt_is_shown_to_who_asks(client: openai.OpenAI) -> None:
    shown = ask(client, extra_body={"verbose": True}, max_tokens=2).model_extra["__verbose"]["prompt"]
    assert "You can call these tools:" in shown and shown.endswith("<|im_start|>assistant\n")
    assert "__verbose" not in ask(client, max_tokens=2).model_extra


def test_mistakes_about_tools_are_named(client: openai.OpenAI) -> None:
    nobody: Any = {"type": "function", "function": {"name": "nobody"}}
    for fields, word in (
        ({"tool_choice": nobody}, "nobody"),
        ({"tool_choice": "required", "tools": []}, "tool_choice"),
        ({"tool_choice": "sometimes"}, "sometimes"),
        ({"tool_choice": {"type": "custom", "custom": {"name": "x"}}}, "type 'custom' is not supported"),
        ({"tools": [{"type": "function", "function": {"name": ""}}]}, "name"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"function": {}}]}]}, "tool_calls"),
        ({"add_generation_prompt": True, "continue_final_message": True}, "continue_final_message"),
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            ask(client, extra_body=fields)
        assert word in str(caught.value), fields


def test_thoughts_are_told_apart_from_words() -> None:
    """The embedded pair does not think, so rounds stand in for a model that does."""
    composed = Composed("<think>", HERMES, True, {})
    rounds = [Round((1, 2), "Hm, let", 0, 0, ("target",)), Round((3,), " me.\n</think>\n\nYes", 0, 0, ()),
              Round((4,), ".", 0, 0, (), "stop")]  # fmt: skip
    body = ChatRequest.model_validate({"messages": [{"role": "user", "content": "Well?"}]})
    answer = ChatAnswer("m", 0.1, body, turns=[TurnReader(composed.parser(governed=True))])
    chunks = [delta["delta"] for i in rounds for delta in answer._parts(ChoiceRound(0, i, ()))]
    assert "".join(chunk.get("reasoning_content", "") for chunk in chunks) == "Hm, let me."
    assert "".join(chunk.get("content", "") for chunk in chunks) == "Yes."
    assert answer.turns[0].reasoning_tokens == 3  # more of the one that tells both is a thought

    class Counted(AnswerChoices):
        def __init__(self) -> None: ...

        def usage(self) -> dict[str, Any]:
            return {"completion_tokens": 4}

    details = {"completion_tokens_details": {"reasoning_tokens": 3}}
    assert answer._usage(Counted()) == {"completion_tokens": 4, **details}
    message = answer._content(0, "")["message"]
    assert message == {"role": "assistant", "content": "Yes.", "reasoning_content": "Hm, let me."}
    together = TurnReader(composed.parser(governed=True), apart=False)
    text = [delta for i in rounds for delta in together.feed(i)]
    assert all(isinstance(delta, Content) for delta in text)


@pytest.mark.slow
def test_llm_talks_to_it(dialects: Served, home: Path) -> None:
    """Simon Willison's `llm`, with the model file that its documentation describes."""
    (home / "extra-openai-models.yaml").write_text(
        f"- model_id: edgespec\n  model_name: tiny\n  api_base: {dialects.url}\n  supports_tools: true\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "llm", "-m", "edgespec", "-n", "-o", "temperature", "0", "What is EdgeSpec?"],
        env={**os.environ, "LLM_USER_PATH": str(home), "OPENAI_API_KEY": "none"},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("EdgeSpec is speculative decoding")


def test_the_first_limit_of_tokens_counts() -> None:
    """n_predict 0 beside max_completion_tokens only read the prompt, though an answer was asked for."""

    def asked(**fields: int) -> ChatRequest:
        return ChatRequest.model_validate({"messages": [{"role": "user", "content": "Well?"}], **fields})

    assert asked(max_completion_tokens=5, n_predict=0).limit() == 5
    assert not asked(max_completion_tokens=5, n_predict=0).warms_up
    assert asked(n_predict=0).warms_up and asked(n_predict=0).limit() == 1
    assert asked(max_tokens=-1, n_predict=3).limit() is None and asked(max_tokens=-1).says_limit
    assert not asked().says_limit
    with pytest.raises(Refusal, match="max_tokens is 0"):
        asked(max_tokens=0).limit()
