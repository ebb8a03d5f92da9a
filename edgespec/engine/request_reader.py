"""The owner's messages, read in a thread of their own, and prepared for the engine.

INVARIANT: the reader never waits for a request. What takes long (a new grammar, a long text) is done by a few
other threads, so a heavy request delays nobody else, and a ping is answered at once. Requests with pictures
take one of these threads together, for these are encoded one after another. Requests that were given up take
none of these threads: one that cannot stop at once is lost, and another takes its place. Whatever is wrong
with one request refuses only that request; if the reader itself fails, the worker ends and is restarted,
because one that runs and does not listen would keep everybody waiting.
"""

import os
import queue
import sys
import threading
import time
import traceback
from array import array
from collections import deque
from dataclasses import dataclass
from functools import cached_property
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from edgespec.core.attachment import Mixed  # fmt: skip
from edgespec.engine.borders import borders_of
from edgespec.engine.outbox import Outbox
from edgespec.engine.pair import Pair
from edgespec.engine.past_texts import PastTexts
from edgespec.errors import EdgeSpecError, PromptTooLongError, QueueFullError, SettingError
from edgespec.llama.cuts import Cuts, cuts_of
from edgespec.llama.medium import Medium
from edgespec.llama.saved import Saved
from edgespec.protocol.messages import (
    MOST_TOKENS,
    Cancel,
    LargeBodies,
    Ping,
    Pong,
    RefusalKind,
    Refused,
    SlotAction,
    Spell,
    Spelt,
    Submit,
    Tokenize,
    Tokenized,
    longest_text,
    receive,
)
from edgespec.system.limited_child import GIVEN_UP

LAST_STEP_S = 3.0  # how long the engine may take to notice that its owner is gone
THREADS = 4  # heavy requests prepared at a time
NICE = 10  # of these threads: answers that are being written go first
MOST_LOST = 12  # threads at work on what was given up
QUICK = 32_768  # characters or tokens that the reader itself converts, in some milliseconds
STACK = 2**26  # bytes for each thread: llguidance recurses, and the trial of a grammar had 8 MiB
DEAF = 70  # exit code of a worker whose reader failed
Heavy = Submit | Tokenize | Spell
Tokens = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Ready:
    """A request as the engine takes it."""

    message: Submit
    tokens: Tokens
    media: tuple[Medium, ...] = ()  # of the prompt: they are there as long as somebody holds them
    borders: tuple[int, ...] = ()  # places of the prompt where later ones may differ


@dataclass(frozen=True, slots=True)
class SlotRead:
    """The file of an action has been read."""

    action: SlotAction
    saved: Saved
    n_bytes: int


