"""A child process that renders templates, reused between questions, and replaced when it overruns.

The child starts at the first question or at `warm`, in about 0.1 s; a question takes a fraction of a
millisecond more than rendering does. `limited_child.py` says what limits it.
"""

import atexit
import datetime
import os
import pickle
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from edgespec.errors import TemplateError, TemplateOverrunError
from edgespec.system.limited_child import GIVEN_UP, LOOK_S, REFUSED, TEXT, TOO_MUCH, LimitedChild, Limits

_ADVICE = "give the model another with --chat-template-file, or shorten the conversation"
_ENDING = "the chat template was not rendered: the program is ending"


class Renderer:
    """Asks the child, one question at a time; thread-safe."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self._closings = 0
        self._forget()
        atexit.register(self._discard)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget)  # the pipes are the parent's

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._child: LimitedChild | None = None

    def rendered(self, template: str, values: Mapping[str, Any], now: datetime.datetime | None) -> str:
        """Returns a template's text. Raises TemplateError, and TemplateOverrunError."""
        return self._ask({"what": "text", "template": template, "values": values, "now": now})

    def names_wanted(self, template: str) -> frozenset[str]:
        """Returns the names of the variables that a template reads. Raises TemplateOverrunError."""
        return frozenset(self._ask({"what": "names", "template": template}).split("\n")) - {""}

    def warm(self) -> None:
        """Starts the child, without waiting for it."""
        if self._lock.acquire(blocking=False):  # else it is being asked, and runs
            try:
                self._running()
            finally:
                self._lock.release()

    def close(self) -> None:
        """Ends the child at once: who waits for it gets a TemplateError. A later question starts another."""
        self._closings += 1
        if child := self._child:
            child.kill()

    def _ask(self, question: dict[str, Any]) -> str:
        closings = self._closings
        asked = pickle.dumps(question, pickle.HIGHEST_PROTOCOL)
        with self._turn():
            for _ in range(2):  # a child that somebody else has ended is not the template's fault
                if closings != self._closings:
                    raise TemplateError(_ENDING)
                kind, text = self._answer(asked)
                if kind == TEXT:
                    return text
                if kind == REFUSED:
                    raise TemplateError(text)
                self._discard()
                if kind == TOO_MUCH:
                    raise TemplateOverrunError(f"the chat template {text}: {_ADVICE}")
        raise TemplateError(f"the chat template ended the process that renders it, twice: {_ADVICE}")

    @contextmanager
    def _turn(self) -> Iterator[None]:
        given_up = GIVEN_UP.get()
        while not self._lock.acquire(timeout=LOOK_S if given_up else -1):
            if given_up and given_up.is_set():
                raise TemplateError(_ENDING)
        try:
            yield
        finally:
            self._lock.release()

    def _answer(self, asked: bytes) -> tuple[bytes, str]:
        try:
            return self._running().answer(asked, self.limits)
        except BaseException:  # Ctrl+C: its answer would be taken for that of the next question
            self._discard()
            raise

    def _running(self) -> LimitedChild:
        if self._child is None or not self._child.runs():
            self._discard()
            self._child = LimitedChild("edgespec.chat.sandbox")
        return self._child

    def _discard(self) -> None:
        child, self._child = self._child, None
        if child:
            child.end()


RENDERER = Renderer()
"""The one of this process."""
