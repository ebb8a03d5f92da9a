"""Write tiny projectors with random weights, and models that read their pictures, as llama.cpp wants them."""

from __future__ import annotations

import base64
import struct
import wave
import zlib
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import numpy as np
from gguf import GGUFWriter
from numpy.typing import NDArray
from tiny_gguf import TOKEN_CONTROL, Vocabulary, altered, make_vocabulary, write_llama, write_sliding

Kind = Literal["gemma3", "qwen2vl_merger", "qwen3vl_merger", "hunyuanvl", "idefics3", "ultravox"]
WIDTH, FFN, LAYERS, HEADS, PATCH, SIDE = 64, 128, 2, 4, 16, 128


def write_projector(path: Path, kind: Kind, n_embd: int, *, seed: int = 1, scale: float = 0.1) -> Path:
    """Write a projector for a model of this width: gemma3 sees at once, qwen* M-RoPE, idefics3 tiles."""
    rng, qwen, hears = np.random.default_rng(seed), kind.startswith("qwen"), kind == "ultravox"
    mode, prefix = ("audio", "a") if hears else ("vision", "v")
    writer = GGUFWriter(path, "clip")

    def drawn(*shape: int) -> NDArray[np.float32]:
        return (rng.standard_normal(shape) * scale).astype(np.float32)

    def norm(name: str) -> dict[str, NDArray[np.float32]]:
        return {f"{name}.weight": np.ones(WIDTH, np.float32), f"{name}.bias": np.zeros(WIDTH, np.float32)}

    def linear(name: str, out: int, in_: int) -> dict[str, NDArray[np.float32]]:
        return {f"{name}.weight": drawn(out, in_), f"{name}.bias": np.zeros(out, np.float32)}

    flags = {"has_vision_encoder": not hears, "has_audio_encoder": hears, "use_gelu": True}
    for name, flag in flags.items():
        writer.add_bool(f"clip.{name}", flag)
    writer.add_string("clip.projector_type", kind)
    sizes = {"embedding_length": WIDTH, "feed_forward_length": FFN, "block_count": LAYERS}
    sizes |= {"projection_dim": n_embd, "attention.head_count": HEADS}
    tensors = norm(f"{prefix}.post_ln")
    if hears:
        sizes |= {"num_mel_bins": 80, "projector.stack_factor": 4}
        for i, n_in in ((1, 80), (2, WIDTH)):
            tensors[f"a.conv1d.{i}.weight"] = drawn(WIDTH, n_in, 3).astype(np.float16)
            tensors[f"a.conv1d.{i}.bias"] = np.zeros((WIDTH, 1), np.float32)
        tensors |= {"a.position_embd.weight": drawn(1500, WIDTH), "mm.a.mlp.2.weight": drawn(n_embd, 128)}
        tensors |= {"mm.a.norm_pre.weight": np.ones(4 * WIDTH, np.float32)}
        tensors |= {"mm.a.mlp.1.weight": drawn(256, 4 * WIDTH)}
        tensors |= {"mm.a.norm_mid.weight": np.ones(128, np.float32)}
    else:
        sizes |= {"image_size": SIDE, "patch_size": PATCH}
        tensors["v.patch_embd.weight"] = drawn(WIDTH, 3, PATCH, PATCH)
    if qwen:
        sizes["spatial_merge_size"] = 2
        writer.add_bool("clip.use_silu", False)
        tensors |= {"v.patch_embd.weight.1": drawn(WIDTH, 3, PATCH, PATCH)}
        tensors |= linear("mm.0", 4 * WIDTH, 4 * WIDTH) | linear("mm.2", n_embd, 4 * WIDTH)
    elif kind == "gemma3":
        sizes["projector.scale_factor"] = 2
        tensors |= {"mm.input_projection.weight": drawn(WIDTH, n_embd)}
        tensors |= {"mm.soft_emb_norm.weight": np.ones(WIDTH, np.float32)}
    elif kind == "hunyuanvl":
        sizes |= {"spatial_merge_size": 2, "image_min_pixels": 32 * 32, "image_max_pixels": 128 * 128}
        tensors |= {"mm.0.weight": drawn(96, WIDTH, 2, 2), "mm.0.bias": drawn(96)}
        tensors |= {"mm.2.weight": drawn(80, 96, 1, 1), "mm.2.bias": drawn(80)}
        tensors |= linear("mm.model.fc", n_embd, 80) | {"v.image_newline": drawn(80)}
        tensors |= {f"mm.{name}": drawn(n_embd) for name in ("image_begin", "image_end")}
        tensors |= {"mm.pre_norm.weight": np.ones(WIDTH, np.float32)}
        tensors |= {"mm.post_norm.weight": np.ones(n_embd, np.float32)}
    elif kind == "idefics3":
        sizes |= {"projector.scale_factor": 4, "preproc_image_size": 4 * SIDE}
        tensors |= {"mm.model.fc.weight": drawn(n_embd, 16 * WIDTH)}
    if kind not in ("qwen2vl_merger", "ultravox"):
        tensors |= {"v.position_embd.weight": drawn((SIDE // PATCH) ** 2, WIDTH)}
        tensors |= {"v.patch_embd.bias": np.zeros(WIDTH, np.float32)}
    for i in range(LAYERS):
        block = f"{prefix}.blk.{i}"
        if kind == "qwen3vl_merger":
            tensors |= linear(f"{block}.attn_qkv", 3 * WIDTH, WIDTH)
        else:
            for part in "qkv":
                tensors |= linear(f"{block}.attn_{part}", WIDTH, WIDTH)
            if hears:
                del tensors[f"{block}.attn_k.bias"]
        tensors |= linear(f"{block}.attn_out", WIDTH, WIDTH) | norm(f"{block}.ln1") | norm(f"{block}.ln2")
        tensors |= linear(f"{block}.ffn_up", FFN, WIDTH) | linear(f"{block}.ffn_down", WIDTH, FFN)
    for name, size in sizes.items():
        writer.add_uint32(f"clip.{mode}.{name}", size)
    writer.add_float32(f"clip.{mode}.attention.layer_norm_epsilon", 1e-6)
    for name in () if hears else ("image_mean", "image_std"):
        writer.add_array(f"clip.vision.{name}", [0.5, 0.5, 0.5])
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def tile_marks() -> Vocabulary:
    """Return a vocabulary with the tokens that stand between the tiles of a picture."""
    plain, marks = make_vocabulary(768), ["\u010a\u010a", "<fake_token_around_image>", "<global-img>"]
    marks += [f"<row_{y}_col_{x}>" for y in range(1, 5) for x in range(1, 5)]
    first = plain.n_words  # of those in no text
    ids = range(first, first + len(marks))
    types = [TOKEN_CONTROL if id in ids[1:] else kind for id, kind in enumerate(plain.types)]
    return replace(altered(plain, texts=dict(zip(ids, marks, strict=True))), types=tuple(types))


def write_seeing(folder: Path, kind: Kind) -> tuple[Path, Path]:
    """Write a model that reads pictures, and its projector."""
    target = folder / f"{kind}.gguf"
    if kind == "gemma3":
        write_sliding(target, n_kv=2, layers=6, window=64, d=64)
    elif kind == "qwen2vl_merger":
        write_llama(target, arch="qwen2vl", metadata={"qwen2vl.rope.dimension_sections": [2, 3, 3, 0]})
    elif kind == "hunyuanvl":
        norms = {
            f"blk.{i}.attn_{part}_norm.weight": np.ones(16, np.float32) for i in range(2) for part in "qk"
        }
        sections = {"hunyuan_vl.rope.dimension_sections": [2, 2, 2, 2]}
        write_llama(target, arch="hunyuan_vl", metadata=sections, tensors=norms)
    elif kind == "idefics3":
        write_llama(target, vocab=tile_marks())
    else:
        write_llama(target)
    return target, write_projector(folder / f"mmproj-{kind}.gguf", kind, 64)


def png(width: int = 160, height: int = 96, colour: tuple[int, int, int] = (220, 30, 30)) -> bytes:
    """Return a PNG file: a rectangle of a colour on black."""
    rows = np.zeros((height, width, 3), np.uint8)
    rows[height // 5 : height * 4 // 5, width // 5 : width * 3 // 4] = colour
    lines = b"".join(b"\0" + row.tobytes() for row in rows)

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(lines))
        + chunk(b"IEND", b"")
    )


def encoded(file: bytes) -> str:
    """Return a file in base64."""
    return base64.b64encode(file).decode()


def url(file: bytes) -> str:
    """Return a PNG file as a data URL."""
    return f"data:image/png;base64,{encoded(file)}"


def message(text: str, *files: bytes) -> list[dict[str, Any]]:
    """Return a conversation of one message, pictures and a text, as OpenAI has it."""
    pictures = [{"type": "image_url", "image_url": {"url": url(file), "detail": "high"}} for file in files]
    return [{"role": "user", "content": [*pictures, {"type": "text", "text": text}]}]


def wav(seconds: float = 1.0, rate: int = 16_000) -> bytes:
    """Return a WAV file: a tone."""
    tone = (np.sin(np.arange(int(seconds * rate)) * 0.05) * 20_000).astype("<i2")
    file = BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(rate)
        sound.writeframes(tone.tobytes())
    return file.getvalue()
