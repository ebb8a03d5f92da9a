"""Calls that come back: rendered as they were generated where the values are equal, for their owner alone."""

from __future__ import annotations

import json

from edgespec.server.own_calls import LONGEST, MOST, OWNER, OwnCalls

WRITTEN = '{"path":"a.py", "lines":[1,2], "deep":{"b":1,"a":null}}'


def test_other_spacing_and_order_are_the_same_call() -> None:
    calls = OwnCalls()
    calls.note("read", WRITTEN)
    values = json.loads(WRITTEN)
    assert calls.as_generated("read", json.dumps(values, sort_keys=True)) == WRITTEN
    assert calls.as_generated("read", values) == WRITTEN, "Ollama's clients send objects"
    for other in ({**values, "path": "b.py"}, {**values, "lines": [2, 1]}, {**values, "lines": [1, 2.5]}):
        assert calls.as_generated("read", other) is other
    assert calls.as_generated("write", WRITTEN) is WRITTEN


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
    assert calls.as_generated("f", {"a": MOST + 9}) == f'{{"a":{MOST + 9}}}'
    for odd in ("{", "[" * 100_000, "", None, {"a": object()}):
        if isinstance(odd, str):
            calls.note("f", odd)
        assert calls.as_generated("f", odd) is odd
    calls.note("g", json.dumps(LONGEST * "x"))
    assert calls.as_generated("g", LONGEST * "x") == LONGEST * "x"
