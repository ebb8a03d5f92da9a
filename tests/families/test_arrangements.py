# ruff: noqa: E501
"""Every message of a conversation reaches the prompt of every template, whichever dialect sent it.

In a shape, s is a system message, u the user's, a an answer, A one that calls, B one that calls twice, C one
that says something, thinks and calls, and t a tool's result.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgespec.chat.conversation import Composed, compose
from edgespec.errors import TemplateError
from edgespec.server.dialects.anthropic.requests import CountRequest
from edgespec.server.dialects.ollama.requests import OllamaChat
from edgespec.server.dialects.responses.requests import InputRequest
from edgespec.server.requests.chat import ChatRequest

SHAPES = ("u su sua suau suasu uasu us sus ssu uu suu uauu au sau aau uaau uAt uAtu suAtau uBtt uBttu uCtu uAtAt uAtsu "
          "saasu suBttsuu s uaBttau utu uCt").split()  # fmt: skip
ROLES = {"s": "system", "u": "user", "t": "tool"}
SCHEMA = {"type": "object", "properties": {"key": {"type": "string", "description": "a key"}}}
TOOL = {"name": "look_up", "description": "Looks up.", "parameters": SCHEMA}
WORD = re.compile(r"zq\w+?qz")
Turn = dict[str, Any]


def turns_of(shape: str) -> list[Turn]:
    """Returns a conversation in no dialect: role, text, and the values with which it calls."""
    turns: list[Turn] = []
    waiting: list[str] = []
    for i, letter in enumerate(shape):
        turn: Turn = {
            "role": ROLES.get(letter, "assistant"),
            "text": "" if letter in "AB" else f"zqtext{i}qz",
            "calls": [],
        }
        if letter in "ABC":
            turn["calls"] = [(f"call{i}{n}abc", f"zqvalue{i}{n}qz") for n in range(2 if letter == "B" else 1)]
            waiting += [id for id, _ in turn["calls"]]
        if letter == "C":
            turn["thought"] = "hm"
        if letter == "t":
            turn["id"] = waiting.pop(0) if waiting else "nobody00"
        turns.append(turn)
    return turns


def chat(turns: list[Turn]) -> ChatRequest:
    messages = []
    for turn in turns:
        message: Turn = {"role": turn["role"], "content": turn["text"]}
        if turn["calls"]:
            message["tool_calls"] = [
                {
                    "id": id,
                    "type": "function",
                    "function": {"name": "look_up", "arguments": json.dumps({"key": value})},
                }
                for id, value in turn["calls"]
            ]
        if "thought" in turn:
            message["reasoning_content"] = turn["thought"]
        if "id" in turn:
            message["tool_call_id"] = turn["id"]
        messages.append(message)
    tools = [{"type": "function", "function": TOOL}] if any(turn["calls"] for turn in turns) else None
    return ChatRequest.model_validate({"messages": messages, "tools": tools})


def developer(turns: list[Turn]) -> ChatRequest:
    made = chat(turns)
    for message in made.messages:
        message.role = "developer" if message.role == "system" else message.role
    return made


def anthropic(turns: list[Turn]) -> ChatRequest:
    messages = []
    for turn in turns:
        blocks: list[Turn] = [{"type": "text", "text": turn["text"]}] if turn["text"] else []
        if "id" in turn:
            blocks = [{"type": "tool_result", "tool_use_id": turn["id"], "content": blocks}]
        if "thought" in turn:
            blocks.insert(0, {"type": "thinking", "thinking": turn["thought"], "signature": ""})
        blocks += [
            {"type": "tool_use", "id": id, "name": "look_up", "input": {"key": v}} for id, v in turn["calls"]
        ]
        role = "user" if turn["role"] == "tool" else turn["role"]
        if messages and messages[-1]["role"] == role == "user":
            messages[-1]["content"] += blocks  # the usual turn of results and a text
        else:
            messages.append({"role": role, "content": blocks})
    tools = [{"name": "look_up", "input_schema": SCHEMA}] if any(turn["calls"] for turn in turns) else None
    return CountRequest.model_validate({"messages": messages, "tools": tools}).as_chat()


def responses(turns: list[Turn]) -> ChatRequest:
    items: list[Turn] = []
    for turn in turns:
        if "thought" in turn:
            items.append(
                {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
            )
        if "id" in turn:
            items.append({"type": "function_call_output", "call_id": turn["id"], "output": turn["text"]})
        elif turn["text"]:
            items.append({"role": turn["role"], "content": turn["text"]})
        items += [{"type": "function_call", "call_id": id, "name": "look_up", "arguments": json.dumps({"key": v})}
                  for id, v in turn["calls"]]  # fmt: skip
    tools = [{"type": "function", **TOOL}] if any(turn["calls"] for turn in turns) else None
    return InputRequest.model_validate({"input": items, "tools": tools}).as_chat()


def ollama(turns: list[Turn]) -> ChatRequest:
    messages = []
    for turn in turns:
        message: Turn = {"role": turn["role"], "content": turn["text"], "thinking": turn.get("thought")}
        if turn["calls"]:
            message["tool_calls"] = [
                {"function": {"name": "look_up", "arguments": {"key": v}}} for _, v in turn["calls"]
            ]
        if "id" in turn:
            message["tool_name"] = "look_up"
        messages.append(message)
    tools = [{"type": "function", "function": TOOL}] if any(turn["calls"] for turn in turns) else None
    return OllamaChat.model_validate({"model": "m", "messages": messages, "tools": tools}).as_chat()


DIALECTS: dict[str, Callable[[list[Turn]], ChatRequest]] = {
    "chat": chat, "developer": developer, "anthropic": anthropic, "responses": responses, "ollama": ollama,
}  # fmt: skip


def prompt_of(template: str, body: ChatRequest) -> Composed:
    messages = [message.for_template((), []) for message in body.messages]
    return compose(
        template, messages, bos="<BOS>", eos="<EOS>", tools=body.usable_tools(), go_on=body.goes_on()
    )


def words(value: object) -> set[str]:
    return set(WORD.findall(json.dumps(value)))


@pytest.fixture
def templates(test_data: Path) -> list[tuple[str, str]]:
    return [(path.stem, path.read_text()) for path in sorted((test_data / "templates").glob("*.jinja"))]


@pytest.mark.sample(1)
@pytest.mark.parametrize("part", range(23))
def test_every_message_reaches_the_prompt(templates: list[tuple[str, str]], part: int) -> None:
    """System messages in mid-conversation vanished with a third of the templates, and strict ones refused
    what agents send every day: results and a text in one turn, two calls at once, two users in a row."""
    assert len(templates) > 50
    for name, template in templates[part::23]:
        for shape in SHAPES:
            turns = turns_of(shape)
            for dialect, translated in DIALECTS.items():
                prompt = prompt_of(template, translated(turns))
                assert words(turns) <= set(WORD.findall(prompt.text)), (name, dialect, shape, prompt.text)


def test_a_message_that_no_arrangement_saves_is_named() -> None:
    template = "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}"
    body = chat(turns_of("uau"))
    with pytest.raises(TemplateError, match="no room for message 2 of these, the assistant's"):
        prompt_of(template, body)
    assert "zqtext0qz" in prompt_of(template, chat(turns_of("su"))).text


def test_a_template_that_refuses_says_why() -> None:
    template = "{% for m in messages %}{{ m.content }}{% if m.content == 'no' %}{{ raise_exception('never no') }}{% endif %}{% endfor %}"
    with pytest.raises(TemplateError, match="never no"):
        compose(template, [{"role": "user", "content": "no"}])


def test_the_arrangement_closest_to_what_was_sent_is_taken() -> None:
    template = "{% if tools %}<tool_call>{{ tools | tojson }}|{% endif %}{% for m in messages %}[{{ m.role }}:{{ m.content }}{% for c in m.tool_calls or [] %}({{ c.function.name }} {{ c.function.arguments | tojson }}){% endfor %}]{% endfor %}"
    body = chat(turns_of("suBttsuu"))
    assert prompt_of(template, body).text.partition("|")[2].replace('"', "'") == (
        "[system:zqtext0qz][user:zqtext1qz][assistant:(look_up {'key': 'zqvalue20qz'})(look_up {'key': 'zqvalue21qz'})][tool:zqtext3qz][tool:zqtext4qz]"
        "[system:zqtext5qz][user:zqtext6qz][user:zqtext7qz]"
    )
    single = "{% for m in messages %}{% if (m.tool_calls or []) | length > 1 %}{{ raise_exception('one') }}{% endif %}{% endfor %}"
    assert prompt_of(single + template, body).text.partition("|")[2].replace('"', "'") == (
        "[system:zqtext0qz][user:zqtext1qz][assistant:(look_up {'key': 'zqvalue20qz'})][tool:zqtext3qz][assistant:(look_up {'key': 'zqvalue21qz'})]"
        "[tool:zqtext4qz][user:zqtext5qz\n\nzqtext6qz][user:zqtext7qz]"
    )


def test_an_answer_alone_is_gone_on_with() -> None:
    """A template that looks at the first message failed: "list object has no element 0"."""
    template = "{{ messages[0].role }}:{% for m in messages %}{{ m.content }}{% endfor %}|"
    body = ChatRequest.model_validate({"messages": [{"role": "assistant", "content": "Once"}]})
    assert prompt_of(template, body).text == "user:|Once"


def test_a_thought_is_gone_on_with() -> None:
    """It was dropped where the template opens none, and its end was read as content where it does."""
    thinks = "{% for m in messages %}{{ m.content }}{% endfor %}{% if false %}<tool_call><think>{% endif %}"
    for template, beginning in ((thinks + "|", "|<think>"), (thinks + "<think>", "<think>")):
        for content, end, opened in (("", "Hm, ", True), ("Yes", "Hm, </think>\n\nYes", False)):
            last = {"role": "assistant", "content": content, "reasoning_content": "Hm, "}
            made = compose(template, [{"role": "user", "content": "Well?"}, last], go_on=True)
            assert made.text == f"Well?{beginning}{end}" and made.opened is opened


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "name", ["meta-llama-Llama-3.1-8B-Instruct", "Qwen3-Coder", "LFM2-8B-A1B", "openai-gpt-oss-120b"]
)
def test_any_history_is_rendered_or_refused_in_one_sentence(
    templates: list[tuple[str, str]], name: str
) -> None:
    """Arguments and schemas that hypothesis draws: a prompt, or an error that the client reads."""
    from hypothesis import given, settings
    from hypothesis import strategies as st

    values = st.recursive(
        st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
        max_leaves=8,
    )
    template = dict(templates)[name]

    @settings(max_examples=20, deadline=None, database=None, derandomize=True)
    @given(
        values.map(json.dumps) | st.text(max_size=20),
        st.dictionaries(st.sampled_from(["type", "properties", "a"]), values),
    )
    def renders(arguments: str, schema: dict[str, Any]) -> None:
        call = {"id": "c1", "type": "function", "function": {"name": "look_up", "arguments": arguments}}
        messages = [
            {"role": "user", "content": "Well?"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "so"},
        ]
        tools = [{"type": "function", "function": {**TOOL, "parameters": schema}}]
        body = ChatRequest.model_validate({"messages": messages, "tools": tools})
        try:
            assert "Well?" in prompt_of(template, body).text
        except TemplateError as error:
            assert "\n" not in str(error)

    renders()
