"""The form of an answer, as real clients ask for it: the `openai` package and what vLLM's clients send."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import jsonschema
import pytest
from late import anthropic, openai
from pydantic import BaseModel
from served import Served

WANTED: list[Any] = [{"role": "user", "content": "Describe a list"}]
GBNF = 'root ::= "a" [0-9]{3} ("x" | "yy")'


class Tool(BaseModel):
    """What `.parse()` is to return."""

    name: Literal["hammer", "saw", "drill"]
    sizes: list[Literal[1, 2, 3]]
    owner: Literal["Ann", "Bob"] | None


@pytest.fixture(scope="module")
def client(dialects: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=dialects.url, api_key="none", max_retries=0) as client:
        yield client


def answer_of(client: openai.OpenAI, **fields: Any) -> str:
    extra = {
        name: fields.pop(name) for name in list(fields) if name not in ("response_format", "seed", "stream")
    }
    fields = {"model": "tiny", "messages": WANTED, "seed": 1, "max_tokens": 300, **fields}
    got = client.chat.completions.create(**fields, extra_body=extra)
    assert got.choices[0].finish_reason == "stop"
    return str(got.choices[0].message.content)


def test_parse_returns_the_class_that_was_asked_for(client: openai.OpenAI) -> None:
    for seed in range(4):
        got = client.chat.completions.parse(
            model="tiny", messages=WANTED, response_format=Tool, seed=seed, max_tokens=400, temperature=1.0
        )
        assert isinstance(got.choices[0].message.parsed, Tool) and got.choices[0].finish_reason == "stop"


def test_a_stream_is_parsed_as_well(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(
        model="tiny", messages=WANTED, response_format=Tool, seed=3, max_tokens=400
    ) as stream:
        for _ in stream:
            pass
        assert isinstance(stream.get_final_completion().choices[0].message.parsed, Tool)


def test_four_forms_at_once_are_each_kept_to(dialects: Served) -> None:
    forms = {
        "[0-9]{20,30}": {"regex": "[0-9]{20,30}"},
        "(yes|no|perhaps)": {"guided_choice": ["yes", "no", "perhaps"]},
        "a[0-9]{3}(x|yy)": {"grammar": GBNF},
        "[a-f]{30}": {"structured_outputs": {"regex": "[a-f]{30}"}},
    }

    async def ask(client: openai.AsyncOpenAI, form: dict[str, Any], seed: int) -> str:
        got = await client.chat.completions.create(
            model="tiny", messages=WANTED, seed=seed, max_tokens=200, temperature=1.2, extra_body=form
        )
        return str(got.choices[0].message.content)

    async def all_of_them() -> list[tuple[str, str]]:
        async with openai.AsyncOpenAI(base_url=dialects.url, api_key="none", max_retries=0) as client:
            asked = [
                (expression, ask(client, form, i)) for i in range(3) for expression, form in forms.items()
            ]
            reply = await asyncio.gather(*(answer for _, answer in asked))
            return list(zip([expression for expression, _ in asked], reply, strict=True))

    for expression, text in asyncio.run(all_of_them()):
        assert re.fullmatch(expression, text), (expression, text)


@pytest.mark.parametrize(
    "form",
    [
        {"response_format": {"type": "json_object"}},
        {"response_format": {"type": "json_object", "schema": {"enum": [{"k": 1}]}}},
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": {"const": {"k": 1}}},
            }
        },
        {"json_schema": {"const": {"k": 1}}},
        {"structured_outputs": {"json": {"const": {"k": 1}}}},
        {"structured_outputs": {"json": '{"const": {"k": 1}}'}},
        {"structured_outputs": {"json_object": True}},
        {"guided_json": {"const": {"k": 1}}},
        {"guided_grammar": 'root ::= "{\\"k\\": " [0-9] "}"'},
        {"grammar": '%llguidance {}\nstart: "{" "}"'},
    ],
)
def test_every_way_to_ask_for_json_brings_json(client: openai.OpenAI, form: dict[str, Any]) -> None:
    if "object" in json.dumps(form) and "schema" not in json.dumps(form):
        form = {**form, "logit_bias": {}, "stop": ["}"]}  # any object may go on for long
        text = client.chat.completions.create(
            model="tiny", messages=WANTED, seed=1, max_tokens=60, extra_body=form
        ).choices[0].message.content  # fmt: skip
        assert str(text).startswith("{")
        return
    value = json.loads(answer_of(client, **form))
    assert value in ({"k": 1}, {}) or list(value) == ["k"]


def test_plain_completions_take_a_form_too(client: openai.OpenAI) -> None:
    got = client.completions.create(
        model="tiny", prompt="x = ", max_tokens=40, seed=1, extra_body={"regex": "[0-9]{1,4};"}
    )
    assert re.fullmatch("[0-9]{1,4};", got.choices[0].text) and got.choices[0].finish_reason == "stop"


def test_a_prompt_is_known_whole_where_forced_tokens_behind_it_are_too(client: openai.OpenAI) -> None:
    """More tokens were held than the prompt has, and the count of those evaluated went below nothing."""
    for _ in range(2):
        got = client.chat.completions.create(
            model="tiny", messages=WANTED, extra_body={"regex": "\\{\\[\\(\\{[ab]\\}"}, seed=1
        )
    usage = got.usage
    assert usage and usage.prompt_tokens_details
    assert usage.prompt_tokens_details.cached_tokens == usage.prompt_tokens


def test_what_is_wrong_with_a_form_is_reported(client: openai.OpenAI) -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "strin"}}}
    for form, words in (
        ({"response_format": schema}, ("JSON schema", "strin")),
        ({"response_format": {"type": "json_schema"}}, ("response_format.json_schema.schema is missing",)),
        ({"response_format": {"type": "xml"}}, ("response_format", "xml")),
        ({"grammar": "root ::= this is (not valid GBNF"}, ("grammar",)),
        ({"regex": "a("}, ("regular expression", "unclosed")),
        ({"guided_choice": []}, ("guided_choice",)),
        ({"structured_outputs": {"json": "{"}}, ("structured_outputs", "not JSON")),
        ({"regex": "a", "grammar": GBNF}, ("grammar and regex", "one form")),
        ({"json_schema": {"$ref": "#"}}, ("nothing fits",)),
        ({"json_schema": {"uniqueItems": True}}, ("uniqueItems", "enforced: leave it out")),
        ({"samplers": ["top_z"]}, ("samplers names 'top_z'",)),
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            answer_of(client, **form)
        told = caught.value.body
        assert isinstance(told, dict) and all(word in told["message"] for word in words), told
        assert "\n" not in told["message"]


def test_a_schema_that_cannot_be_kept_to_is_refused_unless_strict_is_false(client: openai.OpenAI) -> None:
    """A pattern that looks ahead was refused even then, and other dialects were told of a field they lack."""
    unique = {"type": "array", "items": {"enum": [1, 2]}, "maxItems": 2, "uniqueItems": True}
    ahead = {"type": "string", "pattern": "^(?!x).*$", "maxLength": 4}
    keyed = {"type": "object", "patternProperties": {"^(?=a)": {"const": 1}}, "maxProperties": 1}
    for schema, word in ((unique, "uniqueItems"), (ahead, "look-around"), (keyed, "look-around")):
        for strict in (None, True, False):
            named = {"name": "x", "schema": schema} | ({} if strict is None else {"strict": strict})
            form = {"response_format": {"type": "json_schema", "json_schema": named}}
            if strict is False:
                assert answer_of(client, **form)
            else:
                with pytest.raises(
                    openai.BadRequestError, match=rf'{word}.*leave it out, or.*"strict": false'
                ):
                    answer_of(client, **form)


def test_advice_names_only_fields_that_a_dialect_has(dialects: Served) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "(?!x)"}}}
    form = {"type": "json_schema", "schema": schema}
    asked = [{"role": "user", "content": "x"}]
    for path, body in (
        ("/api/chat", {"model": "tiny", "messages": asked, "format": schema}),
        ("/v1/messages", {"messages": asked, "output_config": {"format": form}}),
        ("/completion", {"prompt": "x", "json_schema": schema}),
    ):
        text = str(dialects.ask(path, body).error)
        assert "cannot be enforced: leave it out" in text and "strict" not in text
    body = {"input": "x", "text": {"format": {**form, "name": "x"}}}
    text = dialects.ask("/v1/responses", body).error["message"]
    assert text.endswith('or ignore it with "strict": false')


def test_a_form_leaves_tools_callable(client: openai.OpenAI) -> None:
    """The form governed all of the answer, so no tool could be called; OpenAI allows both."""
    answer = {
        "type": "object",
        "properties": {"answer": {"$ref": "#/$defs/A"}},
        "required": ["answer"],
        "$defs": {"A": {"enum": ["x", "y"]}},
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": answer}}
    query = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
    tools: Any = [{"type": "function", "function": {"name": "search_docs", "parameters": query}}]
    for choice in ("auto", "none"):
        asked: Any = {"messages": [{"role": "user", "content": "What does json.dumps do?"}], "tools": tools}
        more: Any = {"response_format": form, "tool_choice": choice, "temperature": 0, "max_tokens": 200}
        reply = client.chat.completions.create(model="tiny", **asked, **more).choices[0]
        if choice == "none":
            assert json.loads(reply.message.content)["answer"] in ("x", "y")
        else:
            [call] = reply.message.tool_calls
            assert call.function.name == "search_docs" and "query" in json.loads(call.function.arguments)
            assert reply.finish_reason == "tool_calls" and not reply.message.content


class Person(BaseModel):
    """What Anthropic's client is to return: a number or text without an end may meet max_tokens first."""

    name: Literal["Ada", "Grace"]
    age: Literal[36, 85]


