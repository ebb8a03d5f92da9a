# ruff: noqa: E501
"""A model may write anything, and a schema may be anything: no reader fails, no call comes twice or empty."""

from __future__ import annotations

import json
from typing import Any

import pytest

from edgespec.chat.families import known
from edgespec.chat.families.deltas import AssembledTurn, CallBegun, Delta
from edgespec.chat.families.family import Family
from edgespec.chat.families.json_text import as_object
from edgespec.chat.families.reader import Parser, Reader, Steps

FAMILIES = {family.name: family for _, family in known.MARKERS}
TOOLS: dict[str, Any] = {"f": {"properties": {"a": {"type": "string"}}}}
DEEP = 100_000


def turn_of(family: Family, text: str, tools: Any = TOOLS) -> AssembledTurn:
    turn, parser = AssembledTurn(), family.parser(tools)
    turn.add(parser.feed(text))
    turn.add(parser.finish())
    return turn


def written(family: Family, value: str, name: str = "f", key: str = "a") -> str:
    """Returns a call with one argument as the family writes it. value: as it stands in the text."""
    mark = known.MARK
    return {
        "lfm": f"<|tool_call_start|>[{name}({key}={value})]<|tool_call_end|>",
        "gemma": f"<|tool_call>call:{name}{{{key}:{value}}}<tool_call|>",
        "qwen-coder": f"<function={name}><parameter={key}>{value}</parameter></function>",
        "seed": f"<function={name}><parameter={key}>{value}</parameter></function>",
        "glm": f"<tool_call>{name}\n<arg_key>{key}</arg_key><arg_value>{value}</arg_value></tool_call>",
        "minimax": f'<invoke name="{name}"><parameter name="{key}">{value}</parameter></invoke>',
        "minicpm": f'<function name="{name}"><param name="{key}">{value}</param></function>',
        "minimax-m3": f'{mark}<invoke name="{name}">{mark}<{key}>{value}{mark}</{key}>{mark}</invoke>',
        "hermes": f'<tool_call>{{"name": "{name}", "arguments": {{"{key}": {value}}}}}</tool_call>',
        "hunyuan": f"<tool_call:opensource>{name}<arg_key:opensource>{key}</arg_key:opensource>"
        f"<arg_value:opensource>{value}</arg_value:opensource></tool_call:opensource>",
    }[family.name]


WITH_VALUES = ("lfm", "gemma", "qwen-coder", "seed", "glm", "minimax", "minicpm", "minimax-m3", "hermes", "hunyuan")  # fmt: skip
TAGGED = tuple(name for name in WITH_VALUES if name not in ("lfm", "gemma", "hermes"))
ODD_VALUES = ["{1,2}", "...", "1j", "b'x'", "[" * DEEP, "{'a':" * DEEP, "[" * 3000 + "]" * 3000, "NaN", "1e999",
              "-Infinity", r'"\ud800"', "-" * DEEP + "1", "9" * 5000, "f(a=1)", "set()", "", "{1: {2}}"]  # fmt: skip


@pytest.mark.parametrize("value", ODD_VALUES, ids=lambda value: value[:12])
@pytest.mark.parametrize("name", WITH_VALUES)
def test_an_odd_value_is_content_or_malformed_and_nothing_fails(name: str, value: str) -> None:
    """LFM2's `f(z={1,2})` ended a stream in the middle, and 3,000 brackets in four families."""
    text = written(FAMILIES[name], value)
    for tools in (TOOLS, {"f": {}}):
        turn = turn_of(FAMILIES[name], text, tools)
        assert len(turn.calls) <= 1 and (turn.calls or turn.content.startswith(text[:20]))
        for call in turn.calls:
            call.arguments.encode()
            assert call.arguments.strip(), "never a call without arguments"
            json.dumps(call.parsed, allow_nan=False, ensure_ascii=False).encode()


