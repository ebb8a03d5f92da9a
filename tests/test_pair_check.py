"""One check says whether a draft fits: before a download and before loading alike."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny_gguf

from edgespec.errors import ModelFileError, ModelUnsupportedError, PairMismatchError
from edgespec.pairs.check import check_pair
from edgespec_models.gguf.header import read_file
from edgespec_models.gguf.vocabulary import vocabulary_of
from edgespec_models.shelf.pair_check import check_headers


def write(path: Path, **changes: object) -> Path:
    vocabulary = tiny_gguf.altered(tiny_gguf.make_vocabulary(), **changes)  # type: ignore[arg-type]
    return tiny_gguf.write_llama(path, d=32, layers=1, vocab=vocabulary)


def test_a_pair_of_one_vocabulary_matches(tmp_path: Path) -> None:
    target, draft = write(tmp_path / "t.gguf"), write(tmp_path / "d.gguf")
    verdict = check_headers(read_file(target), read_file(draft))
    assert (verdict.fit, verdict.usable, str(verdict)) == ("exact", True, "the vocabularies match")
    check_pair(target, draft)


def test_a_draft_with_another_vocabulary_is_translated_where_it_has_enough_of_a_text(tmp_path: Path) -> None:
    target = write(tmp_path / "t.gguf")
    draft = write(tmp_path / "d.gguf", texts={300: "else", 400: "other"})
    verdict = check_headers(read_file(target), read_file(draft))
    assert (verdict.fit, verdict.usable) == ("translated", True)
    assert verdict.reason.startswith("token 300 is ") and 0.95 < verdict.coverage <= 1
    assert "guesses are translated" in str(verdict)
    assert check_pair(target, draft) is not None


def test_a_draft_that_has_too_little_of_a_text_is_refused_with_the_figure(tmp_path: Path) -> None:
    target = write(tmp_path / "t.gguf")
    draft = write(tmp_path / "d.gguf", texts={i: f"other{i}" for i in range(5, 400)})
    verdict = check_headers(read_file(target), read_file(draft))
    assert (verdict.fit, verdict.usable) == ("none", False) and verdict.coverage < 0.5
    with pytest.raises(
        PairMismatchError, match=r"cannot draft for t.gguf: token 5 .* has \d+% of the tokens"
    ):
        check_pair(target, draft)


def test_equal_fingerprints_match_and_others_differ(tmp_path: Path) -> None:
    first, same = write(tmp_path / "a.gguf"), write(tmp_path / "b.gguf", eos=300)
    other = write(tmp_path / "c.gguf", texts={500: "else"})
    name = {path: vocabulary_of(read_file(path)).fingerprint for path in (first, same, other)}
    assert name[first] == name[same], "an end token that is not added does not count"
    assert name[first] != name[other]


def test_a_file_that_is_of_no_use_is_named_before_the_pair(tmp_path: Path) -> None:
    good = write(tmp_path / "good.gguf")
    with pytest.raises(ModelFileError, match="there is no file"):
        check_pair(good, tmp_path / "none.gguf")
    embedding = tiny_gguf.write_llama(
        tmp_path / "e.gguf", d=32, layers=1, metadata={"llama.attention.causal": False}
    )
    with pytest.raises(ModelUnsupportedError, match="e.gguf is an embedding model"):
        check_pair(good, embedding)
    assert check_headers(read_file(good), read_file(embedding)).fit == "none"
