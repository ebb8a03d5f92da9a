"""No number in a stranger's header makes a loop, a buffer or a file larger than any model's."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from edgespec.commands.cli import main
from edgespec.engine.pair import Pair
from edgespec.errors import ModelFileError
from edgespec_models.gguf.header import HeaderError, read_file
from edgespec_models.gguf.limits import MOST_KEYS, MOST_LAYERS, MOST_TENSORS

U32, I32, F32, STRING, ARRAY, U64, I64 = 4, 5, 6, 8, 9, 10, 11
_CODES = {U32: "I", I32: "i", F32: "f", U64: "Q", I64: "q"}


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def pair(key: str, kind: int, value: bytes | float) -> bytes:
    packed = value if isinstance(value, bytes) else struct.pack(f"<{_CODES[kind]}", value)
    return text(key.encode()) + struct.pack("<I", kind) + packed


def tensor(name: bytes, shape: tuple[int, ...], type_: int = 0, offset: int = 0) -> bytes:
    dimensions = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return text(name) + dimensions + struct.pack("<IQ", type_, offset)


def write(path: Path, pairs: list[bytes], tensors: list[bytes], *, weights: int = 4096) -> Path:
    """Writes a file of version 3 whose header says exactly this."""
    architecture = pair("general.architecture", STRING, text(b"llama"))
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(pairs) + 1)
    content = head + architecture + b"".join(pairs) + b"".join(tensors)
    path.write_bytes(content.ljust(-(-len(content) // 32) * 32, b"\0") + bytes(weights))
    return path


WEIGHT = tensor(b"token_embd.weight", (32, 32))
HOSTILE = {
    "an alignment of a terabyte": ([pair("general.alignment", U64, 1 << 40)], [WEIGHT], "its alignment is"),
    "an alignment of 2 GB": ([pair("general.alignment", U32, 1 << 31)], [WEIGHT], "its alignment is 2147"),
    "an alignment that is true": ([pair("general.alignment", 7, b"\1")], [WEIGHT], "its alignment is True"),
    "100 million layers": ([pair("llama.block_count", U32, 10**8)], [], "llama.block_count is 100000000"),
    "fewer than no layers": ([pair("llama.block_count", I32, -1)], [], "llama.block_count is -1"),
    "layers in a list": (
        [pair("llama.block_count", ARRAY, struct.pack("<IQI", U32, 1, 4))], [], r"block_count is \[4\]",
    ),
    "layers in words": ([pair("llama.block_count", STRING, text(b"many"))], [], "block_count is 'many'"),
    "heads that are not numbers": (
        [pair("llama.attention.head_count_kv", ARRAY, struct.pack("<IQf", F32, 1, float("nan")))], [],
        "head_count_kv is",
    ),
    "heads of more layers than there can be": (
        [pair("llama.attention.head_count_kv", ARRAY, struct.pack("<IQ600I", U32, 600, *[1] * 600))], [],
        "head_count_kv is a list of 600 numbers",
    ),
    "a giant state": ([pair("llama.ssm.inner_size", U64, 1 << 60)], [], "ssm.inner_size is"),
    "a giant window": ([pair("llama.attention.sliding_window", I64, -5)], [], "sliding_window is -5"),
    "no layers": ([pair("llama.block_count", U32, 0)], [], "llama.block_count is 0"),
    "no dimension to rotate": ([pair("llama.rope.dimension_count", U32, 0)], [], "dimension_count is 0"),
    "more experts used than there are": ([pair("llama.expert_used_count", U32, 2)], [], "2 of its 0 experts"),
    "experts that nobody uses": ([pair("llama.expert_count", U32, 8)], [], "0 of its 8 experts are used"),
    "experts in groups that do not fit": (
        [
            pair("llama.expert_count", U32, 8), pair("llama.expert_used_count", U32, 2),
            pair("llama.expert_group_count", U32, 3),
        ],
        [], "its 8 experts are in 3 groups",
    ),
    "more layers that guess than layers": (
        [pair("llama.block_count", U32, 2), pair("llama.nextn_predict_layers", U32, 3)], [],
        "3 of its 2 layers",
    ),
    "an epsilon that is not a number": (
        [pair("llama.attention.layer_norm_rms_epsilon", F32, float("nan"))], [], "epsilon is nan",
    ),
    "an epsilon below nothing": (
        [pair("llama.attention.layer_norm_rms_epsilon", F32, -1.0)], [], "epsilon is -1.0",
    ),
    "a tensor larger than its file": ([], [tensor(b"a", (1 << 20, 1 << 20))], "tensor 'a' would take"),
    "a vector larger than its file": ([], [tensor(b"a", (1 << 50,))], "tensor 'a' would take"),
    "a name without an end": ([], [tensor(b"a" * 100_000, (1,))], "the name of a tensor has 100,000"),
}  # fmt: skip


@pytest.mark.parametrize("what", HOSTILE)
def test_a_number_that_no_model_has_is_refused_in_a_sentence(tmp_path: Path, what: str) -> None:
    """An alignment of 1 << 40 ended `import` and `pull --check` in a MemoryError, straight from a hub; one
    of 1 << 31 took 2 GB; with 100 million layers the memory check spun past 30 s and 860 MB."""
    pairs, tensors, said = HOSTILE[what]
    with pytest.raises(HeaderError, match=f"m.gguf is .*damaged: .*{said}") as refused:
        read_file(write(tmp_path / "m.gguf", pairs, tensors))
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize(
    ("n_tensors", "n_keys"), [(MOST_TENSORS + 1, 1), (1, MOST_KEYS + 1)], ids=("tensors", "keys")
)
def test_more_entries_than_any_model_has_are_not_read(tmp_path: Path, n_tensors: int, n_keys: int) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, n_tensors, n_keys) + bytes(10_000_000))
    with pytest.raises(HeaderError, match="is damaged: it claims"):
        read_file(path)


@pytest.mark.parametrize("name", [b"x" * 100_000, b"\x1b]0;title\x07", b"gemma 3"])
def test_an_architecture_is_a_name(tmp_path: Path, name: bytes) -> None:
    """`run` wrote an architecture's name of 100,000 characters to the terminal, and escape sequences raw."""
    path = tmp_path / "m.gguf"
    path.write_bytes(
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + pair("general.architecture", STRING, text(name))
    )
    with pytest.raises(HeaderError, match="architecture") as refused:
        read_file(path)
    assert str(refused.value).replace(str(path), "").isprintable() and len(str(refused.value)) < 400


