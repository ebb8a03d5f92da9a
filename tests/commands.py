"""`edgespec` as tests run it: as a program, or in their own process, which costs a tenth."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path

import psutil
import pytest

from edgespec.commands import cli
from edgespec.system import isolate

EDGESPEC = [sys.executable, "-m", "edgespec"]
posix = pytest.mark.skipif(os.name != "posix", reason="pipes, signals and terminals as POSIX has them")


def edgespec(
    *arguments: str | Path, stdin: bytes = b"", **environment: str
) -> subprocess.CompletedProcess[bytes]:
    """Runs the program to its end, in seconds."""
    return subprocess.run(
        [*EDGESPEC, *map(str, arguments)],
        input=stdin,
        capture_output=True,
        timeout=60,
        env={**os.environ, **environment},
    )


def in_process(*arguments: str | Path, stdin: bytes = b"") -> tuple[int, str, str]:
    """Does what the program does (or its child), without a process; returns (exit code, stdout, stderr)."""
    handler, before = signal.getsignal(signal.SIGINT), sys.stdin
    out, err = io.StringIO(), io.StringIO()
    sys.stdin = io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8")
    try:
        with redirect_stdout(out), redirect_stderr(err):
            code = isolate.reporting(lambda: cli.run_command([*map(str, arguments)]))
    except SystemExit as ended:  # the parser's own
        code = int(ended.code or 0)
    finally:
        sys.stdin = before
        signal.signal(signal.SIGINT, handler)
    return code, out.getvalue(), err.getvalue()


@contextmanager
def interrupted(*arguments: str | Path, after_s: float) -> Iterator[subprocess.Popen[bytes]]:
    """Runs the program, and sends what Ctrl+C sends once its child has worked for `after_s` seconds."""
    words = [*EDGESPEC, *map(str, arguments)]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    ) as process:
        while process.poll() is None and _worked(process.pid) < after_s:
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGINT)
        yield process


def _worked(pid: int) -> float:
    """Returns the processor time of the children of a process."""
    with suppress(psutil.Error):
        return sum(child.cpu_times().user for child in psutil.Process(pid).children())
    return 0.0


def refused(*arguments: str | Path, code: int = 2) -> str:
    """Returns the one sentence with which arguments are refused."""
    ended, out, err = in_process(*arguments)
    assert (ended, out) == (code, ""), err
    assert err.startswith("edgespec: ") and err.count("\n") == 1
    return err
