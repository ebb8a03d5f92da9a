"""A long text is cut where its pieces have the tokens of the whole, and only there."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from edgespec.llama import cuts as cutting
from edgespec.llama.cuts import Cuts, cuts_of
from edgespec.llama.model import Model

VOCABULARIES = ("gpt-2", "llama-bpe", "llama-spm", "phi-3", "qwen2", "deepseek-coder")
BETWEEN = [b" ", b"\n\n", b"\t", b"hello", b" world", b"1234", "né日本".encode(), b"<", b">", b"|", b"</"]


SMALL = 8  # bytes of a piece


def drawn(r: random.Random, specials: list[bytes]) -> bytes:
    """Returns a text of special tokens, their beginnings and ends, and what lies between them."""
    halves = [text[: r.randint(1, len(text))] for text in specials[:50]]
    halves += [text[r.randint(0, len(text) - 1) :] for text in specials[:50]]
    kinds = [specials or BETWEEN, halves or BETWEEN, BETWEEN]
    return b"".join(r.choice(r.choice(kinds)) for _ in range(r.randint(1, 60)))


def agrees(model: Model, n: int) -> int:
    """Checks drawn texts; returns how often they were cut."""
    r, n_cuts = random.Random(1), 0
    for special in (True, False):
        cuts = cuts_of(model, special=special, piece=SMALL)
        specials = sorted(cuts_of(model, special=True)._texts)
        for _ in range(n):
            text = drawn(r, specials)
            pieces = list(cuts.pieces(text))
            assert b"".join(pieces) == text
            found = [model.tokenize(piece, special=special, add_bos=False) for piece in pieces]
            whole = model.tokenize(text, special=special, add_bos=False)
            assert np.concatenate(found).tolist() == whole.tolist(), (special, pieces)
            n_cuts += len(pieces) - 1
    return n_cuts


def test_pieces_have_the_tokens_of_the_whole(tiny_target: Path) -> None:
    with Model(tiny_target, vocab_only=True) as model:
        assert agrees(model, 300) > 1000


@pytest.fixture(params=VOCABULARIES)
def real(request: pytest.FixtureRequest, test_data: Path) -> Iterator[Model]:
    file = test_data / "vocab" / f"ggml-vocab-{request.param}.gguf"
    if not file.is_file():
        pytest.skip(f"test data is incomplete: {file}")
    with Model(file, vocab_only=True) as model:
        yield model


@pytest.mark.slow
def test_pieces_of_real_vocabularies_have_the_tokens_of_the_whole(real: Model) -> None:
    assert agrees(real, 2000) > 10_000


@pytest.mark.parametrize(
    ("specials", "text", "pieces"),
    [
        ([b"<a>"], b"12345678<a>1234<a>x<a>", [b"12345678", b"<a>1234<a>x", b"<a>"]),
        ([b"<a>", b"8<"], b"12345678<a>1234", [b"12345678", b"<a>1234"]),  # the other one is shorter
        ([b"<a>", b"78<"], b"12345678<a>123<a>4", [b"12345678<a>123", b"<a>4"]),  # as long, and overlaps
        ([b"<a>", b"<a>1234"], b"12345678<a>1234<a>", [b"12345678", b"<a>1234<a>"]),
        ([b"\n\n", b"\n\n\n"], b"12345678" + b"\n" * 9, [b"12345678" + b"\n" * 9]),  # none is certain
        ([b"\n\n", b"\n\n\n"], b"12345678\n\n\n90123456\n\n", [b"12345678", b"\n\n\n90123456", b"\n\n"]),
        ([], b"12345678<a>" * 9, [b"12345678<a>" * 9]),
    ],
)  # fmt: skip
def test_a_text_is_cut_before_special_tokens_that_are_certain(
    specials: list[bytes], text: bytes, pieces: list[bytes]
) -> None:
    assert list(Cuts(specials, piece=SMALL).pieces(text)) == pieces


def test_a_text_of_special_tokens_comes_in_small_pieces(tiny_target: Path) -> None:
    """llama.cpp took 97 seconds for 250,000 of them in one piece, and could not be stopped."""
    with Model(tiny_target, vocab_only=True) as model:
        cuts = cuts_of(model, special=True)
        for text in (b"<|im_end|>" * 100_000, b"<|im_start|>user\nhi<|im_end|>\n" * 40_000):
            assert max(map(len, cuts.pieces(text))) < 2 * cutting.PIECE


def test_nothing_is_cut_before_a_token_that_takes_the_space_next_to_it() -> None:
    assert list(Cuts([b"<a>"], fixed=[b"<a>"]).pieces(b"a " * cutting.PIECE + b"<a>")) != []
    assert len(list(Cuts([b"<a>"], fixed=[b"<a>"]).pieces((b"a " * cutting.PIECE + b"<a>") * 3))) == 1
