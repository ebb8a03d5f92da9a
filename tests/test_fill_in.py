"""The prompt of a gap: the order of its parts, and what is cut if there is no room."""

from __future__ import annotations

from typing import Any

from edgespec.chat.fill_in import Chunk, Gap, arranged
from edgespec.core.fill_tokens import FillTokens

MARKS = FillTokens(prefix=101, suffix=102, middle=103)
REPOSITORY = FillTokens(prefix=101, suffix=102, middle=103, repository=104, separator=105)
GAP: dict[str, Any] = {
    "prefix": range(1, 9), "prompt": (11, 12), "suffix": range(20, 30), "chunks": (),
    "repository": (40,), "last_file": (41,), "snippet": (42,),
}  # fmt: skip


def laid(marks: FillTokens = MARKS, window: int = 64, room: int = 1000, **gap: Any) -> list[int]:
    return list(arranged(Gap(**{**GAP, **gap}), marks, bos=None, window=window, room=room))


def test_a_gap_stands_between_its_texts() -> None:
    assert laid() == [101, *range(1, 9), 11, 12, 102, *range(20, 30), 103]
    start = arranged(Gap(**GAP), MARKS, bos=0, window=64, room=1000)
    assert start[0] == 0 and list(start[1:]) == laid()


def test_what_is_farthest_from_the_gap_is_cut() -> None:
    cut = laid(window=8)
    assert cut == [
        101,
        3,
        4,
        5,
        6,
        7,
        8,
        11,
        12,
        102,
        103,
    ]  # 3 of 4 parts before it; the prompt counts behind
    assert laid(window=32)[-5:] == [20, 21, 22, 23, 103]


def test_chunks_stand_in_front_under_their_names() -> None:
    chunks = [Chunk((50,), (51, 52)), Chunk((60,), (61,))]
    plain = laid(chunks=chunks)
    assert plain[: plain.index(101)] == [42, 51, 52, 42, 61]
    named = laid(REPOSITORY, chunks=chunks)
    assert named[: named.index(101)] == [104, 40, 105, 50, 51, 52, 105, 60, 61, 105, 41]


def test_the_last_chunks_have_what_room_there_is() -> None:
    chunks = [Chunk((), range(200, 300)), Chunk((), range(300, 305))]
    used = 8 + 2 + 10
    around = laid(chunks=chunks, room=used + 7)
    assert around[: around.index(101)] == [299, 42, *range(300, 305)]
    assert laid(chunks=chunks, room=used)[0] == 101
