"""The texts that `--keep-texts` kept of one model; `edgespec/engine/text_log.py` writes them."""

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from edgespec.engine.text_log import FOLDER, parts_in


@dataclass(frozen=True, slots=True)
class KeptText:
    """One prompt and the target's answer, as tokens."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    temperature: float


@dataclass(frozen=True, slots=True)
class KeptTexts:
    """The texts of one model."""

    folder: Path

    def read(self) -> list[KeptText]:
        """Returns the texts, the oldest first; skips damaged lines."""
        found = []
        for part in parts_in(self.folder):
            with suppress(OSError):
                found += [text for line in part.read_bytes().splitlines() if (text := _text(line))]
        return found

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


def _text(line: bytes) -> KeptText | None:
    try:
        entry = json.loads(line)
        answer = entry["answer"] if "answer" in entry else entry["said"]  # its name in files up to 0.1
        prompt, answer = tuple(map(int, entry["prompt"])), tuple(map(int, answer))
        temperature = float(entry["temperature"])
    except (ValueError, KeyError, TypeError):
        return None
    return KeptText(prompt, answer, temperature) if prompt and answer and min(prompt + answer) >= 0 else None