@pytest.mark.parametrize("schema", [True, None, [], False, 5, "x", {"$ref": "#"}, {"anyOf": [True]},
                                    {"$ref": "#/properties/a"}, {"enum": None}, {"anyOf": [{"$ref": "#/properties/a"}]},
                                    {"type": ["x", 5]}, {"properties": []}, {"items": True}])  # fmt: skip
@pytest.mark.parametrize("name", TAGGED)
def test_any_schema_of_an_argument_will_do(name: str, schema: Any) -> None:
    """`true` is a schema; eight families raised AttributeError for it, as for what is none."""
    text = written(FAMILIES[name], "word")
    for tool in ({"properties": {"a": schema}}, {"properties": schema}, schema):
        [call] = turn_of(FAMILIES[name], text, {"f": tool}).calls
        assert json.loads(call.arguments) == {"a": "word"}


STRINGS = [
    {"type": "string"},
    {"anyOf": [{"type": "string"}, {"type": "null"}]},
    {"oneOf": [{"type": "string"}, {"type": "integer"}]},
    {"allOf": [{"type": "string"}, {"minLength": 1}]},
    {"$ref": "#/$defs/Code"},
    {"anyOf": [{"$ref": "#/$defs/Code"}, {"type": "null"}]},
    {"type": ["string", "integer"]},
    {"type": ["string", "null"]},
    {"pattern": "^.+$"},
    {"type": "string", "nullable": True},
]


@pytest.mark.parametrize("schema", STRINGS, ids=json.dumps)
@pytest.mark.parametrize("name", TAGGED)
def test_what_a_schema_calls_a_string_stays_one(name: str, schema: Any) -> None:
    """Only `type` was read: `90210` became a number for an optional string, and `{"a": 1}` an object."""
    tools = {"f": {"properties": {"a": schema}, "$defs": {"Code": {"type": "string"}}}}
    for value in ("90210", "true", '{"a": 1}', "[1]", "1e5", '"quoted"'):
        [call] = turn_of(FAMILIES[name], written(FAMILIES[name], value), tools).calls
        assert json.loads(call.arguments) == {"a": value}


@pytest.mark.parametrize(
    ("schema", "text", "wanted"),
    [
        ({"enum": ["1", "2"]}, "1", "1"),
        ({"enum": [1, 2]}, "1", 1),
        ({"enum": ["auto", 1]}, "1", 1),
        ({"const": "true"}, "true", "true"),
        ({"const": True}, "true", True),
        ({"type": "string", "enum": ["7"]}, "7", "7"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "null", None),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "None", None),
        ({"anyOf": [{"type": "integer"}, {"type": "boolean"}]}, "True", True),
        ({"allOf": [{"type": ["string", "integer"]}, {"type": "integer"}]}, "5", 5),
        ({"minimum": 3}, "5", 5),
        ({"items": {"type": "string"}}, '["1"]', ["1"]),
        ({"properties": {"x": {"type": "string"}}}, "{'x': None}", {"x": None}),
        ({}, "5", 5),
    ],
)
def test_the_schema_decides_the_type(schema: Any, text: str, wanted: object) -> None:
    [call] = turn_of(
        known.QWEN_CODER, written(known.QWEN_CODER, text), {"f": {"properties": {"a": schema}}}
    ).calls
    assert json.loads(call.arguments) == {"a": wanted}


def test_elements_within_elements_have_the_types_of_their_references() -> None:
    mark = known.MARK
    tool = {
        "properties": {"l": {"type": "array", "items": {"$ref": "#/$defs/P"}}},
        "$defs": {"P": {"properties": {"k": {"anyOf": [{"type": "string"}, {"type": "null"}]}}}},
    }
    inner = "".join(f"{mark}<item>{mark}<k>{v}{mark}</k>{mark}</item>" for v in ("1", "null"))
    said = f'{mark}<invoke name="f">{mark}<l>{inner}{mark}</l>{mark}</invoke>'
    [call] = turn_of(known.MINIMAX_M3, said, {"f": tool}).calls
    assert json.loads(call.arguments) == {"l": [{"k": "1"}, {"k": None}]}


