"""A target's texts for its user, kept for `edgespec distill` if the user wants it: token ids alone.

Off unless asked for; in the data folder, readable by its owner alone, bounded in size: the oldest go first.
A full disk or a closed folder does not stop an answer; its text is then not kept.
"""

import json
import os
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from edgespec_models.gguf.header import Header, read_file

PARTS = 8  # files of one model; the oldest goes as a whole
LONGEST = 8192  # tokens of a text that is kept
FOLDER = "own-texts"


@dataclass(frozen=True, slots=True)
class LoggedText:
    """One prompt and the target's answer, as tokens."""

    prompt: tuple[int, ...]
    said: tuple[int, ...]
    temperature: float


def name_of(target: Path, header: Header) -> str:
    """Returns a name for a model's texts: another file has other token ids, or writes other texts."""
    return f"{target.stem[:40]}-{zlib.crc32(header.raw):08x}"


class TextLog:
    """The texts of one model. Only its engine writes them, one at a time."""

    def __init__(self, data: Path, name: str, most_bytes: int = 0) -> None:
        """data: the data folder. most_bytes: limit of all files together; 0 keeps nothing."""
        self.folder = data / FOLDER / name
        self._part_bytes = most_bytes // PARTS

    def keep(self, prompt: Sequence[int], said: Sequence[int], temperature: float) -> None:
        """Adds a text, unless it is empty or too long."""
        if not self._part_bytes or not said or len(prompt) + len(said) > LONGEST:
            return
        entry = {"prompt": list(map(int, prompt)), "said": list(map(int, said)), "temperature": temperature}
        line = (json.dumps(entry, separators=(",", ":")) + "\n").encode()
        if len(line) > self._part_bytes:
            return
        with suppress(OSError):
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            parts = self._parts()
            number = int(parts[-1].stem) if parts else 0
            if parts and parts[-1].stat().st_size + len(line) > self._part_bytes:
                number += 1
            file = os.open(self.folder / f"{number:08d}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                os.write(file, line)
            finally:
                os.close(file)
            for old in self._parts()[:-PARTS]:
                old.unlink()

    def _parts(self) -> list[Path]:
        return sorted(self.folder.glob("[0-9]" * 8 + ".jsonl"))

    def texts(self) -> list[LoggedText]:
        """Returns the kept texts, the oldest first; skips damaged lines."""
        found = []
        for part in self._parts():
            with suppress(OSError):
                found += [text for line in part.read_bytes().splitlines() if (text := _text(line))]
        return found

    def size(self) -> int:
        """Returns bytes."""
        return sum(part.stat().st_size for part in self._parts())

    def delete(self) -> None:
        """Deletes all of it. Raises OSError."""
        for part in self._parts():
            part.unlink()
        with suppress(OSError):
            self.folder.rmdir()


class TextRecorder:
    """The answers in progress, each kept once it has ended."""

    def __init__(self, texts: TextLog) -> None:
        self._texts = texts
        self._open: dict[str, tuple[tuple[int, ...], list[int], float]] = {}

    def begin(self, id: str, prompt: Sequence[int], temperature: float) -> None:
        """Notes the prompt of an answer to come."""
        self._open[id] = tuple(map(int, prompt)), [], temperature

    def add(self, id: str, tokens: Sequence[int], *, ended: bool) -> None:
        """Adds to an answer, and keeps it if this is the end."""
        if id in self._open:
            self._open[id][1].extend(tokens)
            if ended:
                self._texts.keep(*self._open.pop(id))

    def drop(self, id: str) -> None:
        """Forgets an answer that will not be made."""
        self._open.pop(id, None)


def text_log_of(data: Path, target: Path, most_bytes: int = 0) -> TextLog:
    """Returns the texts of a target. Raises HeaderError for what is no GGUF file."""
    return TextLog(data, name_of(target, read_file(target)), most_bytes)


def all_kept(data: Path) -> list[TextLog]:
    """Returns the texts of every model that has some."""
    folders = sorted((data / FOLDER).glob("*/")) if (data / FOLDER).is_dir() else []
    return [TextLog(data, folder.name) for folder in folders if folder.is_dir()]


def _text(line: bytes) -> LoggedText | None:
    try:
        entry = json.loads(line)
        prompt, said = tuple(map(int, entry["prompt"])), tuple(map(int, entry["said"]))
        temperature = float(entry["temperature"])
    except (ValueError, KeyError, TypeError):
        return None
    return LoggedText(prompt, said, temperature) if prompt and said and min(prompt + said) >= 0 else None
