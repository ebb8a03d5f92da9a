"""What a prompt contains besides its text: pictures and sounds as they came, and where."""

from dataclasses import dataclass
from typing import Literal

LARGEST = {"picture": 30 * 2**20, "sound": 10 * 2**20}  # bytes of an attachment


@dataclass(frozen=True, slots=True)
class Attachment:
    """A file that a prompt contains."""

    kind: Literal["picture", "sound"]
    data: bytes


@dataclass(frozen=True, slots=True)
class Mixed:
    """A prompt with media: texts as a template rendered them, and what is between each two."""

    texts: tuple[str, ...]
    attached: tuple[Attachment, ...]  # one less

    def __len__(self) -> int:
        return sum(map(len, self.texts))
