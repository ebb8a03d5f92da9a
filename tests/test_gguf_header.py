"""A header is read as llama.cpp and gguf read it, in few bytes, and a damaged one is refused."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
import tiny_gguf
from gguf import GGUFReader

from edgespec.llama.model import Model
from edgespec_models.gguf.facts import facts_of, scaled_positions, why_not_usable
from edgespec_models.gguf.header import BLOCK, HeaderError, read_file, read_header, split_names
from edgespec_models.gguf.vocabulary import vocabulary_of


class CountingSource:
    """Bytes at the beginning of a file that claims to be larger, and how many of them were asked for."""

    def __init__(self, content: bytes, size: int | None = None) -> None:
        self.name, self.content, self.size = "far.gguf", content, size
        self.fetched = 0

    def read(self, offset: int, n: int) -> bytes:
        block = self.content[offset : offset + n]
        self.fetched += len(block)
        return block


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_gguf.write_llama(tmp_path_factory.mktemp("header") / "model.gguf", dtype="Q8_0")


def test_metadata_and_tensors_are_those_that_gguf_reads(model: Path) -> None:
    header, reader = read_file(model), GGUFReader(model)
    keys = {key for key in reader.fields if not key.startswith("GGUF.")}
    assert set(header.metadata) == keys
    for key in keys:
        ours, theirs = header.metadata[key], reader.fields[key].contents()
        if isinstance(ours, list):
            ours = [text.decode() for text in ours]  # type: ignore[assignment]
        assert (list(ours) if isinstance(theirs, list) else ours) == theirs, key  # type: ignore[arg-type]
    assert [(t.name, t.shape, t.type) for t in header.tensors] == [
        (t.name, tuple(int(n) for n in t.shape), int(t.tensor_type)) for t in reader.tensors
    ]
    padding = 32
    for ours_t, theirs_t in zip(header.tensors, reader.tensors, strict=True):
        assert len(header.raw) + ours_t.offset == theirs_t.data_offset
        assert ours_t.n_bytes is not None
        assert 0 <= ours_t.n_bytes - theirs_t.n_bytes < padding
    assert header.raw == model.read_bytes()[: len(header.raw)]


VOCABULARIES = ("deepseek-coder", "gpt-2", "llama-bpe", "llama-spm", "phi-3", "qwen2")


def same_vocabulary(path: Path) -> None:
    ours = vocabulary_of(read_file(path))
    with Model(path, vocab_only=True) as opened:
        theirs = opened.vocabulary
    for fact in ("kind", "add_bos", "bos", "add_eos", "eos"):
        assert getattr(ours, fact) == getattr(theirs, fact), fact
    assert list(ours.texts) == list(theirs.texts)


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", VOCABULARIES)
def test_known_vocabularies_are_read_as_llama_cpp_reads_them(test_data: Path, name: str) -> None:
    same_vocabulary(test_data / "vocab" / f"ggml-vocab-{name}.gguf")


def test_the_embedded_vocabulary_is_read_as_llama_cpp_reads_it(tiny_target: Path, tiny_draft: Path) -> None:
    same_vocabulary(tiny_target)
    same_vocabulary(tiny_draft)


WITHOUT = None
PRE_TOKENISERS = "llama-bpe tekken lfm2 chameleon qwen2 glm4 chatglm-bpe gemma4 smollm".split()
SAID: dict[str, dict[str, object]] = {
    "nothing of start and end": {
        "tokenizer.ggml.bos_token_id": WITHOUT,
        "tokenizer.ggml.eos_token_id": WITHOUT,
        "tokenizer.ggml.add_bos_token": WITHOUT,
    },
    "ids that do not exist": {"tokenizer.ggml.bos_token_id": 70_000, "tokenizer.ggml.eos_token_id": 512},
    "an end token to be added": {"tokenizer.ggml.add_eos_token": True},
    **{
        pre: {
            "tokenizer.ggml.pre": pre,
            "tokenizer.ggml.add_bos_token": WITHOUT,
            "tokenizer.ggml.bos_token_id": WITHOUT,
        }
        for pre in (
            "llama-bpe",
            "tekken",
            "lfm2",
            "chameleon",
            "qwen2",
            "glm4",
            "chatglm-bpe",
            "gemma4",
            "smollm",
        )
    },
    "gemma4, told not to begin": {"tokenizer.ggml.pre": "gemma4", "tokenizer.ggml.add_bos_token": False},
}


@pytest.mark.parametrize("what", SAID)
def test_what_a_header_leaves_out_is_filled_in_as_llama_cpp_does(tmp_path: Path, what: str) -> None:
    same_vocabulary(tiny_gguf.write_llama(tmp_path / "m.gguf", d=32, layers=1, metadata=SAID[what]))


def test_only_the_blocks_of_the_header_are_fetched(model: Path) -> None:
    content = model.read_bytes()
    vocabulary = tiny_gguf.make_vocabulary(120_000)
    large = tiny_gguf.write_llama(model.parent / "large.gguf", vocab=vocabulary, d=32, layers=1).read_bytes()
    for whole in (content, large):
        far = CountingSource(whole + bytes(3 * BLOCK), 40_000_000_000)
        header = read_header(far)
        assert far.fetched <= len(header.raw) + BLOCK
        assert header.file_size == 40_000_000_000
    assert len(header.raw) > BLOCK, "the second needs more than one block"


def test_a_file_cut_anywhere_in_its_header_is_refused(model: Path) -> None:
    content, end = model.read_bytes(), len(read_file(model).raw)
    for cut in (*range(200), *range(200, end - 32, 97)):
        for size in (cut, None):
            with pytest.raises(HeaderError, match=r"is empty|is not a GGUF|cut short|damaged"):
                read_header(CountingSource(content[:cut], size))


def test_a_file_without_its_last_tensor_is_refused(model: Path) -> None:
    header = read_file(model)
    last = max(tensor.offset for tensor in header.tensors)
    with pytest.raises(HeaderError, match="cut short: .* last tensor .*; download it again"):
        read_header(CountingSource(header.raw, len(header.raw) + last))


def test_no_damage_gets_past_the_reader_as_another_error(model: Path) -> None:
    """Bytes of the header are overwritten at random, eight at a time so that lengths become enormous."""
    rng = np.random.default_rng(3)
    content = model.read_bytes()[: len(read_file(model).raw)]
    refused = 0
    for _ in range(400):
        damaged = bytearray(content)
        at = int(rng.integers(8, len(content) - 8))
        damaged[at : at + 8] = rng.bytes(8)
        try:
            vocabulary_of(read_header(CountingSource(bytes(damaged))))
        except HeaderError:
            refused += 1
    assert refused > 40


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "is empty"),
        (b"GGUF", "version 0: versions 2 and 3"),
        (b"version https://git-lfs.github.com/spec/v1\n", "is not a GGUF file"),
        (b"<!doctype html><html>", "is not a GGUF file"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1: versions 2 and 3"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**60, 1), "is damaged: it claims"),
    ],
)
def test_what_is_no_gguf_is_named(content: bytes, expected: str) -> None:
    with pytest.raises(HeaderError, match=expected):
        read_header(CountingSource(content.ljust(len(content) and len(content) + 40, b"\0")))


def test_a_header_without_an_end_is_given_up() -> None:
    endless = (
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"k" + struct.pack("<IQ", 8, 2**40)
    )
    far = CountingSource(endless + bytes(20_000_000), 2**50)
    with pytest.raises(HeaderError, match="no end of its header in 16,000,000 bytes"):
        read_header(far, longest=16_000_000)
    assert far.fetched <= 16_000_000


def test_the_parts_of_a_split_model_are_named() -> None:
    assert split_names("a-00002-of-00003.gguf") == [f"a-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    assert split_names("a.gguf") == ["a.gguf"]


def test_facts_are_reported_in_plain_words(tmp_path: Path) -> None:
    llama = facts_of(
        read_file(tiny_gguf.write_llama(tmp_path / "l.gguf", metadata={"general.file_type": 15}))
    )
    assert (llama.memory, llama.quantisation, llama.n_ctx_train, llama.n_experts) == (
        "attention", "Q4_K_M", 512, 0,
    )  # fmt: skip
    assert facts_of(read_file(tiny_gguf.write_hybrid(tmp_path / "h.gguf"))).memory == "hybrid"
    said = {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 4.0}
    before = {"llama.rope.scaling.original_context_length": 128}
    scaled = tiny_gguf.write_llama(tmp_path / "s.gguf", metadata={**said, **before})
    assert scaled_positions(read_file(scaled)) == "yarn RoPE scaling by 4 from 128"
    assert scaled_positions(read_file(tmp_path / "l.gguf")) == ""
    assert facts_of(read_file(tiny_gguf.write_recurrent(tmp_path / "r.gguf"))).memory == "recurrent"
    mixed = tiny_gguf.write_llama(
        tmp_path / "e.gguf", metadata={"llama.expert_count": 8, "llama.expert_used_count": 2}
    )
    assert facts_of(read_file(mixed)).memory_text == "attention, mixture of 8 experts"


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({"general.type": "mmproj"}, "is a file of type 'mmproj', not a model"),
        ({"general.architecture": "dream"}, "is a diffusion model"),
        ({"general.architecture": "medusa"}, "is a file of Medusa heads, which cannot speak by themselves"),
        ({"llama.attention.causal": False}, "is an embedding model"),
        ({"split.no": 1}, "name the first part"),
        ({"tokenizer.ggml.model": "none"}, "has no vocabulary"),
        ({"tokenizer.ggml.model": "new"}, "has the tokeniser 'new', which is not known here"),
    ],
)
def test_what_cannot_generate_text_is_reported(
    tmp_path: Path, metadata: dict[str, object], expected: str
) -> None:
    path = tiny_gguf.write_llama(tmp_path / "m.gguf", d=32, layers=1, metadata=metadata)
    assert expected in str(why_not_usable(read_file(path)))


def test_a_plain_model_is_usable(model: Path) -> None:
    assert why_not_usable(read_file(model)) is None
