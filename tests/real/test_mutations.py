"""Damaged files: byte-mutated copies of the embedded draft never end `edgespec run` with a signal or a
traceback. What llama.cpp itself aborts on is reported in a sentence.

Each copy is first tried in a fork of a process that has llama.cpp loaded, which does what the child of
`edgespec run` does; the copies that ended their fork, and some others, then go through the program itself.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from real.embedded import pair_files

SEED = 2_026
EVERY = 300
SAMPLE = 4
TIME_LIMIT = 60  # seconds for one copy
HEADER = 130_000  # metadata and vocabulary stand in the first bytes, where most damage does most

ARGUMENTS = ["--no-draft", "--threads", "1", "-n", "8", "--temperature", "0", "--raw", "-q", "def main"]

FORKS = """
import os, signal, sys
from edgespec.commands import cli
from edgespec.system import isolate
import edgespec.commands.run

limit, arguments = int(sys.argv[1]), sys.argv[2].split("\\x1f")
for path in sys.stdin.read().splitlines():
    pid = os.fork()
    if not pid:
        signal.alarm(limit)
        said = os.open(path + ".said", os.O_WRONLY | os.O_CREAT, 0o600)
        os.dup2(said, 1)
        os.dup2(said, 2)
        code = isolate.reporting(lambda: cli.run_command(["run", "--target", path, *arguments]))
        sys.stdout.flush()
        os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


def mutated(original: bytes, rng: np.random.Generator) -> bytes:
    """Returns a copy with one to three places changed, mostly where the header is."""
    data = bytearray(original)
    for _ in range(int(rng.integers(1, 4))):
        room = min(HEADER, len(data)) if rng.random() < 0.6 else len(data)
        at = int(rng.integers(0, min(room, 1000)) if rng.random() < 0.3 else rng.integers(0, room))
        match rng.integers(0, 6):
            case 0:
                data[at] = int(rng.integers(0, 256))
            case 1:
                data[at] ^= 1 << int(rng.integers(0, 8))
            case 2:  # a length or an offset gone wild
                data[at : at + 8] = rng.bytes(8)[: len(data) - at]
            case 3:
                data[at : at + 4] = bytes([255] * 4)[: len(data) - at]
            case 4:
                data[at] = (data[at] + int(rng.choice([-1, 1]))) % 256
            case _:  # a letter for another: two tokens of one text
                data[at] = data[int(rng.integers(0, room))]
    return bytes(data)


def write_copies(folder: Path, which: range) -> list[Path]:
    """Writes copies by number; each is the same whichever others are written."""
    original = pair_files()[1].read_bytes()
    paths = [folder / f"mutated-{i}.gguf" for i in which]
    for i, path in zip(which, paths, strict=True):
        path.write_bytes(mutated(original, np.random.default_rng([SEED, i])))
    return paths


def tried_in_forks(paths: list[Path]) -> list[tuple[int, str]]:
    """Returns (exit code, what was printed) for each copy; a negative code is a signal."""
    done = subprocess.run(
        [sys.executable, "-c", FORKS, str(TIME_LIMIT), "\x1f".join(ARGUMENTS)],
        input="\n".join(map(str, paths)).encode(),
        capture_output=True,
        timeout=TIME_LIMIT * len(paths),
    )
    assert done.returncode == 0, done.stderr
    output = [path.with_name(path.name + ".said").read_text(errors="replace") for path in paths]
    return list(zip(map(int, done.stdout.split()), output, strict=True))


def kind_of(code: int, text: str) -> str:
    if code == -signal.SIGALRM:
        return "hung"
    if code < 0:
        return "aborted"
    if "Traceback" in text:
        return "traceback"
    if code == 0:
        return "loaded"
    sentence = text.splitlines()
    return "refused" if code in (1, 2) and sentence and "edgespec: " in sentence[-1] else "odd"


def check_program(path: Path) -> str:
    """Runs the program on a copy; it must end by itself, with text or with one sentence."""
    started = time.monotonic()
    command = [sys.executable, "-m", "edgespec", "run", "--target", str(path), *ARGUMENTS]
    done = subprocess.run(command, capture_output=True, timeout=TIME_LIMIT)
    err = done.stderr.decode(errors="replace")
    name = f"{path.name} after {time.monotonic() - started:.0f} s"
    assert done.returncode in (0, 1, 2), f"{name}: {done.returncode} {err}"
    assert "Traceback" not in err, f"{name}: {err}"
    if done.returncode:
        assert err.startswith("edgespec: "), f"{name}: {err}"
        assert err.count("\n") == 1, f"{name}: {err}"
    else:
        assert err == "", f"{name}: {err}"
    return err


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork; the sample below runs everywhere")
@pytest.mark.slow
def test_300_mutated_copies_end_in_text_or_a_sentence(
    tmp_path: Path, record_testsuite_property: Callable[[str, object], None]
) -> None:
    paths = write_copies(tmp_path, range(EVERY))
    results = tried_in_forks(paths)
    kinds = [kind_of(code, said) for code, said in results]
    counts = Counter(kinds)
    for kind, count in counts.items():
        record_testsuite_property(kind, count)
    print(dict(counts))
    strange = [
        (path.name, code, said[-300:])
        for path, (code, said), kind in zip(paths, results, kinds, strict=True)
        if kind not in ("loaded", "refused", "aborted")
    ]
    assert not strange, strange
    assert counts["refused"] > EVERY // 10  # else the damage is none
    assert counts["loaded"] > EVERY // 10
    for path in (path for path, kind in zip(paths, kinds, strict=True) if kind == "aborted"):
        assert "llama.cpp aborted" in check_program(path)


@pytest.mark.slow
def test_mutated_copies_end_the_program_in_text_or_a_sentence(tmp_path: Path) -> None:
    for path in write_copies(tmp_path, range(SAMPLE)):
        check_program(path)


def test_the_check_notices_what_it_is_for() -> None:
    assert kind_of(-signal.SIGABRT, "") == "aborted"
    assert kind_of(-signal.SIGSEGV, "edgespec: no") == "aborted"
    assert kind_of(1, "Traceback (most recent call last):\n") == "traceback"
    assert kind_of(1, "Killed") == "odd"
    assert kind_of(1, "edgespec: cannot load") == "refused"
    assert kind_of(0, "text") == "loaded"
