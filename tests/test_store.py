"""Installed pairs are in one file that is always whole, and removing one frees what nothing else uses."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import posix
from full_disk import no_room

from edgespec.commands.cli import main
from edgespec.system.config import data_folder
from edgespec_models.shelf.store import InstalledModel, InstalledPair, Speed, Store, StoreError


def blob(folder: Path, repo: str, name: str, content: bytes, commit: str = "c1") -> Path:
    """Puts a file into a cache laid out like the hub's; returns its name in the snapshot."""
    digest = f"sha-{len(content)}-{content[:1].hex()}"
    base = folder / f"models--{repo.replace('/', '--')}"
    (base / "blobs").mkdir(parents=True, exist_ok=True)
    (base / "blobs" / digest).write_bytes(content)
    pointer = base / "snapshots" / commit / name
    pointer.parent.mkdir(parents=True, exist_ok=True)
    pointer.symlink_to(base / "blobs" / digest)
    return pointer


def model(path: Path, *, fetched: bool = True) -> InstalledModel:
    return InstalledModel((str(path),), path.stat().st_size, "org/repo", "c1", ("0" * 64,), fetched)


def pair(
    name: str, target: Path, draft: Path | None, *, at: float = 1.0, fetched: bool = True
) -> InstalledPair:
    return InstalledPair(
        name, model(target, fetched=fetched), model(draft, fetched=fetched) if draft else None, "pulled", at
    )


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "data" / "edgespec")


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    return (
        blob(tmp_path / "hub", "org/big", "big.gguf", b"T" * 1000),
        blob(tmp_path / "hub", "org/small", "small.gguf", b"D" * 10),
    )


def test_what_was_added_is_read_again(store: Store, files: tuple[Path, Path]) -> None:
    assert (store.pairs(), store.default()) == ([], None)
    first = pair("first", *files)
    store.add(first)
    store.add(pair("second", files[0], None, at=2.0))
    assert [p.name for p in store.pairs()] == ["first", "second"]
    assert Store(store.folder).get("first") == first
    assert store.default() == "second", "the one pulled last"
    assert store.get("first").size == 1010


def test_use_and_speed_are_kept_until_the_files_change(store: Store, files: tuple[Path, Path]) -> None:
    store.add(pair("p", *files))
    store.note_use("p")
    store.note_speed("p", 30.0, 20.0)
    store.note_speed("p", 33.0)
    store.add(pair("p", *files, at=5.0))
    kept = store.get("p")
    assert kept.last_used and kept.speed
    assert kept.speed == Speed(33.0, 20.0, kept.speed.at)
    store.add(pair("p", files[0], None, at=6.0))
    assert store.get("p").speed is None, "a speed belongs to the files it was measured with"


def test_removing_frees_what_no_other_pair_uses(store: Store, files: tuple[Path, Path]) -> None:
    store.add(pair("first", *files))
    store.add(pair("second", files[0], None, at=2.0))
    removed = store.remove("first")
    assert (removed.deleted, removed.freed) == ((str(files[1]),), 10)
    assert removed.kept == {str(files[0]): "pair second uses it"}
    assert files[0].exists() and not files[1].exists()
    assert not list((files[1].parents[2] / "blobs").iterdir()), "the content goes with its name"
    assert store.remove("second").freed == 1000
    assert (store.pairs(), store.default()) == ([], None)


def test_content_that_another_revision_names_stays(store: Store, tmp_path: Path) -> None:
    path = blob(tmp_path / "hub", "org/big", "big.gguf", b"T" * 1000)
    other = blob(tmp_path / "hub", "org/big", "big.gguf", b"T" * 1000, commit="c2")
    store.add(pair("p", path, None))
    assert store.remove("p").freed == 0
    assert other.read_bytes() == b"T" * 1000 and not path.exists()


def test_files_of_others_are_never_deleted(store: Store, files: tuple[Path, Path]) -> None:
    store.add(pair("p", *files, fetched=False))
    removed = store.remove("p")
    assert (removed.deleted, removed.freed) == ((), 0)
    assert set(removed.kept.values()) == {"EdgeSpec did not download it"}
    assert all(path.exists() for path in files)


def test_files_can_be_kept(store: Store, files: tuple[Path, Path]) -> None:
    store.add(pair("p", *files))
    assert store.remove("p", keep_files=True).deleted == ()
    assert all(path.exists() for path in files)


def test_what_was_fetched_once_stays_known_as_ours(store: Store, files: tuple[Path, Path]) -> None:
    """A second pull finds its files in the cache and fetches nothing; they were ours all the same."""
    store.add(pair("p", *files))
    store.add(pair("p", *files, fetched=False))
    assert store.remove("p").freed == 1010