def test_llama_cpp_is_not_shown_what_the_header_check_refuses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "m.gguf", [pair("llama.block_count", U32, 10**8)], [WEIGHT])
    with pytest.raises(ModelFileError, match="block_count is 100000000"):
        Pair(path)
    assert main(["import", str(path)]) != 0
    assert "block_count is 100000000" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("architecture", "pairs"),
    [
        ("glm5-next", {"rope.dimension_count": 0}),  # its attention has no positions
        ("gpt2", {"rope.dimension_count": 0}),
        ("hunyuan-dense", {"expert_count": 0, "expert_used_count": 1}),  # not read by llama.cpp
        ("qwen3next", {"full_attention_interval": 1000}),  # more than there are layers: never
    ],
)
def test_what_is_usual_in_an_architecture_is_not_called_damaged(
    tmp_path: Path, architecture: str, pairs: dict[str, int]
) -> None:
    """GLM 5 was "damaged: rope.dimension_count is 0"."""
    path = tmp_path / "m.gguf"
    named = [pair("general.architecture", STRING, text(architecture.encode()))]
    named += [pair(f"{architecture}.{key}", U32, value) for key, value in pairs.items()]
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, len(named)) + b"".join(named))
    assert read_file(path).architecture == architecture


def test_a_real_header_passes(tiny_target: Path, tmp_path: Path) -> None:
    """So do numbers at their limits: a model may have each of them."""
    assert read_file(tiny_target).tensors
    pairs = [pair("llama.block_count", U32, MOST_LAYERS), pair("general.alignment", U32, 32)]
    pairs.append(pair("llama.context_length", U32, (1 << 32) - 1))
    found = read_file(write(tmp_path / "m.gguf", pairs, [WEIGHT]))
    assert found.of_architecture("block_count") == MOST_LAYERS
