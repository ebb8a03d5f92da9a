"""Runs a command in a child process, because llama.cpp aborts its process on some faults.

The child does the work on the same terminal. What C code writes to stderr (an assertion, an uncaught C++
exception) goes to a file instead, and if a signal ends the child, the parent says so in a sentence.
The child in turn ends when its parent is gone, even by kill -9.
"""

import io
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from edgespec.errors import EdgeSpecError, EngineDiedError
from edgespec.system.machines import LOST, lost_sentence
from edgespec.system.self_test import self_test
from edgespec.system.terminal import guarded, one_line

_NOISE = "EDGESPEC_NOISE_FILE"  # set in the child: where C code's stderr goes
_PARENT = "EDGESPEC_PARENT_PIPE"  # set in the child: file descriptor that closes when the parent ends
PRIVATE = ("EDGESPEC_API_KEY", _NOISE, _PARENT)  # variables that children never see
LONGEST_SENTENCE = 2000  # characters of an error; one may quote a stranger's file
ROUTINE = re.compile(
    r"[ ~.]*(llama|load|print_info|ggml_|gguf|sched_|graph|set_|init|create|CPU|common)[\w ]*[:=(]"
)
ALARM = re.compile(r"error|fail|assert|abort|what\(\)|Traceback|cannot", re.IGNORECASE)
# how llama.cpp and its back ends report that memory was refused
NO_MEMORY = re.compile(
    r"(failed|unable) to allocate|out of (device |host )?memory|ErrorOutOf\w+Memory|cudaMalloc failed",
    re.IGNORECASE,
)
NOT_OF_A_CARD = re.compile(r"cpu_buffer|CPU buffer|host memory|ErrorOutOfHostMemory", re.IGNORECASE)
INTERRUPTED = 130  # exit code after Ctrl+C, as in shells
WINDOWS_CTRL_C = 0xC000013A  # STATUS_CONTROL_C_EXIT


def isolated() -> bool:
    """True in the child."""
    return _NOISE in os.environ


def run_isolated(argv: Sequence[str]) -> int:
    """Runs `edgespec argv` in a child; returns its exit code. Raises EngineDiedError if a signal ended it."""
    fill_closed_streams()
    with tempfile.TemporaryDirectory(prefix="edgespec-") as folder:
        noise = Path(folder) / "stderr"
        environment = {**os.environ, _NOISE: str(noise)}
        reading: int | None = None
        if os.name == "posix":
            reading, writing = os.pipe()
            os.set_inheritable(reading, True)
            environment[_PARENT] = str(reading)
        command = [
            sys.executable,
            "-P",
            "-m",
            "edgespec",
            *argv,
        ]  # -P: never import a stray json.py from this folder
        signal.signal(signal.SIGINT, lambda *_: None)  # the child gets Ctrl+C too, and decides
        kills = kills_for_memory()
        # what we were given open is for the child: a shell's `<(...)` is /dev/fd/63
        child = subprocess.Popen(command, env=environment, close_fds=reading is None)
        if reading is not None:
            os.close(reading)
        signal.signal(signal.SIGTERM, lambda *_: child.terminate())
        code = child.wait()
        return explain(code, noise.read_text(errors="replace") if noise.exists() else "", kills)


def fill_closed_streams() -> None:
    """Opens something in place of streams that our caller closed, so that no pipe takes their numbers.

    stdin is empty and stdout unwritable; what goes to stderr is for nobody.
    """
    fd = os.open(os.devnull, os.O_RDONLY)
    while fd <= 2:
        if fd == 2:
            writable = os.open(os.devnull, os.O_WRONLY)
            os.dup2(writable, fd)
            os.close(writable)
        os.set_inheritable(fd, True)
        fd = os.open(os.devnull, os.O_RDONLY)
    os.close(fd)
    if sys.stderr is None:  # `print` would write to stdout instead
        sys.stderr = open(2, "w", closefd=False)


def explain(code: int, noise: str, kills_before: int | None = None) -> int:
    """Returns an exit code as it is; raises EngineDiedError for a death by signal (or Windows exception)."""
    if code in (-signal.SIGINT, -signal.SIGTERM, WINDOWS_CTRL_C):
        return INTERRUPTED
    cause = cause_of_death(code, noise, kills_before)
    if cause:
        raise EngineDiedError(cause)
    return code


def kills_for_memory(events: Path = Path("/proc/vmstat")) -> int | None:
    """Returns how often the kernel has killed a process for lack of memory; None if it does not say."""
    try:
        lines = events.read_text().splitlines()
        return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), None)
    except (OSError, ValueError, IndexError):
        return None


