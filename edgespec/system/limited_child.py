"""A child process that answers questions within limits: both ends of its pipes.

Nothing inside Python limits a step of C code: `'a' * 10**10` and a `range` in a `range` are single steps to
signals, too. So the child's processor time and memory are watched from here, and one that overruns is killed,
with a clause for the caller, whose process neither waits longer nor grows. Where the system can limit memory
(Linux), it does, at once.

Questions come from our own parent, so a pickle is safe. Answers come from where a stranger's text was worked
on, so they are text and nothing else.
"""

import faulthandler
import os
import pickle
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

LOOK_S = 0.02
LONGEST_S = 70.0  # after which a child ends by itself, if nobody is left to end it
LONGEST_COMPLAINT = 1000  # characters
GAVE_UP = "was given up"
# set where nobody waits for the current work any more: it ends, and does not begin if it has to wait
GIVEN_UP: ContextVar[threading.Event | None] = ContextVar("GIVEN_UP", default=None)
_QUESTION = struct.Struct("<QQQ")  # bytes of the pickle that follows; of memory and of text it may take
_ANSWER = struct.Struct("<Qc")  # bytes of the text that follows; what it is
TEXT, REFUSED, TOO_MUCH, GONE = b"=", b"!", b"?", b" "  # the answer; a complaint; what was too much; no child


@dataclass(frozen=True, slots=True)
class Limits:
    """What one question may take. The factors are by its bytes: long ones may take more."""

    cpu_s: float = 5.0
    wall_s: float = 60.0  # on a machine that gives the child no time
    memory: int = 512 << 20  # bytes beside the child's own at its start
    memory_factor: int = 16
    text: int = 1 << 20  # bytes
    text_factor: int = 8


@dataclass(slots=True, eq=False)
class Task:
    """The child's current question. overran: why it was killed; "" if it was not."""

    limits: Limits
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


class LimitedChild:
    """`python -m MODULE`, and the thread that watches it. One question at a time."""

    def __init__(self, module: str) -> None:
        from edgespec.system.isolate import PRIVATE  # slow to import, and the child needs none of it

        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={name: value for name, value in os.environ.items() if name not in PRIVATE},
            start_new_session=True,  # Ctrl+C is for the caller
            creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
        )
        self.pid = self._process.pid
        self._busy = threading.Event()
        self._turn = threading.Lock()  # of `_task`: nobody is killed for another's task
        self._task: Task | None = None
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

    def answer(self, asked: bytes, limits: Limits) -> tuple[bytes, str]:
        """Returns the kind of the answer to a pickle, and its text: with TOO_MUCH, why the child must go."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin and stdout
        task = Task(limits, len(asked), time.monotonic(), GIVEN_UP.get())
        self._begin(task)
        try:
            stdin.write(_QUESTION.pack(len(asked), task.memory, task.text) + asked)
            stdin.flush()
            head = stdout.read(_ANSWER.size)
            length, kind = _ANSWER.unpack(head) if len(head) == _ANSWER.size else (0, GONE)
            text = stdout.read(length)
        except OSError:
            length, kind, text = 0, GONE, b""
        finally:
            self._begin(None)
        if task.overran:
            return TOO_MUCH, task.overran
        if len(text) < length:
            return GONE, ""
        if kind == TOO_MUCH and not text:
            return kind, f"takes more than {task.memory >> 20:,} MiB of memory"
        return kind, text.decode("utf-8", "surrogatepass")

    def _begin(self, task: Task | None) -> None:
        with self._turn:
            self._task = task
            if task:
                self._busy.set()
            else:
                self._busy.clear()

    def _watch(self) -> None:
        """Kills the child if a task takes too much."""
        import psutil  # slow to import

        seen: Task | None = None
        used = 0.0  # seconds of the processor when `seen` was first seen
        with suppress(psutil.Error):
            process = psutil.Process(self.pid)
            while self.runs():
                self._busy.wait()
                task = self._task
                if task is not seen:
                    seen, used = task, sum(process.cpu_times()[:2])
                if task and (overran := overrun(process, task, used)):
                    with self._turn:
                        if self._task is task:
                            task.overran = overran
                            self.kill()
                time.sleep(LOOK_S)


def overrun(process: Any, task: Task, used: float) -> str:
    """Returns what a task takes too much of; "" if nothing. process: psutil's."""
    limits = task.limits
    if task.given_up and task.given_up.is_set():
        return GAVE_UP
    if process.memory_info().rss > task.memory:
        return f"takes more than {task.memory >> 20:,} MiB of memory"
    if sum(process.cpu_times()[:2]) - used > limits.cpu_s:
        return f"takes more than {limits.cpu_s:g} s of processor time"
    return f"takes more than {limits.wall_s:g} s" if time.monotonic() - task.began > limits.wall_s else ""


def answer_within(answer: Callable[[Any], str], complaint: type[Exception]) -> None:
    """Answers in the child, until there are no more questions. complaint: what `answer` refuses with."""
    questions, answers, own = sys.stdin.buffer, sys.stdout.buffer, _memory_taken()
    with open(os.devnull, "w") as nowhere:
        while head := questions.read(_QUESTION.size):
            length, memory, longest = _QUESTION.unpack(head)
            faulthandler.dump_traceback_later(LONGEST_S, exit=True, file=nowhere)  # needs no running Python
            _limit_memory(own + memory)
            try:
                kind, text = TEXT, answer(pickle.loads(questions.read(length)))
                if len(text) > longest:
                    kind, text = TOO_MUCH, f"makes a text of {len(text):,} characters"
            except complaint as error:
                kind, text = REFUSED, str(error)[:LONGEST_COMPLAINT]
            except MemoryError:
                kind, text = TOO_MUCH, ""
            faulthandler.cancel_dump_traceback_later()
            encoded = text.encode("utf-8", "surrogatepass")
            answers.write(_ANSWER.pack(len(encoded), kind) + encoded)
            answers.flush()


def _memory_taken() -> int:
    """Returns the bytes of this process's addresses; 0 if the system does not say."""
    with suppress(OSError, ValueError), open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def _limit_memory(n_bytes: int) -> None:
    """Limits this process's memory, where the system can; the parent watches everywhere."""
    try:
        import resource
    except ImportError:  # Windows
        return
    with suppress(ValueError, OSError):
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (n_bytes, hard))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
