"""Token ids -> text that can be shown: no broken UTF-8, no half of a stop string."""

import codecs
from collections.abc import Callable, Sequence

from edgespec.errors import SettingError


class TextRelease:
    """Releases text as tokens come, holding back what may still become something else.

    Held back: the bytes of an unfinished character, and an ending that may be the beginning of a stop
    string. A stop string found ends the text before it, wherever token borders lie.
    """

    def __init__(self, piece: Callable[[int], bytes], stop: Sequence[str] = ()) -> None:
        """piece: the bytes of a token. stop: texts that end it. Raises SettingError if one is empty."""
        if isinstance(stop, str) or not all(isinstance(s, str) and s for s in stop):
            raise SettingError(f"the stop strings are {stop!r}: give texts of at least one character")
        self._piece = piece
        self._stop = tuple(stop)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._held = ""
        self._unfinished = False  # the decoder holds back a part of a character
        self.stopped = False  # a stop string was met; nothing more is released
        self.stopped_by = ""  # this one

    def feed(self, token: int) -> str:
        """Takes one token and returns the text that is now certain."""
        if self.stopped:
            return ""
        if not self._stop:
            return self._decoded(self._piece(token))
        self._held += self._decoded(self._piece(token))
        found = [(at + len(s), at) for s in self._stop if (at := self._held.find(s)) >= 0]
        if found:  # the one completed first, so that token borders do not matter
            self.stopped = True
            end, at = min(found)
            self.stopped_by = self._held[at:end]
            released, self._held = self._held[: min(found)[1]], ""
            return released
        keep = max(_overlap(self._held, s) for s in self._stop)
        cut = len(self._held) - keep
        released, self._held = self._held[:cut], self._held[cut:]
        return released

    def _decoded(self, piece: bytes) -> str:
        """Returns the complete characters of what was held back and this; most pieces need no decoder."""
        if not self._unfinished and piece.isascii():
            return piece.decode("ascii")
        text = self._decoder.decode(piece)
        self._unfinished = bool(self._decoder.getstate()[0])
        return text

    def flush(self) -> str:
        """Returns what was held back for a stop string; an unfinished character is dropped."""
        released, self._held = self._held, ""
        return released


def _overlap(text: str, stop: str) -> int:
    """Returns how many last characters of `text` are a beginning of `stop` (less than all of it)."""
    return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if stop.startswith(text[-n:])), 0)
