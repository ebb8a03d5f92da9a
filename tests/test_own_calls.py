"""Calls that come back: rendered as they were generated where the values are equal, for their owner alone."""

from __future__ import annotations

import json

import pytest

from edgespec.chat.generated import Generated
from edgespec.chat.template import render
from edgespec.server.own_calls import LONGEST, MOST, OWNER, OwnCalls

WRITTEN = '{"path":"a.py", "lines":[1,2], "deep":{"b":1,"a":null}}'


def test_other_spacing_and_order_are_the_same_call() -> None:
    calls = OwnCalls()
    calls.note("read", WRITTEN)
    values = json.loads(WRITTEN)
    for sent in (json.dumps(values, sort_keys=True), values):  # Ollama's clients send objects
        found = calls.as_generated("read", sent)
        assert isinstance(found, Generated) and found.text == WRITTEN and found == values
    for other in ({**values, "path": "b.py"}, {**values, "lines": [2, 1]}, {**values, "lines": [1, 2.5]}):
        assert calls.as_generated("read", other) is other
    assert calls.as_generated("write", WRITTEN) is WRITTEN


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ call.arguments | tojson }}", WRITTEN),
        ("{{ call | tojson }}", f'{{"name": "read", "arguments": {WRITTEN}}}'),
        ("{{ [call.arguments, call.arguments] | tojson }}", f"[{WRITTEN}, {WRITTEN}]"),
        ("{{ call.arguments.path }} {{ call.arguments.deep | tojson }}", 'a.py {"b": 1, "a": null}'),
        ("{% for name, value in call.arguments.items() %}{{ name }};{% endfor %}", "path;lines;deep;"),
    ],
)
def test_a_template_prints_arguments_as_they_were_generated_and_reads_their_values(
    template: str, expected: str
) -> None:
    """It printed them with its own spacing, and all behind the first space was read again."""
    call = {"name": "read", "arguments": Generated(json.loads(WRITTEN), WRITTEN)}
    text = render("{% set call = messages[0].call %}" + template, [{"role": "x", "call": call}])
    assert text == expected


def test_another_owner_gets_nothing() -> None:
    calls = OwnCalls()
    token = OWNER.set("a")
    calls.note("read", WRITTEN)
    OWNER.reset(token)
    sent = json.dumps(json.loads(WRITTEN))
    assert calls.as_generated("read", sent) is sent


def test_it_is_bounded_and_takes_what_is_no_json() -> None:
    calls = OwnCalls()
    for i in range(MOST + 10):
        calls.note("f", f'{{"a":{i}}}')
    assert len(calls._texts) == MOST
    assert isinstance(calls.as_generated("f", {"a": MOST + 9}), Generated)
    assert not isinstance(calls.as_generated("f", {"a": 0}), Generated)
    for odd in ("{", "[" * 100_000, "", None, {"a": object()}):
        if isinstance(odd, str):
            calls.note("f", odd)
        assert calls.as_generated("f", odd) is odd
    calls.note("g", json.dumps(LONGEST * "x"))
    assert calls.as_generated("g", LONGEST * "x") == LONGEST * "x"
