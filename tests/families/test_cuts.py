# ruff: noqa: E501
"""However a text is cut, a parser gives the same; and what is not a call is content, to the letter."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from edgespec.chat.families import known
from edgespec.chat.families.deltas import AssembledTurn, CallArguments, Content, Delta
from edgespec.chat.families.family import Family

TOOLS: dict[str, Any] = {
    "f": {"properties": {"a": {"type": "string"}, "n": {"type": "integer"}}},
    "g": {"properties": {}},
}
A = 'say "<b>"\n{é}'
CALL = {"a": A, "n": 7}
DUMPED = json.dumps(CALL)
XML = f"<function=f>\n<parameter=a>\n{A}\n</parameter>\n<parameter=n>\n7\n</parameter>\n</function>"
SAID: dict[str, tuple[Family, str]] = {
    "hermes": (
        known.HERMES,
        f'<think>\nhm <b> hm\n</think>\n\nWell <then\n<tool_call>\n{{"name": "f", "arguments": {DUMPED}}}\n'
        '</tool_call>\n<tool_call>{"arguments": {}, "name": "g"}</tool_call>',
    ),
    "qwen-coder": (
        known.QWEN_CODER,
        f"<think>hm <b> hm</think>Well <then\n<tool_call>\n{XML}\n</tool_call>\n<tool_call>\n<function=g>\n"
        "</function>\n</tool_call>",
    ),
    "glm": (
        known.GLM,
        "<think>hm <b> hm</think>\nWell <then\n<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>" + A + "</arg_value>"
        "\n<arg_key>n</arg_key>\n<arg_value>7</arg_value>\n</tool_call><tool_call>g</tool_call>",
    ),
    "mistral": (
        known.MISTRAL,
        f"[THINK]hm <b> hm[/THINK]Well <then[TOOL_CALLS]f[ARGS]{DUMPED}[TOOL_CALLS]g[CALL_ID]abcdefghi[ARGS]{{}}",
    ),
    "mistral-list": (
        known.MISTRAL_LIST,
        f'[THINK]hm <b> hm[/THINK]Well <then[TOOL_CALLS][{{"name": "f", "arguments": {DUMPED}, "id": "abcdefghi"}}, '
        '{"name": "g", "arguments": "{}"}]',
    ),
    "deepseek-r1": (
        known.DEEPSEEK_R1,
        "<think>\nhm <b> hm</think>Well <then<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n"
        f"```json\n{DUMPED}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n{{}}\n```"
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
    "deepseek-v3": (
        known.DEEPSEEK_V3,
        "<think>hm <b> hm</think>Well <then<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>"
        f"{DUMPED}<｜tool▁call▁end｜><｜tool▁call▁begin｜>g<｜tool▁sep｜>{{}}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
    "harmony": (
        known.HARMONY,
        "<|channel|>analysis<|message|>hm <b> hm<|end|><|start|>assistant<|channel|>commentary<|message|>Well <then"
        f"<|end|><|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{DUMPED}<|call|>"
        "<|start|>assistant to=functions.g<|channel|>commentary json<|message|>{}<|call|>",
    ),
    "gemma": (
        known.GEMMA,
        '<|channel>thought\nhm <b> hm\n<channel|>Well <then<|tool_call>call:f{a:<|"|>' + A + '<|"|>,n:7}'
        "<tool_call|><|tool_call>call:g{}<tool_call|>",
    ),
    "granite": (
        known.GRANITE,
        f'<think>hm <b> hm</think>Well <then<|tool_call|>[{{"name": "f", "arguments": {DUMPED}}}, {{"name": "g"}}]',
    ),
    "command-r7b": (
        known.COMMAND_R7B,
        "<|START_THINKING|>hm <b> hm<|END_THINKING|>Well <then<|START_ACTION|>[\n"
        f'  {{"tool_call_id": "0", "tool_name": "f", "parameters": {DUMPED}}},\n'
        '  {"tool_call_id": "1", "tool_name": "g", "parameters": {}}\n]<|END_ACTION|>',
    ),
    "lfm": (
        known.LFM,
        f"<think>hm <b> hm</think>Well <then<|tool_call_start|>[f(a={A!r}, n=7), g()]<|tool_call_end|>",
    ),
    "minimax": (
        known.MINIMAX,
        '<think>hm <b> hm</think>Well <then\n<minimax:tool_call>\n<invoke name="f">\n<parameter name="a">' + A
        + '</parameter>\n<parameter name="n">7</parameter>\n</invoke>\n<invoke name="g">\n</invoke>\n'
        "</minimax:tool_call>",
    ),
    "deepseek-dsml": (
        known.DEEPSEEK_DSML,
        '<think>hm <b> hm</think>Well <then\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name="f">\n'
        '<｜DSML｜parameter name="a" string="true">' + A + '</｜DSML｜parameter>\n<｜DSML｜parameter name="n" '
        'string="false">7</｜DSML｜parameter>\n</｜DSML｜invoke>\n<｜DSML｜invoke name="g">\n</｜DSML｜invoke>\n'
        "</｜DSML｜function_calls>",
    ),
    "seed": (
        known.SEED,
        f"<seed:think>hm <b> hm</seed:think>\nWell <then\n\n<seed:tool_call>\n{XML}\n</seed:tool_call>\n"
        "<seed:tool_call>\n<function=g>\n</function>\n</seed:tool_call>",
    ),
    "command-r": (
        known.COMMAND_R,
        f'Well <then\nAction:\n```json\n[\n    {{\n        "tool_name": "f",\n        "parameters": {DUMPED}\n'
        '    },\n    {\n        "tool_name": "g",\n        "parameters": {}\n    }\n]```',
    ),
    "kimi": (
        known.KIMI,
        "<think>hm <b> hm</think>Well <then<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0"
        f"<|tool_call_argument_begin|>{DUMPED}<|tool_call_end|><|tool_call_begin|>functions.g:1"
        "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
    ),
    "kimi-k3": (
        known.KIMI_K3,
        "<|open|>think<|sep|>hm <b> hm<|close|>think<|sep|><|open|>response<|sep|>Well <then<|close|>response<|sep|>"
        '<|open|>tools<|sep|><|open|>call tool="f" index="1"<|sep|><|open|>argument key="a" type="string"<|sep|>' + A
        + '<|close|>argument<|sep|><|open|>argument key="n" type="number"<|sep|>7<|close|>argument<|sep|>'
        '<|close|>call<|sep|><|open|>call tool="g" index="2"<|sep|><|close|>call<|sep|><|close|>tools<|sep|>'
        "<|close|>message<|sep|>",
    ),
    "solar": (
        known.SOLAR,
        "<|think|>hm <b> hm<|end|><|begin|>assistant<|content|>Well <then<|end|><|begin|>assistant<|tool_calls|>"
        f"<|tool_call:begin|>call00001<|tool_call:name|>f<|tool_call:args|>{DUMPED}<|tool_call:end|>"
        "<|tool_call:begin|>call00002<|tool_call:name|>g<|tool_call:args|>{}<|tool_call:end|><|calls|>",
    ),
    "functionary-3.1": (
        known.FUNCTIONARY, f"Well <then<function=f>{DUMPED}</function><function=g>{{}}</function>",
    ),
    "functionary-3.2": (known.FUNCTIONARY_ALL, f"all\nWell <then>>>f\n{DUMPED}>>>g\n{{}}"),
    "minicpm": (
        known.MINICPM,
        '<think>\nhm <b> hm\n</think>\n\nWell <then\n<function name="f"><param name="a"><![CDATA[' + A
        + ']]></param><param name="n">7</param></function>\n<function name="g"></function>',
    ),
    "tool-calls": (
        known.TOOL_CALLS,
        f'<think>hm <b> hm</think>Well <then\n<tool_calls>\n{{"name": "f", "arguments": {DUMPED}}}\n'
        '{"name": "g", "arguments": {}}\n</tool_calls>',
    ),
    "apriel": (
        known.APRIEL,
        "Here are my reasoning steps:\nhm <b> hm\n[BEGIN FINAL RESPONSE]\nWell <then\n<tool_calls>"
        f'[{{"name": "f", "arguments": {DUMPED}}}, {{"name": "g", "arguments": {{}}}}]</tool_calls>\n<|end|>',
    ),
    "nemotron": (
        known.NEMOTRON,
        f'<think>\nhm <b> hm</think>\nWell <then\n<TOOLCALL>[{{"name": "f", "arguments": {DUMPED}}}, '
        '{"name": "g", "arguments": {}}]</TOOLCALL>',
    ),
    "firefunction": (
        known.FIREFUNCTION,
        f'Well <then functools[{{"name": "f", "arguments": {DUMPED}}}, {{"name": "g", "arguments": {{}}}}]',
    ),
    "apertus": (
        known.APERTUS,
        "<|inner_prefix|>hm <b> hm<|inner_suffix|>Well <then<|tools_prefix|>"
        f'[{{"f": {DUMPED}}}, {{"g": {{}}}}]<|tools_suffix|>',
    ),
    "gigachat": (
        known.GIGACHAT,
        f'Well <then<|message_sep|>\n\nfunction call<|role_sep|>\n{{"name": "f", "arguments": {DUMPED}}}'
        '<|function_call|>{"name": "g", "arguments": {}}<|message_sep|>\n\n',
    ),
    "hunyuan": (
        known.HUNYUAN,
        "<think:opensource>hm <b> hm</think:opensource>Well <then<tool_calls:opensource>\n<tool_call:opensource>f"
        "<tool_sep:opensource>\n<arg_key:opensource>a</arg_key:opensource>\n<arg_value:opensource>" + A
        + "</arg_value:opensource>\n<arg_key:opensource>n</arg_key:opensource>\n<arg_value:opensource>7"
        "</arg_value:opensource>\n</tool_call:opensource>\n<tool_call:opensource>g<tool_sep:opensource>\n"
        "</tool_call:opensource>\n</tool_calls:opensource>",
    ),
    "muse": (
        known.MUSE,
        " to=self<|message|>hm <b> hm<|eom|><|start|>assistant to=user<|message|>Well <then<|eom|><|start|>assistant "
        'to=f<|message|><atem:function_calls>\n<atem:invoke name="f">\n<atem:parameter name="a">' + A
        + '</atem:parameter>\n<atem:parameter name="n">7</atem:parameter>\n</atem:invoke>\n'
        "</atem:function_calls><|eom|><|start|>assistant to=g<|message|><atem:function_calls>\n"
        '<atem:invoke name="g">\n</atem:invoke>\n</atem:function_calls><|eot|>',
    ),
    "minimax-m3": (
        known.MINIMAX_M3,
        "<mm:think>hm <b> hm</mm:think>Well <then]<]minimax[>[<tool_call>\n"
        ']<]minimax[>[<invoke name="f">]<]minimax[>[<a>' + A + "]<]minimax[>[</a>]<]minimax[>[<n>7]<]minimax[>[</n>"
        ']<]minimax[>[</invoke>\n]<]minimax[>[<invoke name="g">]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>',
    ),
}  # fmt: skip


def deltas(family: Family, parts: list[str], tools: Any = TOOLS) -> list[Delta]:
    parser = family.parser(tools)
    return [delta for part in parts for delta in parser.feed(part)] + parser.finish()


def gathered(family: Family, parts: list[str], tools: Any = TOOLS) -> tuple[Any, ...]:
    turn = AssembledTurn()
    turn.add(deltas(family, parts, tools))
    return turn.content, turn.reasoning, [(c.name, c.arguments) for c in turn.calls]


@pytest.mark.parametrize("name", SAID)
def test_thoughts_words_and_calls_come_apart(name: str) -> None:
    family, text = SAID[name]
    content, reasoning, calls = gathered(family, [text])
    assert (content, reasoning) == ("Well <then", "hm <b> hm" if "hm <b> hm" in text else "")
    assert [(called, json.loads(text)) for called, text in calls] == [("f", CALL), ("g", {})]


@pytest.mark.sample(16)
@pytest.mark.parametrize("name", SAID)
def test_a_cut_anywhere_makes_no_difference(name: str) -> None:
    family, text = SAID[name]
    whole = gathered(family, [text])
    for i in range(len(text)):
        assert gathered(family, [text[:i], text[i:]]) == whole, (i, text[:i])
    assert gathered(family, list(text)) == whole
    rng = random.Random(name)
    for _ in range(8):
        places = sorted(rng.sample(range(len(text)), 6))
        parts = [text[i:j] for i, j in zip([0, *places], [*places, len(text)], strict=True)]
        assert gathered(family, parts) == whole


@pytest.mark.sample(16)
@pytest.mark.parametrize("name", SAID)
def test_a_text_that_ends_anywhere_is_read_as_far_as_it_goes(name: str) -> None:
    """Deltas of a beginning are the beginning of the deltas, however it is cut, and nothing fails."""
    family, text = SAID[name]
    for i in range(0, len(text), 3):
        content, _, calls = gathered(family, [text[:i]])
        assert gathered(family, list(text[:i])) == (content, _, calls)
        assert len(calls) <= 2 and [called for called, _ in calls] == ["f", "g"][: len(calls)]


@pytest.mark.sample(16)
@pytest.mark.parametrize("family", [f for f, _ in SAID.values()] + [known.LLAMA], ids=lambda f: f.name)
def test_noise_of_tags_fails_nothing(family: Family) -> None:
    """Random pieces of what the family writes, in any order: no failure, and no difference by cuts."""
    pieces = [
        *family.shown(tools=True),
        "f",
        "g",
        '{"name": "f"',
        "{",
        "}",
        '"',
        ":",
        "\n",
        "x ",
        "=",
        ">",
        "[",
    ]
    rng = random.Random(family.name)
    for _ in range(40):
        parts = rng.choices(pieces, k=14)
        assert gathered(family, parts) == gathered(family, ["".join(parts)]), parts
        assert gathered(family, list("".join(parts))) == gathered(family, parts), parts


THINKERS = [
    name
    for name, (family, text) in SAID.items()
    if family.thoughts and "hm <b> hm" in text and text.count(family.thoughts[0][1]) == 1
]


@pytest.mark.parametrize("name", THINKERS)
def test_a_call_within_a_thought_counts_where_the_thought_is_never_closed(name: str) -> None:
    """Models forget to close their thought before they call; one that only considers a call goes on."""
    family, text = SAID[name]
    opening, closing = family.thoughts[0]
    call = text[text.index("Well <then") + len("Well <then") :]
    never = f"{opening}hm <b> hm {call}"
    content, reasoning, calls = gathered(family, [never])
    assert (content, reasoning.strip()) == ("", "hm <b> hm")
    assert [(called, json.loads(said)) for called, said in calls] == [("f", CALL), ("g", {})]
    assert gathered(family, list(never)) == (content, reasoning, calls)
    considered = f"{opening}hm {call} no{closing}Well"
    for parts in ([considered], list(considered)):
        assert gathered(family, parts) == ("Well", f"hm {call} no", [])
    first = next(tag for tag in family.calls if tag in call)
    for unfinished in (first, f"{first} is what I would write"):
        content, reasoning, calls = gathered(family, [f"{opening}hm {unfinished}"])
        assert (content, calls) == ("", []) and reasoning.replace(" ", "").startswith("hm" + first[:4])


@pytest.mark.parametrize("name", SAID)
def test_no_tool_is_called_that_was_not_offered(name: str) -> None:
    """gpt-oss called tools with `tool_choice: none`, and names that nobody offered reached the client."""
    family, text = SAID[name]
    for tools in ({}, None, {"other": {}}):
        for parts in ([text], list(text)):
            content, reasoning, calls = gathered(family, parts, tools)
            assert calls == [] and A.splitlines()[0] in (content + reasoning).replace("\\", "")


def test_every_family_has_an_example_here() -> None:
    """Llama's has a test of its own below."""
    families = {family.name for _, family in known.MARKERS if family.calls or family.whole}
    assert families - {family.name for family, _ in SAID.values()} == {"llama3"}


