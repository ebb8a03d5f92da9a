"""The texts that `--keep-texts` kept of one model; `edgespec/engine/text_log.py` writes them."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from edgespec.engine.text_log import FOLDER, KeptText, parts_in, read


@dataclass(frozen=True, slots=True)
class KeptTexts:
    """The texts of one model."""

    folder: Path

    def read(self) -> list[KeptText]:
        """Returns the texts, the oldest first; skips damaged lines."""
        return [text for part in read(self.folder) for text in part]

    def size(self) -> int:
        """Returns bytes."""
        return sum(part.stat().st_size for part in parts_in(self.folder))

    def delete(self) -> None:
        """Deletes all of it. Raises OSError."""
        for part in parts_in(self.folder):
            part.unlink()
        with suppress(OSError):
            self.folder.rmdir()


def kept_texts_of(data: Path, name: str) -> KeptTexts:
    """Returns a model's texts, there or not, by the name that the engine gives them."""
    return KeptTexts(data / FOLDER / name)


def all_kept(data: Path) -> list[KeptTexts]:
    """Returns the texts of every model that has some."""
    return [KeptTexts(folder) for folder in sorted((data / FOLDER).glob("*/")) if folder.is_dir()]
