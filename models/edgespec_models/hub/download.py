"""Downloads files in a child process, with progress, and cancelling at any moment.

Invariant: whoever stops looking, the child ends (its stdin closes). Files that are whole are kept; of others
nothing is.
"""

import json
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from edgespec_models.hub.errors import AGAIN, HubError
from edgespec_models.hub.fetch import free_of_leftovers
from edgespec_models.hub.hub import Hub, HubFile
from edgespec_models.shelf.sizes import seconds_text, size_text

SPEED_OVER_S = 5.0
Phase = Literal["queued", "waiting", "downloading", "verifying", "done"]
"""waiting: another program downloads the same file"""


@dataclass(frozen=True, slots=True)
class FileProgress:
    """Progress of one file."""

    name: str
    size: int | None  # bytes; None if the hub did not say
    phase: Phase
    done: int  # bytes downloaded, or verified


@dataclass(frozen=True, slots=True)
class Downloaded:
    """Progress of a download."""

    files: tuple[FileProgress, ...]
    bytes_per_s: float | None  # over the last seconds; None if nothing came yet
    seconds_left: float | None  # of downloading; None if unknown
    asked_to_wait: float | None = None  # seconds, by the hub: too many requests

    @property
    def done(self) -> int:
        """Bytes that are on this machine."""
        return sum(_there(file) for file in self.files)

    @property
    def total(self) -> int:
        """Bytes in all, as far as known."""
        return sum(file.size or 0 for file in self.files)

    @property
    def text(self) -> str:
        """How far it is, or what it waits for."""
        if self.asked_to_wait is not None:
            return f"the hub has had too many requests and asks to wait {seconds_text(self.asked_to_wait)}"
        first = {file.phase: file for file in reversed(self.files)}
        if "downloading" not in first:
            if file := first.get("verifying"):
                return f"verifying {file.name}: {file.done / max(file.size or file.done, 1):.0%}"
            if file := first.get("waiting"):
                return f"waiting for {file.name}, which another program downloads"
        share = self.done / self.total if self.total else 0.0
        text = f"downloading {share:.0%}: {size_text(self.done)} of {size_text(self.total)}"
        if self.bytes_per_s:
            text += f", {size_text(self.bytes_per_s)}/s"
        return text if self.seconds_left is None else f"{text}, {seconds_text(self.seconds_left)} left"


OnProgress = Callable[[Downloaded], None]


class Cancelled(Exception):
    """The download was cancelled."""


class Download:
    """A running download; `run` waits for it. `cancel`, from any thread, ends it at once."""

    def __init__(self, hub: Hub, files: Sequence[HubFile], *, verified: Sequence[bool]) -> None:
        """verified: for each file, whether its content was compared with the hub's hash before."""
        self._hub, self._files = hub, tuple(files)
        self.finished: dict[int, Path] = {}  # files that are whole, by their number
        self._cancelled = threading.Event()
        self._asked = {
            "endpoint": hub.endpoint,
            "token": hub.token,
            "cache": str(hub.cache),
            "offline": hub.offline,
            "files": [
                {"file": asdict(file), "verified": known} for file, known in zip(files, verified, strict=True)
            ],
        }
        self._lock = threading.Lock()
        self._child: subprocess.Popen[str] | None = None

    def cancel(self) -> None:
        """Ends the download; `run` then raises Cancelled."""
        self._cancelled.set()
        with self._lock:
            if self._child:
                self._child.kill()

    def run(self, on_progress: OnProgress) -> tuple[Path, ...]:
        """Downloads; returns the files' places, in order. Raises HubError, and Cancelled."""
        with self._lock:
            if self._cancelled.is_set():
                raise Cancelled
            self._child = child = subprocess.Popen(
                [sys.executable, "-P", "-m", "edgespec_models.hub.fetch_worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,  # Ctrl+C is for the caller, who decides what it means
            )
        complaints: deque[str] = deque(maxlen=20)
        reader = threading.Thread(target=_keep_lines, args=(child.stderr, complaints), daemon=True)
        reader.start()
        try:
            return self._follow(child, on_progress, complaints)
        finally:
            child.kill()
            child.wait()
            reader.join()
            for i, file in enumerate(self._files):
                if i not in self.finished and file.sha256:
                    free_of_leftovers(self._hub, file.repo, file.sha256)
            for stream in (child.stdin, child.stdout, child.stderr):
                if stream:
                    with suppress(BrokenPipeError):
                        stream.close()

    def _follow(
        self, child: subprocess.Popen[str], on_progress: OnProgress, complaints: deque[str]
    ) -> tuple[Path, ...]:
        assert child.stdin and child.stdout
        meter = _Meter(self._files)
        paths = self.finished
        try:
            child.stdin.write(json.dumps(self._asked) + "\n")
            child.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended; the reason is found below
        for line in child.stdout:
            message: dict[str, Any] = json.loads(line)
            if "error" in message:
                raise HubError(message["error"])
            if "wait" in message:
                on_progress(meter.waiting(message["wait"]))
                continue
            if "path" in message:
                paths[message["file"]] = Path(message["path"])
            on_progress(meter.note(message["file"], message["phase"], message["done"]))
        child.wait()
        if self._cancelled.is_set():
            raise Cancelled
        if len(paths) < len(self._files):
            last = complaints[-1].strip() if complaints else f"exit code {child.returncode}"
            raise HubError(f"the process that downloads has ended ({last}): {AGAIN}")
        return tuple(paths[i] for i in range(len(self._files)))


def _keep_lines(stream: Any, lines: deque[str]) -> None:
    for line in stream:
        if line.strip():
            lines.append(line)


def _there(file: FileProgress) -> int:
    """Bytes of a file that are on this machine, whatever is happening to them."""
    if file.phase == "downloading":
        return file.done
    return file.size or 0 if file.phase in ("verifying", "done") else 0


class _Meter:
    """Messages of the child -> progress, with the speed of the last seconds."""

    def __init__(self, files: Sequence[HubFile]) -> None:
        self.files = [FileProgress(file.name, file.size, "queued", 0) for file in files]
        self.seen: deque[tuple[float, int]] = deque()
        self.arrived = 0

    def waiting(self, seconds: float) -> Downloaded:
        """Returns the progress while the hub makes everybody wait."""
        return Downloaded(tuple(self.files), None, None, seconds)

    def note(self, i: int, phase: Phase, done: int) -> Downloaded:
        before = self.files[i]
        if before.phase == "downloading" and phase == "downloading":
            self.arrived += max(done - before.done, 0)  # not what an earlier download left
        self.files[i] = replace(before, phase=phase, done=done)
        now = time.monotonic()
        self.seen.append((now, self.arrived))
        while now - self.seen[0][0] > SPEED_OVER_S and len(self.seen) > 2:
            self.seen.popleft()
        (since, then), (_, bytes_now) = self.seen[0], self.seen[-1]
        speed = (bytes_now - then) / (now - since) if now > since and bytes_now > then else None
        files = tuple(self.files)
        known = all(file.size is not None for file in files)
        left = sum((file.size or 0) - _there(file) for file in files)
        return Downloaded(files, speed, left / speed if speed and known else None)
