"""A call that follows its family's form parses, names a tool that was offered, and fits its schema."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping
from typing import Any

import jsonschema
import numpy as np
import pytest

from edgespec.chat.families import known
from edgespec.chat.families.deltas import AssembledTurn
from edgespec.chat.families.family import Family
from edgespec.grammar.grammar import Grammar, Triggers
from edgespec.grammar.matchers import Matchers
from edgespec.server.choice_results import ChoiceResults

FAMILIES = {family.name: family for _, family in known.MARKERS if family.announcements}
END = 256
FORMATS = jsonschema.FormatChecker(["uuid", "email", "ipv4"])
FORMATS.checks("date")(lambda text: re.fullmatch(r"\d{4}-[01]\d-[0-3]\d", text) is not None)
NESTED: dict[str, Any] = {
    "type": "object",
    "properties": {
        "at": {
            "type": "object",
            "properties": {"lat": {"type": "number"}, "ok": {"type": "boolean"}},
            "required": ["lat"],
            "additionalProperties": False,
        },
        "rows": {
            "type": "array",
            "items": {"type": "array", "items": {"type": "integer"}, "maxItems": 2},
            "minItems": 1,
        },
    },
    "required": ["rows"],
    "additionalProperties": False,
}
SCHEMAS: dict[str, dict[str, Any]] = {
    "none": {"type": "object", "properties": {}, "additionalProperties": False},
    "text": {
        "type": "object",
        "properties": {"text": {"type": "string"}, "size": {"type": "string", "enum": ["s", "m l", "x/\\y"]}},
        "required": ["text"],
        "additionalProperties": False,
    },
    "limits": {
        "type": "object",
        "properties": {
            "code": {"type": "string", "minLength": 2, "maxLength": 5},
            "n": {"type": "integer", "minimum": 1, "maximum": 20},
            "share": {"type": ["number", "null"]},
        },
        "required": ["code", "n"],
        "additionalProperties": False,
    },
    "kinds": {
        "type": "object",
        "properties": {
            "on": {"type": "boolean"},
            "is": {"const": "fixed"},
            "maybe": {"type": ["string", "null"]},
            "any": {},
            "way": {"anyOf": [{"type": "integer"}, {"type": "array", "items": {"type": "boolean"}}]},
        },
        "required": ["is"],
        "additionalProperties": False,
    },
    "formats": {
        "type": "object",
        "properties": {
            "day": {"type": "string", "format": "date"},
            "at": {"type": "string", "format": "date-time"},
            "id": {"type": "string", "format": "uuid"},
            "mail": {"type": "string", "format": "email", "maxLength": 30},
            "ip": {"type": "string", "format": "ipv4"},
        },
        "required": ["day", "id", "ip"],
        "additionalProperties": False,
    },
    "nested": NESTED,
    "with defs": {
        "type": "object",
        "$defs": {"n": {"type": "integer", "minimum": 5}},
        "properties": {"n": {"$ref": "#/$defs/n"}, "many": {"type": "array", "items": {"$ref": "#/$defs/n"}}},
        "required": ["n"],
        "additionalProperties": False,
    },
}
TOOLS = {f"tool_{i}": schema for i, schema in enumerate(SCHEMAS.values())}
MATCHERS = Matchers(lambda _: [*(bytes([i]) for i in range(256)), b""], frozenset({END}), 257)


def grammar_of(family: Family, tools: Mapping[str, Any]) -> Grammar:
    tags = family.announcements
    return Grammar(
        "lark",
        family.form(tools),
        lenient=True,
        triggers=Triggers(tags, family.beginnings(tools), family.thoughts),
    )


def drawn(grammar: Grammar, rng: random.Random, start: str = "", most: int = 3000) -> str:
    """Returns a text that begins so, each of whose bytes is drawn from those that the grammar allows.

    Long strings of noise would say little: what may end something is drawn more often.
    """
    masks = MATCHERS.masks(grammar, 0)
    text = list(start.encode())
    assert masks.fitting([], text) == len(text), start
    while len(text) < most:
        allowed = masks.after(np.array(text, np.int32))
        if allowed is None:  # the call has ended
            return bytes(text).decode()
        ids = [int(i) for i in allowed.ids]
        likely = [i for i in ids if i < 128 and chr(i) in '"]})>,<|\\n0' or i == END]
        token = rng.choice(likely if likely and rng.random() < 0.7 else ids)
        if token == END:
            return bytes(text).decode()
        text.append(token)
    return ""


def is_fit(arguments: str, schema: Mapping[str, Any]) -> bool:
    try:
        jsonschema.validate(json.loads(arguments), schema, format_checker=FORMATS)
    except (ValueError, jsonschema.ValidationError):
        return False
    return True


def turn_of(family: Family, text: str, tools: Mapping[str, Any]) -> AssembledTurn:
    turn, parser = AssembledTurn(), family.parser(tools)
    for i in range(0, len(text), 7):
        turn.add(parser.feed(text[i : i + 7]))
    turn.add(parser.finish())
    return turn


@pytest.mark.parametrize("name", sorted(FAMILIES))
@pytest.mark.parametrize("n", [3, pytest.param(320, marks=pytest.mark.slow)])
def test_whatever_is_drawn_from_a_form_is_a_call_that_fits(name: str, n: int) -> None:
    """With `auto` at T=1.5, 86 of 86 calls of the embedded pair did not parse or did not fit."""
    family, rng = FAMILIES[name], random.Random(f"{name} {n}")
    ended = 0
    for _ in range(n):
        chosen = rng.choice(list(TOOLS))
        tools = {chosen: TOOLS[chosen], "other": SCHEMAS["none"]}
        tag = rng.choice([*family.announcements, *family.beginnings(tools)])
        before = "" if tag in family.beginnings(tools) else rng.choice(["Let me see. ", "a < b"])
        if name == "functionary-3.2" and before:
            before = f"all\n{before}"
        if name == "harmony" and before:
            before = f"<|channel|>final<|message|>{before}<|end|>" + "<|start|>assistant" * (
                "start" not in tag
            )
        text = drawn(grammar_of(family, tools), rng, before + tag)
        if not text:
            continue
        ended += 1
        turn = turn_of(family, text, tools)
        assert turn.calls, text
        for call in turn.calls:
            assert call.name in tools, text
            assert is_fit(call.arguments, tools[call.name]), (text, call.arguments)
        if name not in ("muse", "harmony"):
            assert turn.content.strip() == before.removeprefix("all\n").strip(), text
    assert ended >= n // 2


@pytest.mark.parametrize(
    ("text", "unread"),
    [
        ('<tool_call>\n{"name": "other", "arguments": {}}\n</tool_call>', 0),
        ('<tool_call>\n{"name": "stranger", "arguments": {}}\n</tool_call>', 1),
        ("I would write <tool_call> and then nothing, twice: <tool_call>", 2),
        ("nothing of the kind", 0),
    ],
)
def test_calls_that_cannot_be_read_are_counted(text: str, unread: int) -> None:
    """An agent saw text, and nobody could tell a call that broke from an answer."""
    parser = FAMILIES["hermes"].parser({"other": SCHEMAS["none"]})
    turn = AssembledTurn()
    for delta in (parser.feed(text), parser.finish()):
        turn.add(delta)
    assert parser.unread == unread and bool(turn.calls) == ("other" in text)
    found = ChoiceResults(normalized=("a clock",)).edgespec_object(parser.unread)
    assert found == {"edgespec": {"normalized": ["a clock"]} | ({"unread_calls": unread} if unread else {})}
    assert ("edgespec" in ChoiceResults().edgespec_object(parser.unread)) == bool(unread)


UNFIT: tuple[dict[str, Any], ...] = tuple(
    {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    for schema in (
        {"type": "string", "enum": []},
        {"type": "string", "minLength": 5, "maxLength": 2},
        {"type": "integer", "minimum": 5, "maximum": 2},
    )
)


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_a_schema_that_nothing_fits_frees_the_arguments_of_its_own_tool_alone(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It freed the calls of all tools, or its tool could not be called."""
    family, rng, called = FAMILIES[name], random.Random(name), set()
    for unfit in UNFIT:
        tools = {"fine": SCHEMAS["limits"], "unfit": unfit}
        grammar = grammar_of(family, tools)
        for _ in range(12):
            before = "all\nx" if name == "functionary-3.2" else ""
            text = drawn(grammar, rng, before + rng.choice(family.announcements))
            for call in turn_of(family, text, tools).calls if text else ():
                called.add(call.name)
                assert call.name == "unfit" or is_fit(call.arguments, tools["fine"]), text
    assert called == {"fine", "unfit"}
    assert len(caplog.messages) <= 3
    assert all("are not constrained: Unsatisfiable schema" in text for text in caplog.messages)


@pytest.mark.parametrize("name", sorted(FAMILIES))
@pytest.mark.parametrize("n", [1, pytest.param(100, marks=pytest.mark.slow)])
def test_a_turn_that_must_call_is_calls_that_fit_and_nothing_else(name: str, n: int) -> None:
    """Whatever the family, it was one call, as JSON."""
    family, rng = FAMILIES[name], random.Random(f"{name} {n}")
    counts = set()
    for _ in range(n):
        chosen = rng.choice(list(TOOLS))
        tools = {chosen: TOOLS[chosen], "other": SCHEMAS["none"]}
        several = rng.random() < 0.5
        text = drawn(Grammar("lark", family.only_calls(tools, several=several), lenient=True), rng)
        if not text:
            continue
        turn = turn_of(family, text, tools)
        assert turn.calls and not turn.content.strip(), text
        for call in turn.calls:
            assert call.name in tools and is_fit(call.arguments, tools[call.name]), (text, call.arguments)
        counts.add(len(turn.calls))
    assert n < 100 or family.whole or max(counts) > 1
