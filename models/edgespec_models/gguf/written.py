"""A GGUF file as gguf's writer has it in memory: written whole or not at all."""

from pathlib import Path

from gguf import GGUFWriter

from edgespec_models.kept_file import replacing


def write_gguf(writer: GGUFWriter, path: Path) -> None:
    """Writes what a writer without a path holds. Raises OSError."""
    with replacing(path) as aside:
        try:
            writer.write_header_to_file(aside)
            writer.write_kv_data_to_file()
            writer.write_tensors_to_file()
        finally:
            writer.close()
