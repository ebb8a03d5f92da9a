"""A llama model of one number format with random weights, to learn what evaluations cost on a machine.

That depends on shapes and formats, not on the numbers, as long as they are numbers.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from numpy.typing import NDArray

from edgespec_models.gguf.number_formats import Format, format_of, n_bytes
from edgespec_models.gguf.written import write_gguf

CHUNK = 1 << 22  # random bytes; longer tensors repeat them
SIZE_OF_WEIGHTS = 0.02  # their standard deviation, about


def random_bytes(
    shape: tuple[int, ...], type_: int, name: str, rng: np.random.Generator
) -> Iterator[bytes | memoryview]:
    """Yields the bytes of a tensor of random weights, in pieces. Raises UnknownFormatError.

    A quantised block is random bytes with small scales, so that no product overflows.
    """
    layout, left = format_of(type_, name), n_bytes(shape, type_, name)
    if len(shape) == 1 and type_ == 0:
        piece = memoryview(np.full(min(shape[0], CHUNK // 4), _constant(name), np.float32).tobytes())
    else:
        blocks = max(1, min(left, CHUNK) // layout.size)
        piece = memoryview(_blocks(layout, blocks, rng).tobytes())
    while left > 0:
        yield piece[: min(left, len(piece))]
        left -= len(piece)


def _constant(name: str) -> float:
    """Returns the content of a vector: norms are ones, and a recurrent state has to fade."""
    return -1.0 if "ssm_a" in name else 0.0 if name.endswith(".bias") else 1.0


def _blocks(layout: Format, n: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Returns n random blocks: (n, size) uint8."""
    if layout.name in ("F32", "F16", "BF16"):
        values = rng.standard_normal(n, np.float32) * np.float32(SIZE_OF_WEIGHTS)
        if layout.name == "BF16":
            return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
        return values.astype(np.float32 if layout.name == "F32" else np.float16).view(np.uint8)
    blocks = rng.integers(0, 256, (n, layout.size), np.uint8)
    for at, scale in layout.scales:
        blocks[:, at : at + 2] = np.frombuffer(np.float16(scale).tobytes(), np.uint8)
    if layout.name == "MXFP4":
        blocks[:, 0] = 120  # a power of two: 2^(120 - 127)
    return blocks


HEAD = 128  # dimensions of a head
EXPERTS = 8  # of a mixture, each half as wide as the model; a token needs all, so that each has all rows
VOCABULARY = 512
BYTES = [f"<0x{i:02X}>" for i in range(256)]


def shapes(width: int, layers: int, *, mixed: bool = False) -> dict[str, tuple[int, ...]]:
    """Returns the tensors, columns first; all widths are multiples of 256, as K-quants want.

    mixed: the same weights as a mixture of experts.
    """
    found: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (width, VOCABULARY),
        "output_norm.weight": (width,),
    }
    of_expert = width // 2
    ffn: dict[str, tuple[int, ...]] = {
        "ffn_gate": (width, 4 * width), "ffn_up": (width, 4 * width), "ffn_down": (4 * width, width),
    } if not mixed else {
        "ffn_gate_inp": (width, EXPERTS), "ffn_gate_exps": (width, of_expert, EXPERTS),
        "ffn_up_exps": (width, of_expert, EXPERTS), "ffn_down_exps": (of_expert, width, EXPERTS),
    }  # fmt: skip
    for il in range(layers):
        for name, shape in {
            "attn_norm": (width,), "ffn_norm": (width,), "attn_q": (width, width), "attn_k": (width, width),
            "attn_v": (width, width), "attn_output": (width, width), **ffn,
        }.items():  # fmt: skip
            found[f"blk.{il}.{name}.weight"] = shape
    return found


def write_uniform(path: Path, type_: int, width: int, layers: int, *, mixed: bool = False) -> None:
    """Writes a model whose matrices all have one format. Raises UnknownFormatError, OSError."""
    writer, rng = GGUFWriter(None, "llama"), np.random.default_rng(0)
    writer.add_context_length(512)
    writer.add_embedding_length(width)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(width // 2 if mixed else 4 * width)
    writer.add_head_count(width // HEAD)
    writer.add_layer_norm_rms_eps(1e-5)
    if mixed:
        writer.add_expert_count(EXPERTS)
        writer.add_expert_used_count(EXPERTS)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(["<unk>", "<s>", "</s>", *BYTES, *(f"t{i}" for i in range(VOCABULARY - 259))])
    writer.add_token_types([2, 3, 3, *[6] * 256, *[1] * (VOCABULARY - 259)])
    writer.add_token_scores([0.0] * VOCABULARY)
    for name, shape in shapes(width, layers, mixed=mixed).items():
        own = type_ if len(shape) > 1 and "gate_inp" not in name else 0
        data = np.frombuffer(b"".join(random_bytes(shape, own, name, rng)), np.uint8)
        rows = data.reshape(*shape[:0:-1], n_bytes((shape[0],), own)) if own else data.view("f4")
        rows = rows if own else rows.reshape(shape[::-1])
        writer.add_tensor(name, rows, raw_dtype=GGMLQuantizationType(own))
    write_gguf(writer, path)
