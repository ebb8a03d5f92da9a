"""A module of ours as a child process that answers questions in lines of JSON: loading llama.cpp may end it.

The child is kept for further questions. A question's line may be followed by bytes, as many as
it says. The child's stderr goes to a file, for its last words.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from edgespec.errors import EngineDiedError
from edgespec.system.closing import Closing
from edgespec.system.isolate import cause_of_death, kills_for_memory

LONGEST_S = 600.0  # loading a model from a slow disk may take minutes
LAST_S = 5.0  # between a child's last output and its end


class ChildDiedError(EngineDiedError):
    """The child ended before it answered, or was ended because it took too long."""


class JsonChild(Closing):
    """`python -m MODULE`, started at the first question. Use it in a `with`: the child ends with it."""

    def __init__(self, module: str, *, longest_s: float = LONGEST_S, last_s: float = LAST_S) -> None:
        self._module, self._longest_s, self._last_s = module, longest_s, last_s
        self._folder = tempfile.TemporaryDirectory(prefix="edgespec-")
        self._noise = Path(self._folder.name) / "stderr"
        self._child: subprocess.Popen[bytes] | None = None
        self._kills_before: int | None = None

    def close(self) -> None:
        """Ends the child."""
        if self._child:
            self._child.kill()
            self._child.communicate()
        self._folder.cleanup()

    def ask(self, question: dict[str, Any], data: bytes | None = None) -> dict[str, Any]:
        """Returns the answer. data: reaches the child as the question's "data". Raises ChildDiedError."""
        child = self._child = self._child or self._started()
        assert child.stdin and child.stdout
        overran = threading.Event()

        def end() -> None:
            overran.set()
            child.kill()

        timer = threading.Timer(self._longest_s, end)
        timer.daemon = True
        timer.start()
        try:
            line = json.dumps(question if data is None else {**question, "data": len(data)}).encode()
            child.stdin.write(line + b"\n" + (data or b""))
            child.stdin.flush()
            line = child.stdout.readline()
        except OSError:
            line = b""
        finally:
            timer.cancel()
        try:
            answer: dict[str, Any] = json.loads(line)
            return answer
        except ValueError:
            raise self._died(child, overran.is_set()) from None

    def _died(self, child: subprocess.Popen[bytes], overran: bool) -> ChildDiedError:
        self._child = None
        try:
            child.communicate(timeout=self._last_s)  # its answer ended early: it is about to end
        except subprocess.TimeoutExpired:
            child.kill()
            child.communicate()
        if overran:
            return ChildDiedError(f"it did not finish in {self._longest_s:.0f} seconds")
        noise = self._noise.read_text(encoding="utf-8", errors="replace")
        if cause := cause_of_death(child.returncode, noise, self._kills_before):
            return ChildDiedError(cause)
        last = (noise.strip().splitlines() or [f"it ended with exit code {child.returncode}"])[-1]
        return ChildDiedError(last)

    def _started(self) -> subprocess.Popen[bytes]:
        self._kills_before = kills_for_memory()
        with open(self._noise, "w", encoding="utf-8") as noise:
            return subprocess.Popen(
                [sys.executable, "-P", "-m", self._module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=noise,
                env={**os.environ, "EDGESPEC_LOG": ""},
            )


def answer_questions(answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Answers line by line, in the child, until there are no more questions."""
    for line in sys.stdin.buffer:
        question = json.loads(line)
        if "data" in question:
            question["data"] = sys.stdin.buffer.read(question["data"])
        encoded = json.dumps(answer(question))
        sys.stdout.buffer.write(encoded.encode() + b"\n")
        sys.stdout.buffer.flush()
