"""What is known of a pair comes back from its file as it was; a file that makes no sense is a fresh start."""

from __future__ import annotations

import copy
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgespec.core.drafters.lookup import SuffixLookup
from edgespec.core.drafters.recycling import TokenRecycling
from edgespec.core.pace.cost_table import CostTable, Slowness
from edgespec.core.pace.costs import Costs
from edgespec.core.pace.record import Gain, Record
from edgespec.core.pace.tuning import TUNING
from edgespec.engine import experience
from edgespec.engine.experience import FORMAT, MOST_KINDS, Knowledge, load, save


def some_known() -> Knowledge:
    """Returns what some hundred rounds might have left."""
    target = CostTable({1: 0.03, 4: 0.04, 48: 0.3}, slope=0.02, slowness=Slowness(1.1, 0.9))
    for n in (1, 3, 1):
        target.learn(n, 100, 0.035 if n == 3 else 0.03, plain=n == 1)
    known = Knowledge(Costs(target, CostTable({1: 0.002, 64: 0.02})))
    rng = np.random.default_rng(1)
    for kind in ("drawn at temperature 0.8", "coupled at temperature 0.0"):
        held = known.at(kind)
        held.record = Record(Gain(31.5, 20.25), Gain(40.0, 32.0), -2.5, 1.5, 777, 33, 6.5, 9.25)
        for guesser in (SuffixLookup(), TokenRecycling(50)):
            held.take_up(guesser)
        for odds in (held.model, held.places, *held.free.values()):
            for _ in range(200):
                odds.note(rng.random(), bool(rng.random() < 0.6))
    return known


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "pairs" / "pair.json"


def test_what_was_saved_comes_back(path: Path) -> None:
    known = some_known()
    save(path, known)
    assert load(path) == known
    assert (
        load(path).at("drawn at temperature 0.8").record.budget
        == known.at("drawn at temperature 0.8").record.budget
    )
    save(path, load(path))
    assert load(path) == known


def test_kinds_are_kept_apart_and_new_ones_begin_anew() -> None:
    known = some_known()
    fresh = known.at("drawn at temperature 1.5")
    assert fresh == experience.Experience() and known.at("drawn at temperature 1.5") is fresh
    fresh.record.lost = 3.0
    fresh.model.note(0.5, True)
    assert Knowledge().at("other") == experience.Experience(), "and what they learn is their own"


def test_as_many_kinds_are_known_as_are_used(path: Path) -> None:
    """Each temperature to a tenth is a kind: their number grew without a bound, in memory and in the file."""
    known = some_known()
    usual = known.at("drawn at temperature 0.8")
    for i in range(3 * MOST_KINDS):
        known.at(f"coupled at temperature {i / 10:.1f}")
        assert known.at("drawn at temperature 0.8") is usual, "what is used stays"
    assert len(known.kinds) == MOST_KINDS
    save(path, known)
    assert load(path) == known and list(load(path).kinds) == list(known.kinds), "the order is kept, too"

    held = json.loads(path.read_text())
    one = held["kinds"]["drawn at temperature 0.8"]
    held["kinds"] = {f"older {i}": one for i in range(MOST_KINDS)} | held["kinds"]
    path.write_text(json.dumps(held))
    assert load(path) == known, "a file that had grown is cut"


def test_without_costs_nothing_is_saved(path: Path) -> None:
    save(path, Knowledge())
    assert not path.parent.exists() and load(path) == Knowledge()


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{", b"null", b"[]", b"7", b"\xff\xfe", b"{}", b"[" * 100_000, b'{"format": 1}',
        b'{"format": 1, "costs": 3, "kinds": {}}', b'{"format": 1, "costs": {"target": []}, "kinds": []}',
    ],
)  # fmt: skip
def test_a_file_that_makes_no_sense_is_a_fresh_start(path: Path, content: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    assert load(path) == Knowledge()
    save(path, some_known())
    assert load(path) == some_known(), "and is written over"


def test_a_folder_in_its_place_is_a_fresh_start(path: Path) -> None:
    path.mkdir(parents=True)
    assert load(path) == Knowledge()
    save(path, some_known())
    assert path.is_dir() and list(path.parent.iterdir()) == [path]


def test_another_format_is_not_read(path: Path) -> None:
    save(path, some_known())
    held = json.loads(path.read_text())
    path.write_text(json.dumps({**held, "format": FORMAT + 1}))
    assert load(path) == Knowledge()


def places(held: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yields the way to every value in a nest of objects and lists."""
    yield way
    if isinstance(held, dict | list):
        for key in held if isinstance(held, dict) else range(len(held)):
            yield from places(held[key], (*way, key))


def with_value(held: Any, way: tuple[Any, ...], value: Any) -> Any:
    held = copy.deepcopy(held)
    inner = held
    for key in way[:-1]:
        inner = inner[key]
    inner[way[-1]] = value
    return held


WRONG = (None, "five", [], {}, -1e6, math.nan, math.inf, -math.inf, 1e300, True)


def test_any_value_may_be_wrong_and_nothing_that_is_read_can_do_harm(path: Path) -> None:
    """A number that is none would be reckoned with for ever, for it is saved again."""
    save(path, some_known())
    held = json.loads(path.read_text())
    held["kinds"] = dict(list(held["kinds"].items())[:1])
    refused = 0
    for way in [way for way in places(held) if way and (not isinstance(way[-1], int) or way[-1] < 2)]:
        for value in WRONG:
            path.write_text(json.dumps(with_value(held, way, value)))
            known = load(path)
            refused += known == Knowledge()
            for kind in known.kinds.values():
                assert -TUNING.credit <= kind.record.lost < math.inf
                for odds in (kind.model, kind.places, *kind.free.values()):
                    assert all(0 <= odds.of_bin(i) <= 1 for i in range(10))
                assert kind.record.model.over(1.0) >= 0 and kind.record.budget < math.inf
            if known.costs:
                assert all(0 < s < math.inf for s in known.costs.target.curve(49, 1000)[1:])
    assert refused > 300


def test_a_disk_that_is_full_is_passed_over_and_leaves_the_old_file(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(path, some_known())
    newer = some_known()
    newer.at("another")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        save(path, newer)
    assert load(path) == some_known()
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", half_written)
        save(path, newer)
    assert load(path) == some_known()
    assert [file.name for file in path.parent.iterdir()] == [path.name], "and no half file beside it"


def half_written(path: Path, text: str, **_: object) -> int:
    """Writes to a disk that is full in the middle."""
    path.write_bytes(text[: len(text) // 2].encode())
    raise OSError(28, "No space left on device")


def test_a_folder_that_cannot_be_made_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    save(tmp_path / "file" / "pairs" / "pair.json", some_known())
    assert load(tmp_path / "file" / "pairs" / "pair.json") == Knowledge()


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_is_closed_is_passed_over(path: Path) -> None:
    path.parent.mkdir()
    path.parent.chmod(0o500)
    try:
        save(path, some_known())
    finally:
        path.parent.chmod(0o700)
    assert list(path.parent.iterdir()) == []
