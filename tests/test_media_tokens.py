"""Pictures and sounds in a list of tokens: where they begin and end, and what positions they take."""

from __future__ import annotations

import numpy as np
import pytest

from edgespec.core import media
from edgespec.core.sound import is_sound

FIRST, SECOND = media.cells(b"first", 5, 2), media.cells(b"second", 3, 3)
TEXT = np.array([7, 8, 9], np.int32)
LIST = np.concatenate([TEXT, FIRST, SECOND, TEXT[:1]])  # text 0-2, first 3-7, second 8-10, text 11


def test_a_mediums_cells_are_its_contents_and_no_tokens() -> None:
    assert media.cells(b"first", 5, 2).tolist() == FIRST.tolist() and FIRST.dtype == np.int32
    assert not set(FIRST.tolist()) & set(media.cells(b"another", 5, 2).tolist())
    assert len(set(FIRST.tolist())) == 5, "a picture does not repeat itself"
    assert [media.is_cell(token) for token in (*LIST.tolist(), -1)] == [False] * 3 + [True] * 8 + [False] * 2


@pytest.mark.parametrize(
    ("n", "cut", "before", "after"),
    [(0, False, 0, 0), (3, False, 3, 3), (4, True, 3, 8), (7, True, 3, 8), (8, False, 8, 8), (9, True, 8, 11),
     (10, True, 8, 11), (11, False, 11, 11), (12, False, 12, 12)],
)  # fmt: skip
def test_a_list_is_not_cut_within_a_medium(n: int, cut: bool, before: int, after: int) -> None:
    assert media.cuts(LIST, n) is cut
    assert (media.whole_before(LIST, n), media.whole_after(LIST, n)) == (before, after)


def test_a_list_that_begins_with_a_medium_is_cut_before_it() -> None:
    assert media.whole_before(FIRST, 2) == 0 and media.whole_after(FIRST, 2) == 5
    assert media.begun(FIRST) == 1 and media.end_of_media(FIRST) == 5
    assert list(media.runs(FIRST)) == [(0, 5)]


def test_positions_are_those_that_media_take() -> None:
    assert [media.positions(LIST[:n]) for n in range(13)] == [0, 1, 2, 3, 4, 5, 5, 5, 5, 6, 7, 8, 9]


def test_media_are_counted_left_out_and_found_in_their_order() -> None:
    assert [media.begun(LIST[:n]) for n in (3, 4, 8, 9, 12)] == [0, 1, 1, 2, 2]
    assert media.text_of(LIST).tolist() == [7, 8, 9, 7]
    assert media.end_of_media(LIST) == 11 and media.end_of_media(TEXT) == 0
    assert list(media.runs(LIST)) == [(0, 3), (3, 8), (8, 11), (11, 12)]
    assert list(media.runs(TEXT)) == [(0, 3)] and list(media.runs(TEXT[:0])) == []


@pytest.mark.parametrize(
    ("file", "sound"),
    [(b"RIFF1234WAVEfmt ", True), (b"RIFF1234AVI LIST", False), (b"RIFX1234WAVE", False), (b"ID3\x04", True),
     (b"\xff\xfb\x90", True), (b"\xff\xf3\x90", True), (b"\xff\xf2\x90", True), (b"\xff\xd8\xff", False),
     (b"\x89PNG", False), (b"", False)],
)  # fmt: skip
def test_a_sound_is_known_by_its_first_bytes(file: bytes, sound: bool) -> None:
    assert is_sound(file) is sound