def test_elements_within_elements_are_lists_and_objects() -> None:
    mark = known.MARK
    inner = "".join(f"{mark}<item>{mark}<k>{v}{mark}</k>{mark}</item>" for v in ("1", "x"))
    said = f'{mark}<invoke name="f">{mark}<l>{inner}{mark}</l>{mark}<e>{mark}</e>{mark}<s>7{mark}</s>{mark}</invoke>'
    item = {"type": "object", "properties": {"k": {"type": "string"}}}
    properties = {"l": {"type": "array", "items": item}, "e": {"type": "array"}, "s": {}}
    for parts in ([said], list(said)):
        content, _, [(name, text)] = gathered(known.MINIMAX_M3, parts, {"f": {"properties": properties}})
        assert (content, name) == ("", "f")
        assert json.loads(text) == {"l": [{"k": "1"}, {"k": "x"}], "e": [], "s": 7}
    silent = gathered(known.MINIMAX_M3, ["</mm:think>Well"])
    assert silent == ("Well", "", [])


def test_llamas_json_is_a_call_where_it_names_a_tool() -> None:
    llama = known.LLAMA
    call = f'{{"name": "f", "parameters": {DUMPED}}}'
    for text in (call, f"<|python_tag|>{call}", f"  {call}"):
        for parts in ([text], list(text)):
            assert gathered(llama, parts) == ("", "", [("f", DUMPED)])
    assert gathered(llama, [f"{call}; {call}"])[2] == [("f", DUMPED)] * 2
    for text in ('{"name": "nobody", "parameters": {}}', '{"some": ["json"]}', "{not json", "Plain {words}"):
        for parts in ([text], list(text)):
            assert gathered(llama, parts) == (text, "", [])