def _why_killed(before: int | None, now: int | None) -> str:
    if before is None or now is None:
        return "the engine was killed (SIGKILL), most likely for lack of memory: use a smaller model or --ctx"
    if now > before:
        return "the system killed the engine (SIGKILL) for lack of memory: use a smaller model or --ctx"
    return (
        "the engine was killed (SIGKILL) by a person or another program, not by the kernel for lack of memory"
    )


def cause_of_death(
    code: int,
    noise: str,
    kills_before: int | None = None,
    *,
    kills: Callable[[], int | None] = kills_for_memory,
) -> str | None:
    """Returns why a child died, in a sentence; None if it ended by itself.

    noise: what C code printed. kills_before: what `kills` returned when the child was started, if known.
    """
    if code == LOST and (lost := lost_sentence(noise)):
        return lost
    windows_fault = os.name == "nt" and (code == 3 or code & 0xC0000000 == 0xC0000000)
    if code >= 0 and not windows_fault:
        return None
    if not windows_fault and -code == signal.SIGKILL:
        return _why_killed(kills_before, kills())
    known = -code in list(signal.Signals)
    name = signal.Signals(-code).name if known else f"code {code:#x}"
    if code in (-signal.SIGINT, -signal.SIGTERM):
        return f"the engine was ended by {name}"
    if full := _refusal_of_memory(noise):
        return (
            f"llama.cpp ran out of memory and aborted ({name}): {full}; put fewer layers on the graphics "
            "card with --gpu-layers, ask for a shorter --ctx, or close other programs that use it"
        )
    blame = self_test().advice or (
        "the embedded pair runs with this build, so most likely the model file is damaged or made for "
        "another version (download it again, or try another file), else this is a fault of llama.cpp's"
    )
    return f"llama.cpp aborted ({name}): {_last_words(noise)}; {blame}"


def card_was_full(code: int, noise: str) -> bool:
    """True if a child aborted because a graphics card had no memory left."""
    refused = _refusal_of_memory(noise)
    return code == -signal.SIGABRT and bool(refused) and not NOT_OF_A_CARD.search(refused)


def _refusal_of_memory(noise: str) -> str:
    """Returns the line that says so; "" if there is none."""
    return next((line.strip() for line in noise.splitlines() if NO_MEMORY.search(line)), "")


def telling(lines: Iterable[str]) -> list[str]:
    """Returns a dead child's last lines without llama.cpp's routine messages."""
    return [line for line in lines if ALARM.search(line) or not ROUTINE.match(line)]


def _last_words(noise: str) -> str:
    """Returns the telling line of what C code printed while it died."""
    lines = telling(line.strip() for line in noise.splitlines() if line.strip())
    alarms = [
        line for line in lines if "assert" in line.lower() or "what():" in line or "error" in line.lower()
    ]
    return (alarms or lines or ["it gave no reason"])[-1]


def serve_in_child(work: Callable[[], int]) -> int:
    """Runs `work` in the child, with C code's stderr redirected and the parent watched."""
    noise = os.open(os.environ[_NOISE], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    sys.stderr.flush()
    sys.stderr = open(os.dup(2), "w", buffering=1, encoding=sys.stderr.encoding, errors="replace")
    os.dup2(noise, 2)
    os.close(noise)
    for stream in (sys.stdin, sys.stdout):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # what cannot be decoded becomes a mark, not an error
    if _PARENT in os.environ:
        threading.Thread(target=_end_with_parent, args=(int(os.environ[_PARENT]),), daemon=True).start()
    return work()


def _end_with_parent(pipe: int) -> None:
    os.read(pipe, 1)  # returns when the parent's end is closed
    noise = Path(os.environ[_NOISE])
    with suppress(OSError):  # its folder goes too, which a killed parent leaves behind
        noise.unlink()
        noise.parent.rmdir()
    os._exit(1)


def reporting(work: Callable[[], int]) -> int:
    """Runs `work`; an EdgeSpecError becomes one sentence on stderr and its exit code.

    What it prints is shown on the terminal and never obeyed.
    """
    with guarded():
        return _reporting(work)


def _reporting(work: Callable[[], int]) -> int:
    try:
        code = work()
        if sys.stdout and not sys.stdout.closed:
            sys.stdout.flush()  # at exit, Python would tell of a reader that has gone
        return code
    except EdgeSpecError as error:
        print(f"edgespec: {one_line(str(error), LONGEST_SENTENCE)}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("edgespec: stopped", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output has gone, as with `| head`
        _abandon_output()
        return 0
    except OSError as error:
        what = error.filename or "the output cannot be written"
        print(f"edgespec: {what}: {error.strerror or error}", file=sys.stderr)
        _abandon_output()
        return 1


def _abandon_output() -> None:
    """Drops what is still buffered for stdout, on which Python would fail again at exit."""
    sys.stdout = open(os.devnull, "w")
