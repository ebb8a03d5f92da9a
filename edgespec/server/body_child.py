"""The child process that reads one large body: from stdin to stdout, within time and memory.

A large body takes a second or more of the interpreter, which would be everybody's. The answer is a pickle,
because a child that runs our own code on data alone makes nothing but data.
"""

import gc
import json
import os
import pickle
import sys
from contextlib import suppress

from edgespec.server.json_body import WrongBodyError, parsed, too_many

NICE = 10  # answers that are being written go first
LONGEST_S = 15  # of the processor
MEMORY, MEMORY_FACTOR = 256 << 20, 16  # bytes, and more for each byte of the body


def main() -> None:
    """Reads the body and writes what it holds, or why it is refused. The argument: how long a text may be."""
    gc.disable()  # it would look at millions of parts again and again
    if hasattr(os, "nice"):
        os.nice(NICE)
    _give_way()
    body = sys.stdin.buffer.read()
    _give_way()  # Linux allows one such change in a tenth of a second, of anybody
    _limit(len(body))
    answer: object
    try:
        answer = parsed(body, *json.loads(sys.argv[1]))
    except WrongBodyError as error:
        answer = error
    except MemoryError:
        answer = too_many()
    sys.stdout.buffer.write(pickle.dumps(answer, pickle.HIGHEST_PROTOCOL))


def _give_way() -> None:
    """Makes our session nice, too: Linux may share the cores among sessions first, then within each."""
    with suppress(OSError), open("/proc/self/autogroup", "w") as group:
        group.write(str(NICE))


def _limit(size: int) -> None:
    """Limits this process, where the system can; its parent watches the time everywhere."""
    try:
        import resource
    except ImportError:  # Windows
        return
    for what, most in (
        (resource.RLIMIT_AS, MEMORY + MEMORY_FACTOR * size),
        (resource.RLIMIT_CPU, LONGEST_S),
    ):
        with suppress(ValueError, OSError):
            _, hard = resource.getrlimit(what)
            resource.setrlimit(what, (most, hard))


if __name__ == "__main__":
    main()