def test_what_looks_like_a_call_and_is_none_is_content() -> None:
    for text in (
        "<tool_call>soon</tool>",
        '<tool_call>{"x": 1}',
        '<tool_call>{"name": 5}',
        "a < b and <tool",
        "<tool_call>",
        '<tool_call>{"name": "f" "arguments"',
    ):
        content, _, calls = gathered(known.HERMES, list(text))
        if not calls:
            assert content == text


def test_arguments_stream_as_they_come() -> None:
    parser = known.HERMES.parser(TOOLS)
    first = parser.feed('<tool_call>{"name": "f", "arguments": {"a": "on')
    assert [type(delta).__name__ for delta in first] == ["CallBegun", "CallArguments"]
    assert parser.feed("e t") == [CallArguments(0, "e t")]
    xml = known.QWEN_CODER.parser(TOOLS)
    xml.feed("<tool_call>\n<function=f>\n<parameter=a>\none")
    assert xml.feed(' "t') == [CallArguments(0, ' \\"t')]


def test_words_stream_at_once_and_half_a_tag_waits() -> None:
    parser = known.HERMES.parser(TOOLS)
    assert parser.feed("Hello") == [Content("Hello")]
    assert parser.feed(" <tool") == []
    assert parser.feed("box>") == [Content(" <toolbox>")]


def test_without_tools_calls_are_words_and_text_stays_as_it_is() -> None:
    text = '  <tool_call>{"name": "f"}</tool_call> \n'
    assert gathered(known.HERMES, [text], None)[0] == text
    assert gathered(known.PLAIN, list(text), None) == (text, "", [])


@pytest.mark.parametrize(
    ("value", "wanted"),
    [("7", 7), (" 7 ", 7), ("True", True), ("null", None), ("[1, 2]", [1, 2]), ("{'x': None}", {"x": None}),
     ("some words", "some words"), ("NaN", "NaN"), ("", "")],
)  # fmt: skip
def test_what_the_schema_leaves_open_is_read_by_its_looks(value: str, wanted: object) -> None:
    text = f"<tool_call><function=g><parameter=x>{value}</parameter></function></tool_call>"
    [(_, arguments)] = gathered(known.QWEN_CODER, [text])[2]
    assert json.loads(arguments) == {"x": wanted}
