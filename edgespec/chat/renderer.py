"""A child process that renders templates, reused between questions, and replaced when it overruns.

Nothing inside Python limits a template: `'a' * 10**10` and a `range` in a `range` are single steps to the
sandbox and to signals. So the child's processor time and memory are watched from here. A template that
overruns is killed, with a sentence for the caller, whose process neither waits longer nor grows. Where
the system can limit memory (Linux), it does, at once.

The child starts at the first question or at `warm`, in about 0.1 s; a question takes a fraction of a
millisecond more than rendering does.
"""

from __future__ import annotations

import atexit
import datetime
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from edgespec.chat.wire import ANSWER, QUESTION, REFUSED, TEXT, TOO_MUCH
from edgespec.errors import TemplateError, TemplateOverrunError
from edgespec.system.isolate import PRIVATE

LOOK_S = 0.02
# set where nobody waits for the current work any more: it ends, and does not begin if it has to wait
GIVEN_UP: ContextVar[threading.Event | None] = ContextVar("GIVEN_UP", default=None)
_ADVICE = "give the model another with --chat-template-file, or shorten the conversation"
_ENDING = "the chat template was not rendered: the program is ending"


@dataclass(frozen=True, slots=True)
class RenderLimits:
    """What rendering may take. The factors are by bytes of the question: long conversations may take more."""

    cpu_s: float = 5.0
    wall_s: float = 60.0  # on a machine that gives the child no time
    memory: int = 512 << 20  # bytes
    memory_factor: int = 16
    text: int = 1 << 20  # bytes
    text_factor: int = 8


@dataclass(slots=True, eq=False)
class _Task:
    """The child's current task. overran: why it was killed; "" if it was not."""

    limits: RenderLimits
    size: int  # bytes of the question
    began: float
    given_up: threading.Event | None = None
    overran: str = ""

    @property
    def memory(self) -> int:
        return self.limits.memory + self.limits.memory_factor * self.size

    @property
    def text(self) -> int:
        return self.limits.text + self.limits.text_factor * self.size


class Renderer:
    """Asks the child, one question at a time; thread-safe."""

    def __init__(self, limits: RenderLimits | None = None) -> None:
        self.limits = limits or RenderLimits()
        self._closings = 0
        self._forget()
        atexit.register(self._discard)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget)  # the pipes are the parent's

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._child: _Child | None = None

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
                task = _Task(self.limits, len(asked), time.monotonic(), GIVEN_UP.get())
                kind, text = self._answer(asked, task)
                if kind == TEXT:
                    return text
                if kind == REFUSED:
                    raise TemplateError(text)
                self._discard()
                if why := task.overran or text:
                    raise TemplateOverrunError(f"the chat template {why}: {_ADVICE}")
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

    def _answer(self, asked: bytes, task: _Task) -> tuple[bytes, str]:
        try:
            return self._running().answer(asked, task)
        except BaseException:  # Ctrl+C: its answer would be taken for that of the next question
            self._discard()
            raise

    def _running(self) -> _Child:
        if self._child is None or not self._child.runs():
            self._discard()
            self._child = _Child()
        return self._child

    def _discard(self) -> None:
        child, self._child = self._child, None
        if child:
            child.end()


class _Child:
    """The process, and the thread that watches it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "edgespec.chat.render_child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={name: value for name, value in os.environ.items() if name not in PRIVATE},
            start_new_session=True,  # Ctrl+C is for the caller
            creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
        )
        self._busy = threading.Event()
        self._turn = threading.Lock()  # of `_task`: nobody is killed for another's task
        self._task: _Task | None = None
        threading.Thread(target=self._watch, daemon=True).start()

    def runs(self) -> bool:
        """True until it has ended."""
        return self._process.poll() is None

    def kill(self) -> None:
        """Ends it; who waits for an answer gets none."""
        self._process.kill()

    def end(self) -> None:
        """Ends it and frees what it holds."""
        self.kill()
        self._process.wait()
        self._busy.set()  # the watching thread sees that there is nothing to watch
        for stream in (self._process.stdin, self._process.stdout):
            if stream:
                with suppress(OSError):  # an unread rest of a question
                    stream.close()

    def answer(self, asked: bytes, task: _Task) -> tuple[bytes, str]:
        """Returns the kind of the answer and its text; no kind if the child has ended."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin and stdout
        self._begin(task)
        try:
            stdin.write(QUESTION.pack(len(asked), task.memory, task.text) + asked)
            stdin.flush()
            head = stdout.read(ANSWER.size)
            length, kind = ANSWER.unpack(head) if len(head) == ANSWER.size else (0, b"")
            text = stdout.read(length)
        except OSError:
            return b"", ""
        finally:
            self._begin(None)
        if len(text) < length:
            return b"", ""
        if kind == TOO_MUCH and not text:
            return kind, f"takes more than {task.memory >> 20:,} MiB of memory"
        return kind, text.decode("utf-8", "surrogatepass")

    def _begin(self, task: _Task | None) -> None:
        with self._turn:
            self._task = task
            if task:
                self._busy.set()
            else:
                self._busy.clear()

    def _watch(self) -> None:
        """Kills the child if a task takes too much."""
        import psutil  # slow to import

        seen: _Task | None = None
        used = 0.0  # seconds of the processor when `seen` was first seen
        with suppress(psutil.Error):
            process = psutil.Process(self._process.pid)
            while self.runs():
                self._busy.wait()
                task = self._task
                if task is not seen:
                    seen, used = task, sum(process.cpu_times()[:2])
                if task and (overran := _overrun(process, task, used)):
                    with self._turn:
                        if self._task is task:
                            task.overran = overran
                            self.kill()
                time.sleep(LOOK_S)


def _overrun(process: Any, task: _Task, used: float) -> str:
    """Returns what a task takes too much of; "" if nothing. process: psutil's."""
    limits = task.limits
    if task.given_up and task.given_up.is_set():
        return "was given up"
    if process.memory_info().rss > task.memory:
        return f"takes more than {task.memory >> 20:,} MiB of memory"
    if sum(process.cpu_times()[:2]) - used > limits.cpu_s:
        return f"takes more than {limits.cpu_s:g} s of processor time"
    return f"takes more than {limits.wall_s:g} s" if time.monotonic() - task.began > limits.wall_s else ""


RENDERER = Renderer()
"""The one of this process."""
