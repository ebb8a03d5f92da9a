"""A value from JSON has the type that is declared for it, or is refused."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from edgespec_models.checked_value import checked


@dataclass(frozen=True)
class Part:
    size: int
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Whole:
    part: Part
    kind: Literal["one", "other"]
    speed: float = 1.0
    again: Part | None = None
    seen: set[str] = field(default_factory=set)
    by_name: dict[str, Part] = field(default_factory=dict)
    on: bool = False
    rest: Any = None


LEAST: dict[str, Any] = {"part": {"size": 3}, "kind": "one"}


def test_what_json_has_becomes_what_was_declared() -> None:
    assert checked(Whole, LEAST) == Whole(Part(3), "one")
    named = {"size": 1, "names": ["a", "b"], "unknown": 7}
    more = {"speed": 2, "again": named, "seen": ["x", "x"], "by_name": {"n": named}, "on": True, "rest": [{}]}
    part = Part(1, ("a", "b"))
    found = checked(Whole, {**LEAST, **more})
    assert found == Whole(Part(3), "one", 2.0, part, {"x"}, {"n": part}, True, [{}])
    assert type(found.speed) is float


@pytest.mark.parametrize(
    "wrong",
    [
        {"part": None}, {"part": []}, {"part": {}}, {"part": {"size": 1.5}}, {"part": {"size": True}},
        {"kind": "none"}, {"kind": []}, {"speed": "2"}, {"speed": True}, {"speed": math.nan},
        {"speed": math.inf}, {"again": 1}, {"seen": "x"}, {"seen": [1]}, {"by_name": {"n": 1}}, {"on": 1},
        {"speed": 10**400},
    ],
)  # fmt: skip
def test_another_type_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        checked(Whole, {**LEAST, **wrong})


def test_what_is_missing_is_refused() -> None:
    for name in LEAST:
        with pytest.raises(TypeError):
            checked(Whole, {key: value for key, value in LEAST.items() if key != name})
    with pytest.raises(TypeError):
        checked(Whole, [LEAST])
