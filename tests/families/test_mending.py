# ruff: noqa: E501
"""Calls that no grammar governs, and that are not quite in their notation: mended in one reading, or content."""

from __future__ import annotations

from typing import Any

import pytest

from edgespec.chat.families import known
from edgespec.chat.families.deltas import AssembledTurn
from edgespec.chat.families.family import Family
from edgespec.chat.families.mending import mended

FAMILIES = {family.name: family for _, family in known.MARKERS}
TOOLS: dict[str, Any] = {
    "f": {
        "type": "object",
        "properties": {"a": {"type": "string"}, "b": {"type": "array", "items": {"type": "integer"}}},
        "required": ["a"],
        "additionalProperties": False,
    }
}
FITS = {"a": "x", "b": [1, 2]}

# opening, what comes behind the arguments, the closing marker
JSON_NOTATIONS = {
    "hermes": ('<tool_call>\n{"name": "f", "arguments": ', "}", "\n</tool_call>"),
    "llama3": ('{"name": "f", "parameters": ', "}", ""),
    "mistral-list": ('[TOOL_CALLS][{"name": "f", "arguments": ', "}]", ""),
    "mistral": ("[TOOL_CALLS]f[ARGS]", "", ""),
    "deepseek-r1": ("<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n", "\n```", "<｜tool▁call▁end｜>"),
    "deepseek-v3": ("<｜tool▁call▁begin｜>f<｜tool▁sep｜>", "", "<｜tool▁call▁end｜>"),
    "harmony": ("<|channel|>commentary to=functions.f <|constrain|>json<|message|>", "", "<|call|>"),
    "granite": ('<|tool_call|>[{"name": "f", "arguments": ', "}]", ""),
    "command-r7b": ('<|START_ACTION|>[{"tool_name": "f", "parameters": ', "}]", "<|END_ACTION|>"),
    "command-r": ('Action:\n```json\n[{"tool_name": "f", "parameters": ', "}]", "\n```"),
    "kimi": ("<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>", "", "<|tool_call_end|>"),
    "solar": ("<|tool_call:begin|>1<|tool_call:name|>f<|tool_call:args|>", "", "<|tool_call:end|>"),
    "functionary-3.1": ("<function=f>", "", "</function>"),
    "functionary-3.2": ("f\n", "", ""),
    "tool-calls": ('<tool_calls>[{"name": "f", "arguments": ', "}]", "</tool_calls>"),
    "nemotron": ('<TOOLCALL>[{"name": "f", "arguments": ', "}]", "</TOOLCALL>"),
    "firefunction": ('functools[{"name": "f", "arguments": ', "}]", ""),
    "apertus": ('<|tools_prefix|>[{"f": ', "}]", "<|tools_suffix|>"),
    "gigachat": ('<|function_call|>{"name": "f", "arguments": ', "}", ""),
}  # fmt: skip
ONE_READING = {
    "single quotes": "{'a': 'x', 'b': [1, 2]}",
    "a trailing comma": '{"a": "x", "b": [1, 2,],}',
    "a string of JSON": '"{\\"a\\": \\"x\\", \\"b\\": [1, 2]}"',
    "a string of mended JSON": "\"{'a': 'x', 'b': [1, 2]}\"",
}
NO_READING = {
    "no colon": '{"a" "x"}',
    "a name that the tool lacks": "{'a': 'x', 'c': 1}",
    "another type": "{'a': 1}",
    "a name that must be there": "{'b': [1]}",
    "half a number": '{"a": "x", "b": [1, 2',
    "half a string": '{"a": "x',
}


def turn_of(
    family: Family, text: str, *, governed: bool = False, cut: bool = False
) -> tuple[AssembledTurn, int]:
    found = []
    for size in (len(text), 1):
        turn, parser = AssembledTurn(), family.parser(TOOLS, governed=governed)
        for i in range(0, len(text), size):
            turn.add(parser.feed(text[i : i + size]))
        turn.add(parser.finish(cut=cut))
        found.append((turn, parser.unread))
    assert found[0] == found[1], "a cut makes no difference"
    return found[0]


@pytest.mark.parametrize("how", ONE_READING)
@pytest.mark.parametrize("name", JSON_NOTATIONS)
def test_json_that_is_read_in_one_way_is_mended_in_every_notation(name: str, how: str) -> None:
    opening, behind, end = JSON_NOTATIONS[name]
    for closing in (end, ""):
        turn, unread = turn_of(FAMILIES[name], opening + ONE_READING[how] + behind + closing)
        assert [(call.name, call.parsed) for call in turn.calls] == [("f", FITS)], turn
        assert (turn.content.strip(), unread) == ("", 0)


