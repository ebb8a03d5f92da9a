"""The child process that renders templates: questions on stdin, texts on stdout, until stdin closes.

Questions come from our own parent, so a pickle is safe. Answers come from where a stranger's template ran,
so they are text and nothing else.
"""

from __future__ import annotations

import faulthandler
import os
import pickle
import sys
from contextlib import suppress
from typing import Any, BinaryIO

from edgespec.chat.sandbox import names_wanted, rendered
from edgespec.chat.wire import ANSWER, QUESTION, REFUSED, TEXT, TOO_MUCH
from edgespec.errors import TemplateError

LONGEST_S = 70.0  # after which it ends by itself, if nobody is left to end it
LONGEST_COMPLAINT = 1000  # characters


def serve(questions: BinaryIO, answers: BinaryIO) -> None:
    """Answers until there are no more questions."""
    with open(os.devnull, "w") as nowhere:
        while head := questions.read(QUESTION.size):
            length, memory, longest = QUESTION.unpack(head)
            faulthandler.dump_traceback_later(LONGEST_S, exit=True, file=nowhere)  # needs no running Python
            _limit_memory(memory)
            kind, text = _answer(questions, length, longest)
            faulthandler.cancel_dump_traceback_later()
            answers.write(ANSWER.pack(len(text), kind) + text)
            answers.flush()


def _answer(questions: BinaryIO, length: int, longest: int) -> tuple[bytes, bytes]:
    try:
        asked: dict[str, Any] = pickle.loads(questions.read(length))
        if asked["what"] == "names":
            text = "\n".join(sorted(names_wanted(asked["template"])))
        else:
            text = rendered(asked["template"], asked["values"], asked["now"])
        if len(text) > longest:
            return TOO_MUCH, f"makes a text of {len(text):,} characters".encode()
        return TEXT, text.encode("utf-8", "surrogatepass")
    except TemplateError as error:
        return REFUSED, str(error)[:LONGEST_COMPLAINT].encode("utf-8", "replace")
    except MemoryError:
        return TOO_MUCH, b""


def _limit_memory(n_bytes: int) -> None:
    """Limits this process's memory, where the system can; the parent watches everywhere."""
    try:
        import resource
    except ImportError:  # Windows
        return
    with suppress(ValueError, OSError):
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (n_bytes, hard))


if __name__ == "__main__":
    serve(sys.stdin.buffer, sys.stdout.buffer)
