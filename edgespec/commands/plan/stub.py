"""Files as long as a model that contain only its header, so that llama.cpp can say what it would take."""

from collections.abc import Sequence
from pathlib import Path

from edgespec_models.gguf.header import Header


def write_stub(folder: Path, name: str, headers: Sequence[Header]) -> Path:
    """Writes sparse files of the full sizes; returns the first. They take no more disk than the headers."""
    paths = [folder / f"{name}.gguf"]
    if len(headers) > 1:
        n = len(headers)
        paths = [folder / f"{name}-{i:05d}-of-{n:05d}.gguf" for i in range(1, n + 1)]
    for path, header in zip(paths, headers, strict=True):
        path.write_bytes(header.raw)
        with open(path, "r+b") as file:
            file.truncate(max(len(header.raw), header.file_size or 0))
    return paths[0]
