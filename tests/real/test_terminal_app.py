"""The whole of `edgespec chat`: a terminal, the app, an engine of its own, the shipped pair."""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import psutil
import pytest
from real.embedded import pair_files

if sys.platform == "win32":
    pytest.skip("pseudo-terminals are POSIX", allow_module_level=True)

from terminal import ALTERNATE_ON, Terminal


def engines_of(terminal: Terminal) -> list[psutil.Process]:
    """Returns the processes that the app has started."""
    return psutil.Process(terminal.process.pid).children(recursive=True)


def kept(home: Path) -> list[str]:
    """Returns the turns that are in the file of sessions."""
    with closing(sqlite3.connect(next(home.rglob("sessions.db")))) as connection:
        return [row[0] for row in connection.execute("SELECT text FROM turns ORDER BY id")]


def end_of(processes: list[psutil.Process]) -> bool:
    _, alive = psutil.wait_procs(processes, timeout=10)
    return not alive


@pytest.mark.slow  # each part of it has a test of its own, and the app in a terminal one below
def test_a_chat_outlives_its_engine_and_its_app(home: Path) -> None:
    """Question, answer, the engine killed and started by a key, resize, kill -9 of the app, `chat -c`."""
    pair_files()
    with Terminal("chat", "--seed", "1") as terminal:
        terminal.wait_for("ships with EdgeSpec")
        terminal.type("What does os.path.join do?\r")
        terminal.wait_for("tok/s", times=2)
        worker = next(p for p in engines_of(terminal) if "worker" in " ".join(p.cmdline()))
        terminal.resize(80, 24)
        terminal.wait_for("context")
        for process in engines_of(terminal):
            process.kill()
        assert end_of([worker])
        terminal.type("And what does os.path.split do?\r")
        terminal.wait_for("The conversation is kept.")
        terminal.written = ""
        terminal.type("\x1b[20~")  # F9
        time.sleep(0.5)
        terminal.type("\x12")  # Ctrl+R
        terminal.wait_for("2 of 2")
        until = time.monotonic() + 20
        while not kept(home)[-1]:
            assert time.monotonic() < until, "an answer is kept while it comes"
            terminal.read(0.2)
        os.kill(terminal.process.pid, signal.SIGKILL)
        assert "Traceback" not in terminal.written
    texts = kept(home)
    assert texts[0] == "What does os.path.join do?" and texts[1] and texts[-1]
    with Terminal("chat", "-c") as terminal:
        terminal.wait_for("Chats")
        terminal.resize(120, 70)  # then the question is on it, however much of the answer was kept
        terminal.wait_for("And what does os.path.split do?")
        terminal.type("\x11")  # Ctrl+Q
        assert terminal.ends() == 0
        assert terminal.is_in_order()


def quit_by_key(terminal: Terminal) -> int:
    terminal.type("\x11")
    return 0


def interrupt_twice(terminal: Terminal) -> int:
    terminal.type("\x03")
    terminal.wait_for("again to quit")
    terminal.type("\x03")
    return 0


def terminate(terminal: Terminal) -> int:
    os.kill(terminal.process.pid, signal.SIGTERM)
    return 128 + signal.SIGTERM


def interrupt_from_outside(terminal: Terminal) -> int:
    """The exit code said that all went well."""
    os.kill(terminal.process.pid, signal.SIGINT)
    return 128 + signal.SIGINT


def hang_up(terminal: Terminal) -> int:
    os.kill(terminal.process.pid, signal.SIGHUP)
    return 128 + signal.SIGHUP


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "end",
    [
        terminate,
        interrupt_from_outside,
        *(pytest.param(end, marks=SLOW) for end in (quit_by_key, interrupt_twice, hang_up)),
    ],
)
def test_the_terminal_is_as_it_was_however_the_app_ends(end: Callable[[Terminal], int], home: Path) -> None:
    with Terminal(
        "chat", "--endpoint", "http://127.0.0.1:9", "--api-key", "x"
    ) as terminal:  # nobody is there
        terminal.wait_for("F9")
        assert ALTERNATE_ON in terminal.written and not terminal.is_in_order()
        if end is not interrupt_twice:  # which empties the input
            terminal.type("half a thought")
            terminal.wait_for("half a thought")
        code = end(terminal)
        assert terminal.ends() == code
        assert terminal.is_in_order() and "Traceback" not in terminal.written
    if end is not interrupt_twice:
        assert "what you had written is saved with the chat" in " ".join(terminal.written.split())
        with closing(sqlite3.connect(next(home.rglob("sessions.db")))) as connection:
            assert connection.execute("SELECT title FROM sessions").fetchall() == [("half a thought",)]


@pytest.mark.slow
def test_a_window_that_is_closed_ends_app_and_engine() -> None:
    pair_files()
    with Terminal("chat") as terminal:
        terminal.wait_for("ships with EdgeSpec")
        started = [psutil.Process(terminal.process.pid), *engines_of(terminal)]
        assert len(started) >= 2
        os.close(terminal.slave)
        os.close(terminal.master)
        terminal.slave = terminal.master = -1
        terminal.process.wait(15)
        assert end_of(started)


FAULT = """
import sys
from edgespec_tui.screens import conversation_screen

def broken(self, *_):
    raise ZeroDivisionError("a fault of our own")

conversation_screen.ConversationScreen.refresh_state = broken
"""


@pytest.mark.slow
def test_a_fault_of_our_own_is_reported_in_a_sentence_and_kept_in_a_file(tmp_path: Path, home: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(FAULT)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    command = ("chat", "--endpoint", "http://127.0.0.1:9")
    with Terminal(*command, environment={"PYTHONPATH": path}) as terminal:
        assert terminal.ends() == 1
        assert terminal.is_in_order() and "Traceback" not in terminal.written
        assert "ended the chat (ZeroDivisionError)" in " ".join(terminal.written.split())
    kept = next(home.rglob("faults/chat-*.txt")).read_text()
    assert "a fault of our own" in kept and "Traceback" in kept
