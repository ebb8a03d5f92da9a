"""Grammars tried in child processes first, where one that never ends can be stopped.

A thread cannot be stopped, a process can: so a client's grammar is read, and compiled for a
vocabulary of bytes, in a child with limits on processor time and memory (`trial_child.py`). It returns
the grammar in llguidance's format; compiling it again takes no longer than it took there. Children are
started when needed, a few at most, and kept: a slow grammar does not delay others. One whose sender has left
(`GIVEN_UP`) ends at once: else a few of them would take all children.
"""

from __future__ import annotations

import pickle
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, BinaryIO, cast

from edgespec.engine.messages import HEAD, receive
from edgespec.engine.trial_child import CPU_S
from edgespec.errors import GivenUpError, GrammarError
from edgespec.grammar.grammar import NAMES, Grammar

PATIENCE_S = 60.0  # of the clock, on a machine that is busy with other things
CHILDREN = 4
LOOK_S = 0.05
# set where nobody waits for the current trial any more
GIVEN_UP: ContextVar[threading.Event | None] = ContextVar("GIVEN_UP", default=None)


class Trials:
    """The children of one vocabulary. Thread-safe; close it, or use it in a `with`."""

    def __init__(
        self,
        controls: Callable[[], Sequence[bytes]] = tuple,
        *,
        cpu_s: float = CPU_S,
        patience_s: float = PATIENCE_S,
    ) -> None:
        """controls: the control tokens that a grammar may name, as `matchers.CONTROL` and their names.

        cpu_s, patience_s: limits for one grammar, of the processor and of the clock.
        """
        self._controls, self._cpu_s, self._patience_s = controls, cpu_s, patience_s
        self._idle: queue.LifoQueue[subprocess.Popen[bytes] | None] = queue.LifoQueue()
        for _ in range(CHILDREN):
            self._idle.put(None)  # one that may be started
        self._started: set[subprocess.Popen[bytes]] = set()

    def __enter__(self) -> Trials:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the children."""
        for child in tuple(self._started):
            self._end(child)

    def lark(self, grammar: Grammar) -> str:
        """Returns a grammar in llguidance's format.

        Raises GrammarError if it is wrong, or takes too much, and GivenUpError.
        """
        given_up = GIVEN_UP.get() or threading.Event()
        child = self._turn(given_up)
        try:
            if child and child.poll() is not None:
                self._end(child)
                child = None
            child = child or self._new()
            said = self._asked(child, grammar, given_up)
            if said is None:
                self._end(child)
                child = None
                if given_up.is_set():
                    raise GivenUpError
                raise GrammarError(
                    f"the {NAMES[grammar.kind]} cannot be used: to read it takes more than {self._cpu_s:g} "
                    "s, or more memory than it may have; make it smaller or simpler"
                )
        finally:
            self._idle.put(child)
        lark, complaint = said
        if complaint is not None:
            raise GrammarError(complaint)
        return str(lark)

    def _turn(self, given_up: threading.Event) -> subprocess.Popen[bytes] | None:
        """Waits for a child that is idle, or may be started."""
        while not given_up.is_set():
            with suppress(queue.Empty):
                return self._idle.get(timeout=LOOK_S)
        raise GivenUpError

    def _new(self) -> subprocess.Popen[bytes]:
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "edgespec.engine.trial_child", str(self._cpu_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # Rust's last words help nobody here
        )
        self._started.add(child)
        _send(child, tuple(self._controls()))
        return child

    def _asked(
        self, child: subprocess.Popen[bytes], grammar: Grammar, given_up: threading.Event
    ) -> Any | None:
        """Returns a child's answer for a grammar; None if it died of it, took too long, or was given up."""
        assert child.stdout
        done, late, until = threading.Event(), threading.Event(), time.monotonic() + self._patience_s

        def watch() -> None:
            while not done.wait(LOOK_S):
                if given_up.is_set() or time.monotonic() > until:
                    late.set()
                    child.kill()
                    return

        watching = threading.Thread(target=watch, daemon=True)
        watching.start()
        try:
            _send(child, grammar)
            said = receive(cast(BinaryIO, child.stdout))
        finally:
            done.set()
            watching.join()
        return None if late.is_set() else said  # a child that is about to end is not asked again

    def _end(self, child: subprocess.Popen[bytes]) -> None:
        assert child.stdin and child.stdout
        child.kill()
        child.wait()
        child.stdout.close()
        try:
            child.stdin.close()
        except OSError:  # an unread rest of a grammar
            pass
        self._started.discard(child)


def _send(child: subprocess.Popen[bytes], value: object) -> None:
    assert child.stdin
    body = pickle.dumps(value)
    try:
        child.stdin.write(HEAD.pack(len(body)) + body)
        child.stdin.flush()
    except OSError:  # it died, which its answer shows
        pass
