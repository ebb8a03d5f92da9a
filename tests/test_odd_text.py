"""What nobody would see in a text is said."""

from __future__ import annotations

import pytest

from edgespec.system.odd_text import as_text, oddities


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"caf\xc3\xa9 \xe2\x82\xac", []),
        (b"caf\xe9", ["1 byte is not UTF-8"]),
        (b"\xff\xfe\xe2\x80\xae", ["2 bytes are not UTF-8", "U+202E"]),
        ("a\u2067b".encode(), ["U+2067"]),
    ],
)
def test_bytes_that_are_no_text_and_letters_out_of_order_are_stated(content: bytes, said: list[str]) -> None:
    """Both passed without a word."""
    text = content.decode("utf-8", "surrogateescape")
    found = list(oddities(text))
    assert len(found) == len(said) and all(
        words in sentence for words, sentence in zip(said, found, strict=True)
    )
    assert as_text(text) == content.decode("utf-8", "replace")
