"""The child process that tries grammars: converts one to llguidance's format and compiles it, within limits.

The kernel ends it if one grammar takes too much processor time: nothing that runs in it, Rust
included, could be asked to stop. Its owner sees that from the end of the pipe. It ends with its owner, too.
"""

from __future__ import annotations

import os
import pickle
import sys
from typing import BinaryIO

import llguidance

from edgespec.engine.messages import HEAD, receive
from edgespec.errors import GrammarError
from edgespec.grammar.grammar import NAMES, Grammar
from edgespec.grammar.matchers import lark_of, matcher_for, tokenizer_of

CPU_S = 5.0  # for one grammar
MEMORY = 2**31  # bytes that all of them may take besides the child's own at its start


def _limit_memory() -> None:
    if sys.platform == "win32":
        return
    import resource

    try:
        with open("/proc/self/statm") as file:
            now = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (now + MEMORY, resource.RLIM_INFINITY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    except (OSError, ValueError):  # macOS has no such limit; the limit of time holds
        pass


def _limit_time(seconds: float) -> None:
    """Has the kernel end this process after so much processor time; 0 removes the limit."""
    if sys.platform != "win32":  # there the owner's clock is the only limit
        import signal

        signal.setitimer(signal.ITIMER_PROF, seconds)


def _tried(grammar: Grammar, vocabulary: llguidance.LLTokenizer) -> tuple[str | None, str | None]:
    """Returns the grammar in llguidance's format, or what is wrong with it."""
    try:
        lark = lark_of(grammar)
    except GrammarError as error:
        return None, str(error)
    except RecursionError:
        return None, f"the {NAMES[grammar.kind]} cannot be used: it is nested too deeply; make it flatter"
    matcher_for(vocabulary, lark)  # with the real vocabulary, this reports what is wrong with it
    return lark, None


def main(pipe: BinaryIO, out: BinaryIO, cpu_s: float) -> int:
    """Tries what comes through the pipe until it closes; returns the exit code."""
    controls = receive(pipe)
    if controls is None:
        return 2
    bytes_ = [bytes([i]) for i in range(255)]  # 255 marks control tokens, and is in no text
    vocabulary = tokenizer_of([*bytes_, *controls, b""], frozenset({255 + len(controls)}))
    _limit_memory()
    while (grammar := receive(pipe)) is not None:
        _limit_time(cpu_s)
        body = pickle.dumps(_tried(grammar, vocabulary))
        _limit_time(0)
        out.write(HEAD.pack(len(body)) + body)
        out.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.stdin.buffer, sys.stdout.buffer, float(sys.argv[1])))