@pytest.mark.parametrize(
    ("name", "text", "passed_over"),
    [
        ("hermes", 'So <tool_call>{"name": "f", "arguments" {"a": 1}}', "</tool_call>"),
        ("hermes", '<tool_call>{"name": "f", "arguments": }', "</tool_call>"),
        ("hermes", '<tool_call>{"name": "f", "arguments": <x>}', "</tool_call>"),
        ("hermes", '<tool_call>{"name": "f", arguments: {"a": 1}}', "</tool_call>"),
        ("mistral", "[TOOL_CALLS]f[ARGS]a: 1", ""),
        ("deepseek-v3", "<｜tool▁call▁begin｜>f<｜tool▁sep｜>a: 1", "<｜tool▁call▁end｜>"),
        ("kimi", "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>[1]", "<|tool_call_end|>"),
        ("qwen-coder", "<function=f>a: 1</function>", "</tool_call>"),
        ("qwen-coder", "Write <function=f> and then its parameters.", ""),
        ("apertus", '<|tools_prefix|>[{"f" {"a": 1}}]', ""),
        ("minimax-m3", f'{known.MARK}<invoke name="f">{known.MARK}<a', ""),
        ("lfm", "<|tool_call_start|>[f(1)]<|tool_call_end|>", ""),
    ],
)
def test_a_malformed_call_comes_once_as_content(name: str, text: str, passed_over: str) -> None:
    """It came as content and as a call with empty arguments: an agent ran the tool with {}."""
    turn = turn_of(FAMILIES[name], text + passed_over)
    assert (turn.calls, turn.content) == ([], text)


def test_what_is_missing_behind_the_arguments_does_no_harm() -> None:
    """A Hermes call without its last brace came twice."""
    for end in ("", ", ", ', "id": 5', ', "id" 5', " garbage"):
        turn = turn_of(
            known.HERMES, f'<tool_call>{{"name": "f", "arguments": {{"a": "x"}}{end}</tool_call>Well'
        )
        assert [(call.name, call.parsed) for call in turn.calls] == [("f", {"a": "x"})]
        assert turn.content.endswith("Well") and '"f"' not in turn.content
    two = turn_of(known.MISTRAL_LIST, '[TOOL_CALLS][{"name": "f", "arguments": {}}, {"name": "f" 5}]')
    assert len(two.calls) == 1 and two.content == ', {"name": "f" 5}]'


def test_an_answer_that_mentions_a_tag_keeps_its_rest() -> None:
    """Of "Use the `<think>` tag. It is nice." the answer was "Use the `"."""
    text = "Use the `<think>` tag. It is nice."
    for family in FAMILIES.values():
        for opening, _ in family.thoughts:
            said = text.replace("<think>", opening.strip())
            for tools in (None, TOOLS):
                turn = turn_of(family, said, tools)
                assert turn.reasoning == "" and (
                    turn.content == said or opening.strip() in family.passed_over
                )
    after = turn_of(known.HERMES, "\n <think>hm</think> Say <think> twice.")
    assert (after.reasoning, after.content) == ("hm", "Say <think> twice.")


LFM_CALLS = [
    "[f(a=1),\n g()]", "[f(a=1)\ng()]", "f(a=1)\ng()", "[f(a=1)\r\n,g()\r\n]", "[f(a=1, ), g()]",
    '[{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}}]',
    '{"name": "f", "arguments": {"a": 1}}\n{"name": "g"}',
]  # fmt: skip