class RequestReader:
    """Reads the owner's messages; `items` has those for the engine, and None when the owner is gone."""

    def __init__(self, pipe: BinaryIO, outbox: Outbox, *, most: int) -> None:
        """most: heavy requests that may be in preparation, or wait for it, at the same time."""
        self._pipe, self._outbox, self._most = pipe, outbox, most
        self.pair: Pair | None = None  # set before the owner learns that there is one
        self.past: PastTexts | None = None  # set with it
        self.step_began: float | None = None  # set by the engine's thread; reported to pings
        self.items: queue.SimpleQueue[Ready | Cancel | SlotAction | SlotRead | None] = queue.SimpleQueue()
        threading.stack_size(STACK)
        self._lock = threading.Lock()
        # of what is prepared, or ready and not taken: what to set if it is given up
        self._preparing: dict[str, threading.Event] = {}
        self._heavy: deque[Heavy] = deque()  # wait for a thread
        self._known_cuts: dict[bool, Cuts] = {}
        self._at_work: list[Heavy] = []  # what the threads prepare, given up or not
        self._bodies = 0  # that the owner is reading
        threading.Thread(target=self._listen, daemon=True).start()

    @property
    def idle(self) -> bool:
        """True if nothing is being prepared, or waits to be taken."""
        return not self._preparing

    @property
    def busy(self) -> bool:
        """True if a thread uses the pair, perhaps for a request that was given up."""
        return bool(self._at_work)

    @property
    def own_work(self) -> int:
        """How much of our own work wants a core while the engine evaluates."""
        return len(self._at_work) + self._bodies

    def prepare(self, message: Heavy) -> None:
        """Prepares a request: at once if that is quick, else in another thread."""
        with self._lock:
            full = len(self._preparing) >= self._most
            if not full:
                self._preparing[message.id] = threading.Event()
        if full:
            sentence = f"{self._most} requests are already being prepared: try again later"
            self._outbox.send(Refused(message.id, "queue_full", sentence))
        else:
            self._begin(message)

    def _begin(self, message: Heavy) -> None:
        if self._is_quick(message):
            self._make_ready(message)
        else:
            with self._lock:
                self._heavy.append(message)
            self._start_heavy()

    def takes(self, message: Submit) -> bool:
        """Returns whether the engine may take a request that is ready.

        Not if it was given up since, or lacks what others' requests have pushed out: it is prepared again.
        """
        prepared = self.is_prepared(message)
        with self._lock:
            if prepared:
                return self._preparing.pop(message.id, None) is not None
            wanted = message.id in self._preparing
        if wanted:
            self._begin(message)
        return False

    def _start_heavy(self) -> None:
        """Starts what waits for a thread, if there is room; drops what was given up."""
        with self._lock:
            self._heavy = deque(message for message in self._heavy if message.id in self._preparing)
            while True:
                wanted = [one for one in self._at_work if one.id in self._preparing]
                lost, encoding = len(self._at_work) - len(wanted), any(map(_has_media, wanted))
                if len(wanted) >= THREADS or lost > MOST_LOST:
                    return
                # media are encoded one after another: a second request with some would only hold a thread
                message = next((one for one in self._heavy if not (encoding and _has_media(one))), None)
                if message is None:
                    return
                self._heavy.remove(message)
                self._at_work.append(message)
                work = (message, self._preparing[message.id])
                threading.Thread(target=self._work, args=work, daemon=True).start()

    def _work(self, message: Heavy, given_up: threading.Event) -> None:
        GIVEN_UP.set(given_up)
        if sys.platform == "linux":  # elsewhere it would be the whole process
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
        try:
            self._make_ready(message)
        finally:
            with self._lock:
                self._at_work.remove(message)
            self._start_heavy()

    def _listen(self) -> None:
        try:
            while (message := receive(self._pipe)) is not None:
                self.take(message)
            self.items.put(None)  # the owner is gone
            time.sleep(LAST_STEP_S)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(DEAF)

    def take(self, message: object) -> None:
        """Takes a message from the pipe: answers it, or reads its prompt, in a thread if that takes time."""
        if isinstance(message, Ping):
            began = self.step_began
            self._outbox.send(Pong(message.number, 0.0 if began is None else time.monotonic() - began))
        elif isinstance(message, Submit | Tokenize | Spell):
            self.prepare(message)
        elif isinstance(message, SlotAction):
            self.items.put(message)
        elif isinstance(message, LargeBodies):
            self._bodies = message.n
        else:
            assert isinstance(message, Cancel)
            with self._lock:
                if given_up := self._preparing.pop(message.id, None):
                    given_up.set()
            self.items.put(message)  # it may have become ready just now
            self._start_heavy()

    def _is_quick(self, message: Heavy) -> bool:
        if isinstance(message, Spell):
            return len(message.tokens) <= QUICK
        if isinstance(message.prompt, Mixed):
            return False
        if isinstance(message, Tokenize):
            return len(message.prompt) <= QUICK
        return len(message.prompt) <= QUICK and self.is_prepared(message)

    def is_prepared(self, message: Submit) -> bool:
        """True if all that a vocabulary needs once for this request is there already."""
        assert self.pair
        return self.pair.streams.is_prepared(message.request)

    def _make_ready(self, message: Heavy) -> None:
        """Passes a request on; whatever is wrong with it, only this request is refused."""
        made: Ready | Tokenized | Spelt | Refused
        try:
            made = self._made(message)
        except EdgeSpecError as error:
            made = refused(message.id, error)
        except Exception as error:  # ours: the fault of one request must not stop the reader
            traceback.print_exc()
            made = refused(message.id, error)
        with self._lock:
            wanted = message.id in self._preparing
            if not isinstance(made, Ready):
                self._preparing.pop(message.id, None)
            elif wanted:
                self.items.put(made)  # under the lock: a `Cancel` comes before or after it, and is seen
        if wanted and not isinstance(made, Ready):
            self._outbox.send(made)

    def _made(self, message: Heavy) -> Ready | Tokenized | Spelt:
        assert self.pair
        if isinstance(message, Spell):
            piece = self.pair.target.piece
            return Spelt(message.id, tuple(piece(token, special=True) for token in message.tokens))
        if isinstance(message, Submit):
            self.pair.streams.prepare(message.request)
            tokens, media = self._read(message)
            return Ready(message, tokens, media, borders_of(message, tokens, self.pair.target))
        tokens, _ = self._read(message)
        sent = tokens if tokens.size <= MOST_TOKENS else tokens[:0]
        return Tokenized(message.id, array("i", sent.tobytes()), tokens.size)

    def _read(self, message: Submit | Tokenize) -> tuple[Tokens, tuple[Medium, ...]]:
        """Returns a prompt's tokens, or some of them if it is given up, and the media in it."""
        assert self.pair
        prompt = message.prompt
        if isinstance(prompt, tuple):
            return np.array(prompt, np.int32), ()
        if isinstance(prompt, str):
            return self._tokens(message, prompt, add_bos=message.add_bos), ()
        found = [self._tokens(message, prompt.texts[0], add_bos=message.add_bos)]
        media: list[Medium] = []
        for attachment, text in zip(prompt.attached, prompt.texts[1:], strict=True):
            for piece in self.pair.media_pieces(attachment):
                found.append(piece.cells if isinstance(piece, Medium) else piece)
                media += [piece] if isinstance(piece, Medium) else []
            found.append(self._tokens(message, text, add_bos=False))
        return np.concatenate(found), tuple(media)

    def _tokens(self, message: Submit | Tokenize, prompt: str, *, add_bos: bool) -> Tokens:
        """Returns a text's tokens, or some of them if it is given up before the end."""
        assert self.pair
        text = prompt.encode("utf-8", "replace")
        self._check_length(message, len(text))
        special = message.special if isinstance(message, Tokenize) else True
        found: list[Tokens] = []
        cuts = self._cuts(special)
        if isinstance(message, Submit) and isinstance(message.prompt, str):
            found, text = self._replayed(message, text, cuts)
        for piece in cuts.pieces(text):
            found.append(self.pair.target.tokenize(piece, special=special, add_bos=add_bos and not found))
            if message.id not in self._preparing:
                break
        return np.concatenate(found)

    def _replayed(self, message: Submit, text: bytes, cuts: Cuts) -> tuple[list[Tokens], bytes]:
        """Returns the tokens with which a text began when it was answered, if it was, and what is left."""
        assert self.pair
        request = message.request
        if (
            self.past is None or request.fresh or request.seed is not None
        ):  # what these get depends on no past
            return [], text
        vocabulary = self.pair.target.vocabulary
        start = b""
        if message.add_bos and vocabulary.add_bos and vocabulary.bos >= 0:
            start = self.pair.target.piece(vocabulary.bos, special=True)
        tokens, n = self.past.replayed(start + text, message.owner, self.pair.target.control, cuts)
        return ([tokens], text[n - len(start) :]) if n > len(start) else ([], text)

    def _check_length(self, message: Submit | Tokenize, size: int) -> None:
        """Raises PromptTooLongError or SettingError for a text that cannot fit, before it takes time."""
        assert self.pair
        n_ctx = self.pair.n_ctx
        if isinstance(message, Submit) and size > n_ctx and size > n_ctx * self._longest_piece:
            raise PromptTooLongError(-(-size // self._longest_piece), n_ctx, at_least=True)
        if size > (most := longest_text(n_ctx)):
            raise SettingError(f"the text has {size:,} bytes, and {most:,} are read at once: shorten it")

    def _cuts(self, special: bool) -> Cuts:
        assert self.pair
        if special not in self._known_cuts:
            self._known_cuts[special] = cuts_of(self.pair.target, special=special)
        return self._known_cuts[special]

    @cached_property
    def _longest_piece(self) -> int:
        assert self.pair
        target = self.pair.target
        return max(len(target.piece(token, special=True)) for token in range(target.n_vocab))


def _has_media(message: Heavy) -> bool:
    return not isinstance(message, Spell) and isinstance(message.prompt, Mixed)


def refused(id: str, error: Exception) -> Refused:
    """Returns why a request is refused; an error that is none of EdgeSpec's is a bug."""
    if isinstance(error, PromptTooLongError):
        return Refused(id, "too_long", str(error), error.n_prompt, error.n_ctx)
    if not isinstance(error, EdgeSpecError):
        sentence = f"a fault of EdgeSpec's own ({type(error).__name__}) at this request: the log has more"
        return Refused(id, "fault", sentence)
    kinds: tuple[tuple[type[EdgeSpecError], RefusalKind], ...] = (
        (QueueFullError, "queue_full"), (SettingError, "setting"),
    )  # fmt: skip
    return Refused(id, next((name for of, name in kinds if isinstance(error, of)), "engine"), str(error))
