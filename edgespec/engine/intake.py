"""The owner's messages, read in a thread of their own, and prepared for the engine.

INVARIANT: the reader never waits for a request. What takes long (a new grammar, a long text) is done by a few
other threads, so a heavy request delays nobody else, and a ping is answered at once. Whatever is wrong with
one request refuses only that request; if the reader itself fails, the worker ends and is restarted, because
one that runs and does not listen would keep everybody waiting.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from edgespec.engine.messages import (
    Cancel,
    Ping,
    Pong,
    RefusalKind,
    Refused,
    Spell,
    Spelt,
    Submit,
    Tokenize,
    Tokenized,
    receive,
)  # fmt: skip
from edgespec.engine.outlet import Outlet
from edgespec.engine.pair import Pair
from edgespec.errors import EdgeSpecError, PromptTooLongError, QueueFullError, SettingError

LAST_STEP_S = 5.0  # how long the engine may take to notice that its owner is gone
THREADS = 4  # heavy requests prepared at a time
QUICK = 32_768  # characters or tokens that the reader itself converts, in some milliseconds
STACK = 2**26  # bytes for each thread: llguidance recurses, and the trial of a grammar had 8 MiB
DEAF = 70  # exit code of a worker whose reader failed
Tokens = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Ready:
    """A request as the engine takes it."""

    message: Submit
    tokens: Tokens


class Intake:
    """Reads the owner's messages; `items` has those for the engine, and None when the owner is gone."""

    def __init__(self, pipe: BinaryIO, outlet: Outlet, *, most: int) -> None:
        """most: heavy requests that may be in preparation, or wait for it, at the same time."""
        self._pipe, self._outlet, self._most = pipe, outlet, most
        self.pair: Pair | None = None  # set before the owner learns that there is one
        self.step_began: float | None = None  # set by the engine's thread; reported to pings
        self.items: queue.SimpleQueue[Ready | Cancel | None] = queue.SimpleQueue()
        threading.stack_size(STACK)
        self._pool = ThreadPoolExecutor(THREADS, "intake")
        self._lock = threading.Lock()
        self._preparing: set[str] = set()
        threading.Thread(target=self._listen, daemon=True).start()

    @property
    def idle(self) -> bool:
        """True if nothing is being prepared."""
        return not self._preparing

    def prepare(self, message: Submit | Tokenize | Spell) -> None:
        """Prepares a request: at once if that is quick, else in another thread."""
        with self._lock:
            full = len(self._preparing) >= self._most
            if not full:
                self._preparing.add(message.id)
        if full:
            sentence = f"{self._most} requests are already being prepared: try again later"
            self._outlet.send(Refused(message.id, "queue_full", sentence))
        elif self._is_quick(message):
            self._make_ready(message)
        else:
            self._pool.submit(self._make_ready, message)

    def _listen(self) -> None:
        try:
            while (message := receive(self._pipe)) is not None:
                self._take(message)
            self.items.put(None)  # the owner is gone
            time.sleep(LAST_STEP_S)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(DEAF)

    def _take(self, message: object) -> None:
        if isinstance(message, Ping):
            began = self.step_began
            self._outlet.send(Pong(message.number, 0.0 if began is None else time.monotonic() - began))
        elif isinstance(message, Submit | Tokenize | Spell):
            self.prepare(message)
        else:
            assert isinstance(message, Cancel)
            with self._lock:
                self._preparing.discard(message.id)
            self.items.put(message)  # it may have become ready just now

    def _is_quick(self, message: Submit | Tokenize | Spell) -> bool:
        if isinstance(message, Spell):
            return len(message.tokens) <= QUICK
        if isinstance(message, Tokenize):
            return len(message.prompt) <= QUICK
        return len(message.prompt) <= QUICK and self.is_prepared(message)

    def is_prepared(self, message: Submit) -> bool:
        """True if all that a vocabulary needs once for this request is there already."""
        if message.grammar is None and not message.sampling.repeats_dry:
            return True
        assert self.pair
        try:
            shown = shown_tokens(self.pair, message.shown)
        except UnicodeEncodeError:
            return False
        return self.pair.is_prepared(message.grammar, message.sampling, shown)

    def _make_ready(self, message: Submit | Tokenize | Spell) -> None:
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
            self._preparing.discard(message.id)
            if wanted and isinstance(made, Ready):
                self.items.put(made)  # under the lock: a `Cancel` comes before or after it, and is seen
        if wanted and not isinstance(made, Ready):
            self._outlet.send(made)

    def _made(self, message: Submit | Tokenize | Spell) -> Ready | Tokenized | Spelt:
        assert self.pair
        if isinstance(message, Spell):
            piece = self.pair.target.piece
            return Spelt(message.id, tuple(piece(token, special=True) for token in message.tokens))
        if isinstance(message, Submit):
            shown = shown_tokens(self.pair, message.shown)
            self.pair.prepare(message.grammar, message.sampling, shown)
            return Ready(message, self._tokens(message))
        return Tokenized(message.id, tuple(self._tokens(message).tolist()))

    def _tokens(self, message: Submit | Tokenize) -> Tokens:
        assert self.pair
        if isinstance(message.prompt, str):
            text = message.prompt.encode("utf-8", "replace")
            special = message.special if isinstance(message, Tokenize) else True
            return self.pair.target.tokenize(text, special=special, add_bos=message.add_bos)
        return np.array(message.prompt, np.int32)


def shown_tokens(pair: Pair, texts: tuple[str, ...]) -> frozenset[int]:
    """Returns the tokens with these texts; texts that are no single token are shown anyway."""
    tokenize = pair.target.tokenize
    found = (tokenize(text.encode(), special=True, add_bos=False) for text in texts)
    return frozenset(tokens.item(0) for tokens in found if tokens.size == 1)


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