@pytest.mark.parametrize("text", LFM_CALLS)
def test_lfm2_writes_its_list_in_several_ways(text: str) -> None:
    """Calls with a line end between them, and those in JSON, were content."""
    turn = turn_of(known.LFM, f"<|tool_call_start|>{text}<|tool_call_end|>Well", {"f": {}, "g": {}})
    assert [(call.name, call.parsed) for call in turn.calls] == [("f", {"a": 1}), ("g", {})]
    assert turn.content == "Well"


def test_lfm2s_arguments_may_have_any_name_and_any_text() -> None:
    """`from=1` is no Python, and neither is a hyphen in a name or a line end in a string."""
    said = r"""[get-user(from=1, text='a\'b\n"c"
d\u00e9\d', t="it's", n=-2.5e1, l=[True, null, (1,)], d={"x": {'y': None}})]"""
    turn = turn_of(known.LFM, f"<|tool_call_start|>{said}<|tool_call_end|>", {"get-user": {}})
    assert turn.calls[0].parsed == {
        "from": 1, "text": "a'b\n\"c\"\ndé\\d", "t": "it's", "n": -25.0, "l": [True, None, [1]], "d": {"x": {"y": None}},
    }  # fmt: skip


def test_gpt_oss_calls_with_no_arguments_or_not_at_all() -> None:
    """A call that was cut behind its head had empty arguments, which are no JSON."""
    head = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>"
    assert turn_of(known.HARMONY, head).calls == turn_of(known.HARMONY, f"{head} ").calls == []
    [call] = turn_of(known.HARMONY, f"{head}<|call|>").calls
    assert call.arguments == "{}"


def test_a_fault_in_reading_costs_no_text() -> None:
    def broken(reader: Reader) -> Steps[None]:
        yield from reader.text_until(("|",))
        yield CallBegun(0, "f")
        raise KeyError

    parser, found = Parser(broken), list[Delta]()
    found += parser.feed("gone|and ") + parser.feed("more") + parser.finish()
    turn = AssembledTurn()
    turn.add(found)
    assert turn.content == "and more"


@pytest.mark.parametrize("text", ["[" * DEEP, '{"a":' * DEEP, "NaN", "1e999", r'{"a": "\ud800"}', "[1]", "null", "",
                                  '{"a": NaN}', "9" * 5000, "nonsense", '{"a": ' + "[" * 200 + "]" * 200 + "}"],
                         ids=lambda text: text[:12])  # fmt: skip
def test_arguments_are_an_object_that_json_can_say(text: str) -> None:
    """A thousand brackets, `NaN` or half a character were a 500 in every dialect that sends objects."""
    found = as_object(text)
    assert json.loads(json.dumps(found, allow_nan=False, ensure_ascii=False).encode()) == found


@pytest.mark.sample(12)
@pytest.mark.parametrize("name", FAMILIES)
def test_any_text_is_read_by_any_family(name: str) -> None:
    """Pieces of a family's own tags, of JSON and of Python, and any schema, as hypothesis draws them."""
    from hypothesis import HealthCheck, given, settings
    from hypothesis import strategies as st

    family = FAMILIES[name]
    tags = st.sampled_from([*family.shown(tools=True), *family.calls, "f", "a", "name", "arguments"])
    json_values = st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(max_size=5) | st.integers(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["type", "anyOf", "$ref", "enum", "items", "properties", "a"]), inner, max_size=3),
        max_leaves=6,
    )  # fmt: skip
    pieces = st.lists(
        tags | json_values.map(json.dumps) | st.text(max_size=6) | st.sampled_from(list("[]{}()=:,'\"\\\n"))
    )

    @settings(
        max_examples=25,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(pieces, json_values)
    def reads(parts: list[str], schema: object) -> None:
        text = "".join(parts)
        turn = turn_of(family, text, {"f": {"properties": {"a": schema}, "x": schema}, "g": schema})
        for call in turn.calls:
            written = json.dumps(call.parsed, allow_nan=False, ensure_ascii=False).encode("utf-8", "strict")
            assert written.startswith(b"{")

    reads()