def test_files_of_an_older_version_are_left_over_and_can_be_freed(
    store: Store, files: tuple[Path, Path], tmp_path: Path
) -> None:
    """Pulling a pair anew, after its repository has changed, once left gigabytes that nothing named."""
    store.add(pair("p", *files))
    newer = blob(tmp_path / "hub", "org/big", "big.gguf", b"N" * 2000, commit="c2")
    store.add(pair("p", newer, files[1]))
    assert store.leftovers() == {str(files[0]): 1000}
    assert store.remove_leftovers() == 1000
    assert not files[0].exists() and newer.exists() and files[1].exists()
    assert store.leftovers() == {}
    store.note_fetched([str(newer)])
    store.add(pair("p", newer, files[1]))
    assert store.leftovers() == {}, "what a pair uses is not a leftover"


def test_two_programs_that_write_lose_nothing(store: Store, files: tuple[Path, Path]) -> None:
    def add(letter: str) -> None:
        for i in range(8):
            Store(store.folder).add(pair(f"{letter}{i}", *files))

    threads = [threading.Thread(target=add, args=(letter,)) for letter in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(store.pairs()) == 24
    assert not list(store.folder.glob("*.part"))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", "is damaged: move it away"),
        ("[]", "is damaged"),
        ('{"version": 1, "pairs": {"p": {"name": "p"}}}', "is damaged"),
        ('{"version": 99, "pairs": {}}', "written by a newer EdgeSpec"),
    ],
)
def test_a_damaged_store_is_reported_and_never_written_over(
    store: Store, files: tuple[Path, Path], content: str, expected: str
) -> None:
    store.folder.mkdir(parents=True)
    store.path.write_text(content)
    for call in (store.pairs, lambda: store.add(pair("p", *files))):
        with pytest.raises(StoreError, match=expected):
            call()
    assert store.path.read_text() == content


def places(value: object, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Yields where in a JSON document something stands."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inner:
        yield from places(item, (*path, key))


def changed(value: Any, path: tuple[str | int, ...], to: object) -> Any:
    if not path:
        return to
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = changed(value[path[0]], path[1:], to)
    return copy


WRONG = (None, True, 1e300, "words", [7], {"a": 1})


@pytest.mark.slow
def test_a_store_of_wrong_types_is_reported_by_every_command(
    files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Valid JSON whose values were of other types ended `list` and `show` in a traceback."""
    store = Store(data_folder())
    store.add(pair("p", *files))
    store.note_speed("p", 12.5, 8.0)
    store.note_use("p")
    sound = json.loads(store.path.read_text())
    refused = 0
    for path in places(sound):
        for wrong in WRONG:
            store.path.write_text(json.dumps(changed(sound, path, wrong)))
            for words in (["list"], ["show", "p"]):
                code = main(words)
                err = capsys.readouterr().err
                assert code in (0, 2) and err.count("\n") == (code != 0), (path, wrong, words, err)
                refused += "is damaged: move it away" in err
    assert refused > 150


def test_show_says_how_attention_is_evaluated_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "embedded"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("embedded: the pair that ships with EdgeSpec")
    assert re.search("^with    flash attention: (on|off), measured here at [0-9.]+ of the time", shown, re.M)


def test_what_is_no_file_or_no_text_is_reported_without_python(store: Store) -> None:
    store.path.mkdir(parents=True)
    with pytest.raises(StoreError, match=r"pairs.json cannot be read \(Is a directory\)"):
        store.pairs()
    store.path.rmdir()
    store.path.write_bytes(b"\xff\xfe")
    with pytest.raises(StoreError, match="is damaged: move it away"):
        store.pairs()


@posix
def test_a_write_that_fails_leaves_the_old_file(store: Store, files: tuple[Path, Path]) -> None:
    store.add(pair("old", *files))
    with no_room(), pytest.raises(StoreError, match="cannot be written .File too large"):
        store.add(pair("new", *files))
    assert [p.name for p in store.pairs()] == ["old"]
    assert not list(store.folder.glob("*.part"))


@pytest.mark.parametrize("name", ["", "Upper", "-x", "a b", "../x", "x" * 65, "embedded"])
def test_names_that_would_cause_trouble_are_refused(
    store: Store, files: tuple[Path, Path], name: str
) -> None:
    with pytest.raises(StoreError):
        store.add(pair(name, *files))


def test_an_unknown_pair_names_those_installed(store: Store, files: tuple[Path, Path]) -> None:
    store.add(pair("mine", *files))
    with pytest.raises(StoreError, match=r"no pair 'yours' is installed \(installed: mine\)"):
        store.get("yours")


def test_the_file_can_be_read_by_people(store: Store, files: tuple[Path, Path]) -> None:
    store.add(pair("p", *files))
    assert json.loads(store.path.read_text())["pairs"]["p"]["target"]["paths"] == [str(files[0])]
