"""Text is released without broken characters or half stop strings, wherever token borders are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from edgespec.core.text import TextRelease
from edgespec.errors import SettingError

SAMPLE = "naïve façade: 你好, мир — 👩‍👩‍👧 ∑∞ \U0010ffff end"


def release(pieces: Sequence[bytes], stop: Sequence[str] = ()) -> tuple[list[str], bool]:
    """Returns what came out after each piece, and last what the flush gave; and whether it stopped."""
    text = TextRelease(pieces.__getitem__, stop)
    out = [text.feed(i) for i in range(len(pieces))]
    return [*out, text.flush()], text.stopped


def cuttings(rng: np.random.Generator, data: bytes, times: int) -> list[list[bytes]]:
    """Returns ways of cutting `data` into pieces: each byte alone, all at once, and at random."""
    ways = [[data[i : i + 1] for i in range(len(data))], [data]]
    for _ in range(times):
        at = np.flatnonzero(rng.random(len(data)) < rng.choice([0.1, 0.4, 0.8])).tolist()
        ways.append([data[a:b] for a, b in zip([0, *at], [*at, len(data)], strict=True)])
    return ways


def before(text: str, stop: Sequence[str]) -> str:
    """Returns `text` up to the stop string that is completed first (the earlier beginning among those)."""
    for end in range(1, len(text) + 1):
        starts = [end - len(s) for s in stop if text[:end].endswith(s)]
        if starts:
            return text[: min(starts)]
    return text


def test_any_cutting_of_valid_text_comes_out_whole_and_never_broken() -> None:
    for pieces in cuttings(np.random.default_rng(1), SAMPLE.encode(), 200):
        out, stopped = release(pieces)
        assert "".join(out) == SAMPLE and not stopped
        assert not any("\ufffd" in part for part in out)


def test_a_character_is_shown_with_its_last_byte() -> None:
    assert release([b"a\xf0", b"\x9f", b"\x91", b"\xa9b"])[0] == ["a", "", "", "👩b", ""]


def test_bytes_that_are_no_text_come_out_as_python_decodes_them() -> None:
    """Any bytes, any cutting: the same as one decoding, except that an unfinished end is dropped."""
    rng = np.random.default_rng(2)
    for _ in range(300):
        data = rng.choice([0x41, 0x80, 0xBF, 0xC3, 0xE2, 0x82, 0xAC, 0xF0, 0x9F, 0xFF], rng.integers(0, 12))
        data = bytes(data.astype(np.uint8))
        outs = {"".join(release(pieces)[0]) for pieces in cuttings(rng, data, 5)}
        assert len(outs) == 1
        assert (data + b"!").decode("utf-8", "replace").startswith(outs.pop())


def test_an_unfinished_character_at_the_end_is_dropped() -> None:
    assert release([b"ab\xe2\x82"])[0] == ["ab", ""]


def test_what_may_become_a_stop_string_is_held_back_and_let_go() -> None:
    assert release([b"one<", b"|e", b"x"], ["<|end|>"]) == (["one", "", "<|ex", ""], False)
    assert release([b"one<", b"|end"], ["<|end|>"]) == (["one", "", "<|end"], False)


def test_a_stop_string_across_token_borders_ends_the_text_before_it() -> None:
    text = TextRelease([b"12", b"3\n", b"\n4", b"56"].__getitem__, ["\n\n"])
    assert [text.feed(i) for i in range(3)] == ["12", "3", ""]
    assert text.stopped and text.stopped_by == "\n\n"
    assert text.feed(3) == "" and text.flush() == ""


def test_what_was_held_back_is_let_go_once() -> None:
    text = TextRelease([b"one<"].__getitem__, ["<|end|>"])
    assert (text.feed(0), text.flush(), text.flush()) == ("one", "<", "")


def test_a_stop_string_may_contain_long_characters() -> None:
    for pieces in cuttings(np.random.default_rng(3), SAMPLE.encode(), 100):
        out, stopped = release(pieces, ["мир —"])
        assert "".join(out) == "naïve façade: 你好, " and stopped


@pytest.mark.parametrize(
    "stop",
    [["aab"], ["aba"], ["bb", "aaa"], ["b", "ab"], ["abab", "ba"], ["aaaa"], ["abb", "bb"], ["a", "b"]],
)
def test_the_text_up_to_the_first_stop_string_comes_out_for_any_cutting(stop: list[str]) -> None:
    """Random texts of two letters are full of near misses and overlaps."""
    rng = np.random.default_rng(4)
    stopped_sometimes = False
    for _ in range(60):
        text = "".join(rng.choice(["a", "b"], rng.integers(1, 14)))
        for pieces in cuttings(rng, text.encode(), 4):
            out, stopped = release(pieces, stop)
            assert "".join(out) == before(text, stop), pieces
            assert stopped == any(s in text for s in stop)
            stopped_sometimes |= stopped
    assert stopped_sometimes


def test_nothing_of_a_stop_string_is_ever_shown_before_it_is_known_not_to_be_one() -> None:
    rng = np.random.default_rng(5)
    for _ in range(200):
        text = "".join(rng.choice(["a", "b"], 12))
        for pieces in cuttings(rng, text.encode(), 2):
            out, fed = "", ""
            stream = TextRelease(pieces.__getitem__, ["abba"])
            for i, piece in enumerate(pieces):
                fed += piece.decode()
                out += stream.feed(i)
                assert fed.startswith(out)
                if not stream.stopped:
                    held = fed[len(out) :]
                    assert "abba".startswith(held), "what may still be shown is not kept waiting"
                    assert not any(out.endswith("abba"[:n]) and held == "" for n in (1, 2, 3))


def test_overlapping_stop_strings_do_not_make_the_text_depend_on_token_borders() -> None:
    """The one completed first counts: seen letter by letter, "bc" ends the text before "abcd" can."""
    outs = {
        "".join(release(pieces, ["abcd", "bc"])[0])
        for pieces in cuttings(np.random.default_rng(6), b"xabcdx", 30)
    }
    assert outs == {"xa"}


@pytest.mark.parametrize("stop", ["text", [""], ["ok", ""], [3]])
def test_a_stop_string_that_makes_no_sense_is_refused(stop: object) -> None:
    with pytest.raises(SettingError, match="stop strings are"):
        TextRelease(lambda _: b"", stop)  # type: ignore[arg-type]


def test_tokens_without_text_release_nothing() -> None:
    assert release([b"", b"a", b""], ["b"]) == (["", "a", "", ""], False)
