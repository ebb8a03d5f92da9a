"""A value from JSON has the type that is declared for it, or is refused."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from edgespec_models.checked_value import checked, kept_value


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


@pytest.mark.parametrize("content", [b"", b"[", b"\xff", b"7", b'{"size": "3"}', b"[" * 100_000, None])
def test_a_file_that_makes_no_sense_has_no_value(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "part.json"
    if content is not None:
        path.write_bytes(content)
    assert kept_value(Part, path) is None
    path.write_text('{"size": 3}')
    assert kept_value(Part, path) == Part(3)
    assert kept_value(Part, tmp_path) is None
