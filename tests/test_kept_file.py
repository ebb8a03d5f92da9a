"""A kept file is whole or not there, whatever happens while it is written."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from commands import posix
from full_disk import no_room

from edgespec_models.kept_file import copy_whole, remove_left, replacing, write_whole


def test_the_old_file_stays_until_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    path.write_text("old")
    with replacing(path) as aside:
        aside.write_text("new")
        assert path.read_text() == "old" and aside.parent == tmp_path
    assert path.read_text() == "new" and os.listdir(tmp_path) == ["kept"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, OSError])
def test_what_fails_leaves_nothing(tmp_path: Path, error: type[BaseException]) -> None:
    with pytest.raises(error), replacing(tmp_path / "kept") as aside:
        aside.write_text("half")
        raise error
    assert not list(tmp_path.iterdir())


@posix
def test_a_full_disk_names_the_file_that_was_wanted(tmp_path: Path) -> None:
    """The file beside it is nobody's business, and a full disk names none."""
    path = tmp_path / "folder" / "kept"
    with no_room(), pytest.raises(OSError, match="File too large") as failed:
        write_whole(path, "text")
    assert failed.value.filename == str(path) and not list(path.parent.iterdir())
    with pytest.raises(FileNotFoundError) as failed, replacing(tmp_path / "none" / "kept"):
        pass
    assert failed.value.filename == str(tmp_path / "none" / "kept")


@posix
def test_texts_are_private_and_copies_as_usual(tmp_path: Path) -> None:
    write_whole(tmp_path / "secret", "text")
    copy_whole(tmp_path / "secret", tmp_path / "copy")
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("secret", "copy")]
    usual = os.umask(0)
    os.umask(usual)
    assert modes == [0o600, 0o666 & ~usual]


def test_two_may_write_at_once(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    with replacing(path) as one, replacing(path) as other:
        one.write_text("one")
        other.write_text("other")
    assert path.read_text() == "one" and os.listdir(tmp_path) == ["kept"]


def test_what_a_killed_program_left_is_removed_and_another_programs_is_not(tmp_path: Path) -> None:
    """Names of files may hold what a pattern would take for more."""
    path = tmp_path / "kept[1]"
    left = [tmp_path / f"kept[1].{number}.part" for number in (f"{os.getpid()}-0", "4194999-3", "mine")]
    for file in (*left, tmp_path / "kept1.4194999-3.part"):
        file.touch()
    remove_left(path.parent, path.name)
    assert [file.exists() for file in left] == [True, False, True]
    assert (tmp_path / "kept1.4194999-3.part").exists()