@pytest.mark.parametrize("how", NO_READING)
@pytest.mark.parametrize("name", JSON_NOTATIONS)
def test_what_cannot_be_read_in_one_way_is_content_with_a_note(name: str, how: str) -> None:
    opening, _, end = JSON_NOTATIONS[name]
    cut = how.startswith("half")
    text = opening + NO_READING[how] + ("" if cut else end)
    turn, unread = turn_of(FAMILIES[name], text)
    assert not turn.calls and NO_READING[how] in turn.content
    assert unread or name in ("llama3", "functionary-3.2"), "nothing announces a call there"


@pytest.mark.parametrize("name", JSON_NOTATIONS)
def test_brackets_that_are_missing_at_the_end_are_added_if_the_answer_was_not_cut(name: str) -> None:
    opening, _, end = JSON_NOTATIONS[name]
    if end:  # the closing marker shows that a number ends, too
        turn, _ = turn_of(FAMILIES[name], f'{opening}{{"a": "x", "b": [1, 2{end}')
        assert [call.parsed for call in turn.calls] == [FITS], turn
    for cut in (False, True):
        turn, _ = turn_of(FAMILIES[name], f'{opening}{{"b": [1, 2], "a": "x"', cut=cut)
        assert [call.parsed for call in turn.calls] == ([] if cut else [FITS]), turn


def test_a_fence_around_calls_is_passed_over() -> None:
    text = '<tool_call>\n```json\n{"name": "f", "arguments": {"a": "x"}}\n```\n</tool_call>'
    for governed in (False, True):
        turn, unread = turn_of(known.HERMES, text, governed=governed)
        assert [call.parsed for call in turn.calls] == [{"a": "x"}]
        assert (turn.content, unread) == ("", 0)
    turn, _ = turn_of(
        known.KIMI,
        '<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>```json\n{"a": "x"}\n```<|tool_call_end|>',
    )
    assert [call.parsed for call in turn.calls] == [{"a": "x"}] and not turn.content


MARK = known.MARK
NO_END = {  # calls of other notations without their closing marker or bracket
    "qwen-coder": "<function=f>\n<parameter=a>\nx\n</parameter>\n",
    "seed": "<function=f>\n<parameter=a>\nx\n</parameter>\n",
    "glm": "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>x</arg_value>\n",
    "hunyuan": "<tool_call:opensource>f<arg_key:opensource>a</arg_key:opensource><arg_value:opensource>x</arg_value:opensource>",
    "minimax": '<invoke name="f"><parameter name="a">x</parameter>',
    "minicpm": '<function name="f"><param name="a">x</param>',
    "deepseek-dsml": f'<{known.DSML}invoke name="f"><{known.DSML}parameter name="a" string="true">x</{known.DSML}parameter>',
    "minimax-m3": f'{MARK}<invoke name="f">{MARK}<a>x{MARK}</a>',
    "gemma": '<|tool_call>call:f{a:<|"|>x<|"|>',
    "lfm": '<|tool_call_start|>[f(a="x"',
}  # fmt: skip


@pytest.mark.parametrize("name", NO_END)
def test_a_call_in_tags_or_literals_may_lack_its_end(name: str) -> None:
    turn, unread = turn_of(FAMILIES[name], NO_END[name])
    assert [(call.name, call.parsed) for call in turn.calls] == [("f", {"a": "x"})]
    assert (turn.content, unread) == ("", 0)
    cut, _ = turn_of(FAMILIES[name], NO_END[name], cut=True)
    assert all("arguments" in call.parsed for call in cut.calls), "not as if it were whole"


@pytest.mark.parametrize("text", ["[" * 50_000, "{'a':" * 50_000, '"' * 99_999, "'" * 99_999, "\\" * 99_999,
                                  "{" + '"a' * 50_000, "[1," * 50_000, "(" * 50_000 + ")" * 50_000])  # fmt: skip
def test_hostile_text_is_refused_in_little_time(text: str) -> None:
    """A library that mends JSON took 4.8 s for 15,000 characters, and gives half a command as a whole one."""
    for bounded in (False, True):
        with pytest.raises(ValueError):
            mended(text, bounded=bounded)
