"""Bytes of a terminal become keys and pastes, whatever they are.

Textual 8.2 has three faults here. Its decoder is strict: a byte that is not UTF-8 (a Latin-1 terminal, 8-bit
Meta) ends the thread that reads. Its parser takes an ESC in a paste for the beginning of a key, and runs the
rest of the paste as keys. And a sequence with a number it did not expect ends the thread, too. So pastes
never get to that parser, and it is replaced where it fails.
"""

import re
from codecs import getincrementaldecoder
from collections.abc import Callable, Generator, Iterator

from textual import events
from textual._xterm_parser import BRACKETED_PASTE_END as END
from textual._xterm_parser import BRACKETED_PASTE_START as START
from textual._xterm_parser import XTermParser
from textual.message import Message

STALLED_S = 1.0  # without a byte: what came of a paste is shown, and one key may end it
GIVEN_UP_S = 0.5  # without a byte: an app that ends waits no longer for the end of a paste
LARGEST = 1000  # columns or lines of a window that is believed
SEQUENCE = re.compile(  # colours, titles, character sets; then every other control character
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)|[()#%][0-9A-Z@]|[78=>])"
    r"|\r(?=\n)|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]"
)


def without_controls(text: str) -> str:
    """Returns a pasted text as it is read: no colours, no control characters but tab and line end."""
    return SEQUENCE.sub("", text).replace("\r", "\n")


class TypedBytes:
    """Takes bytes as they are read; gives what they mean. clock: seconds.

    A paste ends when its end has come and nothing more waits to be read (`quiet`): an end within a paste,
    which not every terminal removes, would make keys of the rest.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._decode = getincrementaldecoder("utf-8")("replace").decode
        self._parser = XTermParser()
        self._before = ""  # the end of what the parser got: a mark may come in pieces
        self._paste: list[str] | None = None
        self._ended = False  # an end of the paste has been seen
        self._last = clock()

    @property
    def pasting(self) -> bool:
        """True while more of a paste is to be expected."""
        return self._paste is not None and not self._ended and self._clock() - self._last < GIVEN_UP_S

    @property
    def ended(self) -> bool:
        """True while a paste ends unless more comes at once."""
        return self._ended

    def feed(self, data: bytes) -> Iterator[Message]:
        """Takes bytes; yields keys, clicks and whatever else they are, but no paste before `quiet`."""
        stalled = self._clock() - self._last > STALLED_S
        self._last = self._clock()
        if stalled and self._paste is not None and data in (b"\x1b", b"\x03"):
            yield from self._end_paste("".join(self._paste))
        text = self._decode(data)
        if self._paste is None:
            text = yield from self._typed(text)
        if self._paste is not None:
            self._paste += [text] * bool(text)
            self._ended = self._ended or END in "".join(self._paste[-2 * len(END) :])

    def quiet(self) -> Iterator[Message]:
        """Yields what is certain now that nothing waits to be read."""
        if self._paste is None:
            yield from self._certain(list(self._parser.tick()))
        elif self._ended:
            text, _, rest = "".join(self._paste).rpartition(END)
            yield from self._end_paste(text)
            yield from self._certain(self._keys(rest))
        elif self._clock() - self._last > STALLED_S and self._paste:
            text, self._paste = "".join(self._paste), []
            yield from self._shown(text)

    def _typed(self, text: str) -> Generator[Message, None, str]:
        """Yields what comes before a paste; returns what is of the paste."""
        known = len(self._before)
        at = (self._before + text).find(START)
        if at < 0:
            yield from self._certain(self._keys(text))
            self._before = (self._before + text)[1 - len(START) :]
            return ""
        yield from self._certain(self._keys(text[: max(0, at - known)]))
        self._renew()  # it may wait for more of the mark
        self._before, self._paste, self._ended = "", [], False
        return text[at + len(START) - known :]

    def _end_paste(self, text: str) -> Iterator[Message]:
        self._paste, self._ended = None, False
        yield from self._shown(text)

    def _shown(self, text: str) -> Iterator[Message]:
        if shown := without_controls(text.replace(START, "").replace(END, "")):
            yield events.Paste(shown)

    def _keys(self, text: str) -> Iterator[Message]:
        for character in text:
            try:
                yield from self._parser.feed(character)
            except (ValueError, ArithmeticError, LookupError, TypeError):  # a number that is none, or huge
                self._renew()

    def _renew(self) -> None:
        """Begins with a fresh parser that knows of the window what the old one knew."""
        old, self._parser = self._parser, XTermParser()
        for known in ("last_x", "last_y", "mouse_pixels", "terminal_size", "terminal_pixel_size"):
            setattr(self._parser, known, getattr(old, known))

    @staticmethod
    def _certain(found: Iterator[Message] | list[Message]) -> Iterator[Message]:
        """Leaves out what cannot be: half a character, a window of no size or a giant one."""
        for message in found:
            if isinstance(message, events.Key) and "\ud800" <= (message.character or "")[:1] <= "\udfff":
                continue
            if isinstance(message, events.Resize) and not all(1 <= n <= LARGEST for n in message.size):
                continue
            yield message
