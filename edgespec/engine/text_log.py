"""A target's texts for its user, kept if the user wants it: token ids alone.

They make guesses when the pair is loaded again, and `edgespec distill` trains on them. Off unless asked for;
in the data folder, readable by its owner alone, bounded in size: the oldest go first. A full disk or a closed
folder does not stop an answer; its text is then not kept. docs/distill.md has the format.
"""

import json
import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from edgespec_models.gguf.header import Header, read_file

PARTS = 8  # files of one model; the oldest goes as a whole
LONGEST = 8192  # tokens of a text that is kept
FOLDER = "own-texts"


def name_of(target: Path, header: Header) -> str:
    """Returns a name for a model's texts: another file has other token ids, or writes other texts."""
    return f"{target.stem[:40]}-{zlib.crc32(header.raw):08x}"


def parts_in(folder: Path) -> list[Path]:
    """Returns the files of one model's texts, the oldest first."""
    return sorted(folder.glob("[0-9]" * 8 + ".jsonl"))


@dataclass(frozen=True, slots=True)
class KeptText:
    """One prompt and the target's answer, as tokens."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    temperature: float


def read(folder: Path) -> Iterator[list[KeptText]]:
    """Yields the texts of each file, the oldest first; skips damaged lines and files that cannot be read."""
    for part in parts_in(folder):
        with suppress(OSError):
            yield [text for line in part.read_bytes().splitlines() if (text := _text(line))]


def _text(line: bytes) -> KeptText | None:
    try:
        entry = json.loads(line)
        answer = entry["answer"] if "answer" in entry else entry["said"]  # its name in files up to 0.1
        prompt, answer = tuple(map(int, entry["prompt"])), tuple(map(int, answer))
        temperature = float(entry["temperature"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    whole = bool(prompt and answer) and min(prompt + answer) >= 0 and max(prompt + answer) < 2**31
    return KeptText(prompt, answer, temperature) if whole else None


class TextLog:
    """Keeps the answers of one model, each once it has ended. Only its engine writes them."""

    def __init__(self, folder: Path, most_bytes: int) -> None:
        """most_bytes: limit of all files in the folder together."""
        self.folder = folder
        self._part_bytes = most_bytes // PARTS
        self._open: dict[str, tuple[list[int], list[int], float]] = {}  # prompt, answer, temperature

    def begin(self, id: str, prompt: Sequence[int], temperature: float) -> None:
        """Notes the prompt of an answer to come."""
        self._open[id] = list(map(int, prompt)), [], temperature

    def add(self, id: str, tokens: Sequence[int], *, ended: bool) -> None:
        """Adds to an answer, and keeps it if this is the end."""
        if id in self._open:
            self._open[id][1].extend(map(int, tokens))
            if ended:
                self.keep(*self._open.pop(id))

    def drop(self, id: str) -> None:
        """Forgets an answer that will not be made."""
        self._open.pop(id, None)

    def keep(self, prompt: list[int], answer: list[int], temperature: float) -> None:
        """Writes a text, unless it is empty or too long."""
        entry = {"prompt": prompt, "answer": answer, "temperature": temperature}
        line = (json.dumps(entry, separators=(",", ":")) + "\n").encode()
        if not answer or len(prompt) + len(answer) > LONGEST or len(line) > self._part_bytes:
            return
        with suppress(OSError):
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            parts = parts_in(self.folder)
            number = int(parts[-1].stem) if parts else 0
            if parts and parts[-1].stat().st_size + len(line) > self._part_bytes:
                number += 1
            file = os.open(self.folder / f"{number:08d}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                os.write(file, line)
            finally:
                os.close(file)
            for old in parts_in(self.folder)[:-PARTS]:
                old.unlink()


def text_log_of(data: Path, target: Path, most_bytes: int) -> TextLog:
    """Returns the log of a target, in the data folder. Raises HeaderError for what is no GGUF file."""
    return TextLog(data / FOLDER / name_of(target, read_file(target)), most_bytes)