def test_anthropics_parse_returns_the_object(dialects: Served) -> None:
    asked: list[Any] = [{"role": "user", "content": "A person"}]
    with anthropic.Anthropic(base_url=dialects.url.removesuffix("/v1"), api_key="x", max_retries=0) as client:
        answer = client.messages.parse(model="tiny", max_tokens=200, messages=asked, output_format=Person)
    assert isinstance(answer.parsed_output, Person) and answer.stop_reason == "end_turn"


@pytest.mark.sample(1)
@pytest.mark.parametrize("whole", [False, True])
def test_llm_gets_the_schema_it_asked_for(dialects: Served, tmp_path: Path, whole: bool) -> None:
    (tmp_path / "extra-openai-models.yaml").write_text(
        f"- model_id: mine\n  model_name: tiny\n  api_base: {dialects.url}\n  supports_schema: true\n"
    )
    words = ["-m", "mine", "--key", "x", "--schema", "name, age int", "-o", "temperature", "0", "a person"]
    done = subprocess.run(
        [sys.executable, "-m", "llm", *words, *(["--no-stream"] if whole else [])],
        env={**os.environ, "LLM_USER_PATH": str(tmp_path)}, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    assert isinstance(printed["name"], str) and isinstance(printed["age"], int)


OFFERED: dict[str, Any] = {
    "get_weather": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1, "maximum": 7}},
        "required": ["city", "days"],
        "additionalProperties": False,
    },
    "list_files": {
        "type": "object",
        "properties": {"path": {"type": "string"}},
        "required": ["path"],
        "additionalProperties": False,
    },
}


