"""Target and draft must share a vocabulary, by llama.cpp's rule, and the refusal says what differs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edgespec_models.gguf.vocabulary import Vocabulary, mismatch

TEXTS = [b"token %d" % i for i in range(1000)]
BPE = Vocabulary("BPE", TEXTS, add_bos=True, bos=1, add_eos=False, eos=2)


def with_texts(changes: dict[int, bytes], n: int = 1000) -> Vocabulary:
    return replace(BPE, texts=[changes.get(i, b"token %d" % i) for i in range(n)])


def test_equal_vocabularies_match() -> None:
    assert mismatch(BPE, replace(BPE, texts=list(TEXTS))) is None


def test_another_tokeniser_is_refused_by_name() -> None:
    reason = mismatch(BPE, replace(BPE, kind="SPM"))
    assert reason == "the target's tokeniser is BPE and the draft's is SPM"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"bos": 3}, "the start token is token 1 for the target and token 3 for the draft"),
        ({"add_bos": False}, "the start token is token 1 for the target and none for the draft"),
        ({"add_eos": True}, "the end token is none for the target and token 2 for the draft"),
    ],
)
def test_other_automatic_tokens_are_refused(change: dict[str, int], reason: str) -> None:
    assert mismatch(BPE, replace(BPE, **change)) == reason  # type: ignore[arg-type]


def test_an_end_token_that_is_not_added_may_differ() -> None:
    assert mismatch(BPE, replace(BPE, eos=77)) is None
    adding = replace(BPE, add_eos=True)
    assert mismatch(adding, replace(adding, eos=77)) is not None


def test_sizes_may_differ_by_128_either_way() -> None:
    for n in (872, 1128):
        assert mismatch(BPE, with_texts({}, n)) is None
        assert mismatch(with_texts({}, n), BPE) is None
    for n in (871, 1129):
        reason = mismatch(BPE, with_texts({}, n))
        assert reason == f"the target's vocabulary has 1,000 tokens and the draft's {n:,}"


def test_texts_are_compared_from_id_5_up() -> None:
    assert mismatch(BPE, with_texts({i: b"special" for i in range(5)})) is None
    for i in (5, 500, 999):
        reason = mismatch(BPE, with_texts({i: b"\xff\xe2"}))
        assert reason == f"token {i} is 'token {i}' for the target and '\ufffd\ufffd' for the draft"


def test_the_first_difference_is_reported() -> None:
    assert "token 6 " in str(mismatch(BPE, with_texts({900: b"x", 6: b"y"})))


def test_texts_past_the_smaller_vocabulary_are_padding() -> None:
    assert mismatch(BPE, with_texts({1050: b"only here"}, 1100)) is None
