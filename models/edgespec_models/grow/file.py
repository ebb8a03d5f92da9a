"""Write a grown model as a GGUF, which appears under its name only when it is complete.

Invariant: whatever ends the writing early, an older file of that name stays and no part of a new one does;
what a killed process left is removed by the next that writes the same file.
"""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from gguf import GGUFValueType, GGUFWriter, LlamaFileType

from edgespec_models.grow.packing import PackedTensor
from edgespec_models.grow.source import SHAPE_KEYS, GrowError, ModelShape, Source, digest, value_of
from edgespec_models.grow.tensors import grown_eps
from edgespec_models.kept_file import remove_left, replacing

Progress = Callable[[int, int], None]
"""Called with (bytes done, bytes in all) while weights are written; the last call has both equal."""

VERSION = 1  # part of the name of finished files: raise it whenever the same call writes other bytes
SPARE_DISK = 64 << 20

PATTERN = "attention.sliding_window_pattern"
REPLACED_KEYS = {
    "general.architecture",
    "general.name",
    "general.file_type",
    "general.size_label",
    "general.alignment",  # the writer's own is the default
    "tokenizer.ggml.tokens",
    "tokenizer.ggml.token_type",
    "tokenizer.ggml.scores",
    "edgespec.grown_from",
}


def check_free(folder: Path, what: str, needed: int) -> None:
    """Raise GrowError if the disk of `folder` has no room for `needed` bytes and some to spare."""
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise GrowError(f"the folder {folder} cannot be used ({error}); choose another") from None
    if free < needed + SPARE_DISK:
        raise GrowError(
            f"growing {what} needs {needed / 1e9:.1f} GB in {folder}, where {free / 1e9:.1f} GB are free: "
            "make room, or choose a smaller size or type"
        )


def write(
    source: Source,
    destination: Path,
    shape: ModelShape,
    dtype: str,
    tensors: Sequence[PackedTensor],
    on_progress: Progress,
) -> None:
    """Write the tensors of `source` grown to `shape`, under a header made from the source's."""
    remove_left(destination.parent, destination.name)
    try:
        with replacing(destination) as aside:
            writer = GGUFWriter(aside, source.architecture)
            try:
                _write_header(writer, source, shape, dtype, tensors)
                _write_tensors(writer, tensors, on_progress)
            finally:
                for file in writer.fout or []:
                    file.close()
    except OSError as error:
        raise GrowError(f"{destination} was not written ({error}); make room or choose another") from None


def _write_header(
    writer: GGUFWriter, source: Source, shape: ModelShape, dtype: str, tensors: Sequence[PackedTensor]
) -> None:
    replaced = REPLACED_KEYS | {f"{source.architecture}.{key}" for key in (*SHAPE_KEYS, PATTERN)}
    for key, field in source.reader.fields.items():
        if key in replaced or key.startswith("GGUF.") or len(field.types) > 2 or not field.data:
            continue
        sub_type = field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
        writer.add_key_value(key, field.contents(), field.types[0], sub_type)
    if "general.quantization_version" not in source.reader.fields:
        writer.add_quantization_version(2)
    _add_shape(writer, source, shape)
    _add_tokens(writer, source, shape)
    label = f"{shape.parameters / 1e9:.1f}B" if shape.parameters > 1e8 else f"{shape.parameters / 1e6:.1f}M"
    name = value_of(source.reader, "general.name", source.path.stem)
    writer.add_name(f"{name} grown to {label} {dtype}")
    writer.add_size_label(label)
    writer.add_file_type(LlamaFileType[f"MOSTLY_{dtype}"])
    origin = f"{name}, sha256 {digest(source.path)}, {source.shape}, grown by version {VERSION}"
    writer.add_string("edgespec.grown_from", origin)
    unpacked = np.dtype(np.float32)  # says that `shape` counts weights; `raw_dtype` is written
    for t in tensors:
        writer.add_tensor_info(t.name, t.shape, unpacked, t.nbytes, raw_dtype=t.type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()


def _add_shape(writer: GGUFWriter, source: Source, shape: ModelShape) -> None:
    writer.add_embedding_length(shape.d)
    writer.add_block_count(shape.layers + source.blocks)
    writer.add_feed_forward_length(shape.ffn)
    writer.add_head_count(shape.n_head)
    writer.add_head_count_kv(shape.n_kv)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_layer_norm_rms_eps(grown_eps(source, shape))
    writer.add_vocab_size(shape.n_vocab)
    if source.architecture == "mimo2":  # llama.cpp wants one layer with a window; it sees all the same
        own = value_of(source.reader, f"mimo2.{PATTERN}")
        added = [False] * (shape.layers - source.shape.layers)
        writer.add_array(f"mimo2.{PATTERN}", own[: source.shape.layers] + added + own[source.shape.layers :])


def _add_tokens(writer: GGUFWriter, source: Source, shape: ModelShape) -> None:
    """Copy the vocabulary and add dummies, marked unused: no text is ever tokenised into one."""
    texts: list[str] = value_of(source.reader, "tokenizer.ggml.tokens", [])
    if not texts:  # a model without a vocabulary: its size is all there is
        return
    used, added = set(texts), []
    for i in range(len(texts), shape.n_vocab):
        text = f"<|grown_{i}|>"
        while text in used:
            text = f"<{text}>"
        added.append(text)
    writer.add_token_list([*texts, *added])
    types: list[int] = value_of(source.reader, "tokenizer.ggml.token_type", [1] * len(texts))
    writer.add_token_types([*types, *[5] * len(added)])  # 5 = unused
    scores: list[float] = value_of(source.reader, "tokenizer.ggml.scores", [])
    if scores:
        writer.add_token_scores([*scores, *[0.0] * len(added)])


def _write_tensors(writer: GGUFWriter, tensors: Sequence[PackedTensor], on_progress: Progress) -> None:
    assert writer.fout is not None
    file, done, total = writer.fout[0], 0, sum(tensor.nbytes for tensor in tensors)
    writer.write_padding(file, file.tell())
    for tensor in tensors:
        for chunk in tensor.chunks():
            file.write(chunk.data)
            done += chunk.nbytes
            on_progress(done, total)
        writer.write_padding(file, tensor.nbytes)
    writer.close()