def answered(client: openai.OpenAI, seed: int, **fields: Any) -> Any:
    tools: list[Any] = [
        {"type": "function", "function": {"name": name, "description": "", "parameters": schema}}
        for name, schema in OFFERED.items()
    ]
    wanted: list[Any] = [{"role": "user", "content": ["weather in Oslo", "list_files", "Hello"][seed % 3]}]
    return client.chat.completions.create(
        model="tiny",
        messages=wanted,
        tools=tools,
        temperature=1.5,
        seed=seed,
        max_tokens=300,
        extra_body=fields,
    ).choices[0]


@pytest.mark.parametrize("n", [12, pytest.param(400, marks=pytest.mark.slow)])
def test_a_call_of_ones_own_accord_is_of_a_tool_and_fits(client: openai.OpenAI, n: int) -> None:
    """At T=1.5, 86 of 86 were of tools that were not offered, or lacked what their schema requires."""
    found = 0
    for seed in range(n):
        choice = answered(client, seed)
        for call in choice.message.tool_calls or ():
            jsonschema.validate(json.loads(call.function.arguments), OFFERED[call.function.name])
            found += 1
        assert choice.message.tool_calls or "<tool_call>" not in choice.message.content
    assert found >= n // 4


def test_text_before_a_call_is_as_free_as_without_it(client: openai.OpenAI) -> None:
    same = [(answered(client, seed), answered(client, seed, strict_calls=False)) for seed in range(2, 20, 3)]
    texts = [(a.message.content, b.message.content) for a, b in same if not a.message.tool_calls]
    assert texts and all(a == b for a, b in texts if "<tool_call>" not in (b or ""))


def test_a_schema_that_nothing_fits_leaves_the_arguments_of_its_tool_free(client: openai.OpenAI) -> None:
    never = {"allOf": [{"type": "string"}, {"type": "integer"}]}
    schema = {"type": "object", "properties": {"p": never}, "required": ["p"]}
    tools: list[Any] = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    fields: dict[str, Any] = {"model": "tiny", "messages": WANTED, "tools": tools, "max_tokens": 400}
    got = client.chat.completions.create(**fields)
    assert got.choices[0].finish_reason in ("length", "stop", "tool_calls")
    [choice] = client.chat.completions.create(**fields, tool_choice="required").choices
    assert choice.finish_reason == "length" or choice.message.tool_calls[0].function.name == "f"
