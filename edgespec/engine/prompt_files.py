"""Prompts kept on disk: states of earlier texts, found again after a restart by their tokens.

A text is kept in pieces, each behind the one before, so a beginning that many texts share is written once,
and a text that goes on adds what is new. Where a state cannot be cut (recurrent memory, sliding windows), or
is that of a head, it is kept whole, and its checkpoints beside it. One thread reads and writes; the engine
hands it copies, two at a time.
Files are checked before they are used, whatever ended the program that wrote them. The least recently used
go first, ends of texts before their beginnings. If something cannot be written, it is evaluated again.
"""

import os
import queue
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from edgespec.core.values import ModelName
from edgespec.engine.state_file import NotAStateError, StateFile, key_of, read_head, read_state, write_state
from edgespec.llama.saved import Saved, same_beginning
from edgespec_models.kept_file import PART, remove_left

ENDING = ".state"
PIECE = 512  # tokens: a copy of so many takes the engine some hundredths of a second
LEAST = 64  # tokens: fewer are not worth a file
AHEAD = 2  # copies that may wait to be written
KNOWN_S = 2.0  # how long the first request may wait until all files are known
FETCH_S = 10.0  # a disk that hangs is not waited for


@dataclass(slots=True, eq=False)
class Fetch:
    """What is read from the disk for one prompt, and checked."""

    wanted: Mapping[ModelName, Sequence[StateFile]]
    wanted_checkpoints: Mapping[ModelName, StateFile] = field(default_factory=dict)
    found: dict[ModelName, list[Saved]] = field(default_factory=dict)
    checkpoints: dict[ModelName, Saved] = field(default_factory=dict)
    done: threading.Event = field(default_factory=threading.Event)
    until: float = 0.0  # by time.monotonic, it is worth waiting for

    @property
    def waits(self) -> bool:
        """Returns whether it is worth waiting for."""
        return not self.done.is_set() and time.monotonic() < self.until

    def useful(self, tokens: bytes) -> int:
        """Returns how many tokens of a prompt the target need not evaluate."""
        return _spared(self.found.get("target", ()), self.checkpoints.get("target"), tokens)


@dataclass(frozen=True, slots=True)
class _Writing:
    parent: bytes
    before: int  # tokens
    saved: Saved

    @property
    def key(self) -> bytes:
        return key_of(self.parent, self.saved.tokens)


class PromptFiles:
    """The files of a folder, at most so many bytes, and the thread that reads and writes them."""

    def __init__(
        self,
        folder: Path,
        most_bytes: int,
        roots: Mapping[ModelName, bytes],
        *,
        piece: int = PIECE,
        least: int = LEAST,
        read: Callable[[StateFile], Saved] = read_state,
        fetch_s: float = FETCH_S,
    ) -> None:
        """roots: what the states of each context depend on. piece: tokens of one; least: of a file.
        read: reads a state. fetch_s: how long a request may wait for its files.

        Raises OSError if nothing can be written.
        """
        self._piece, self._least, self._read_state, self._fetch_s = piece, least, read, fetch_s
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):  # or nothing would ever be kept, and nobody know
            pass
        self._folder, self._most, self.roots = folder, most_bytes, roots
        self._lock = threading.Lock()
        self._files: dict[bytes, StateFile] = {}
        self._behind: dict[bytes, list[StateFile]] = defaultdict(list)  # by the key of what is before
        self._writing, self._refused = set[bytes](), set[bytes]()  # keys
        self._jobs: queue.SimpleQueue[_Writing | Fetch | None] = queue.SimpleQueue()
        self._known, self._began = threading.Event(), time.monotonic()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    # ---- the engine's side -------------------------------------------------------------------------------

    @property
    def full(self) -> bool:
        """Returns whether nothing more can be handed over now."""
        return len(self._writing) >= AHEAD

    @property
    def looking(self) -> bool:
        """Returns whether it is worth waiting until all files are known."""
        return not self._known.is_set() and time.monotonic() - self._began < KNOWN_S

    def wait(self, seconds: float) -> None:
        """Waits until all files are known, at most so long."""
        self._known.wait(seconds)

    def unwritten(self, root: bytes, tokens: bytes, *, parted: bool) -> tuple[bytes, int, int] | None:
        """Returns the first piece of a text that is not kept: (key before it, start, end); None without one.

        parted: it can be kept in pieces.
        """
        with self._lock:
            n, parent = len(tokens) // 4, root
            for start in range(0, n, self._piece) if parted else (0,):
                end = min(start + self._piece, n) if parted else n
                piece = tokens[4 * start : 4 * end]
                key = key_of(parent, piece)
                if end - start < self._least or key in self._refused:
                    return None
                kept = key in self._files or key in self._writing
                if not kept and not any(old.saved.serves(piece) for old in self._behind.get(parent, ())):
                    return parent, start, end
                parent = key
        return None

    def write(self, parent: bytes, before: int, saved: Saved) -> None:
        """Has a piece written, unless all of its text up to there is more than may be kept."""
        job, n = _Writing(parent, before, saved), len(saved.tokens) // 4
        if saved.n_bytes / n * (before + n) > self._most:
            self._refused.add(job.key)
        else:
            self._writing.add(job.key)
            self._jobs.put(job)

    def find(self, tokens: bytes, least: int, *, checkpoints: bool = False) -> Fetch:
        """Returns what may be read for a prompt; nothing, and done, if it spares too few tokens.

        checkpoints: they are of use.
        """
        with self._lock:
            wanted = {name: list(self._chain(root, tokens)) for name, root in self.roots.items()}
            their_checkpoints: dict[ModelName, StateFile] = {}
            for name, root in self.roots.items() if checkpoints else ():
                if not wanted[name] and (pair := self._by_checkpoint(root, tokens)):
                    wanted[name], their_checkpoints[name] = [pair[0]], pair[1]
        fetch = Fetch(wanted, their_checkpoints, until=time.monotonic() + self._fetch_s)
        target = [file.saved for file in wanted["target"]]
        checkpoint = their_checkpoints["target"].saved if "target" in their_checkpoints else None
        if _spared(target, checkpoint, tokens) < least or not self._thread.is_alive():
            fetch.done.set()
        return fetch

    def read(self, fetch: Fetch) -> None:
        """Has it read."""
        self._jobs.put(fetch)

    def close(self, seconds: float) -> None:
        """Ends the thread, which may finish what it has for so long."""
        self._jobs.put(None)
        self._thread.join(seconds)

    def _chain(self, root: bytes, tokens: bytes) -> Iterator[StateFile]:
        """Yields the files that spare most of a prompt, from its beginning on."""
        parent, rest = root, tokens
        while found := self._behind.get(parent):
            best = max(found, key=lambda file: file.saved.useful(rest))
            if not best.saved.useful(rest):
                return
            yield best
            parent, rest = best.key, rest[len(best.saved.tokens) :]

    def _by_checkpoint(self, root: bytes, tokens: bytes) -> tuple[StateFile, StateFile] | None:
        """Returns the file of a whole state and that of its checkpoint that spare most of a prompt."""
        best, most = None, 0
        known = [
            file
            for file in self._behind.get(checkpoints_of(root), ())
            if tokens[:-4].startswith(file.saved.tokens)
        ]
        for whole in self._behind.get(root, ()) if known else ():
            same = same_beginning(whole.saved.tokens, tokens[:-4])
            for file in known:
                if most < file.saved.n_tokens <= same:
                    best, most = (whole, file), file.saved.n_tokens
        return best

    # ---- the thread's side -------------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            self._look()
        finally:
            self._known.set()
        while (job := self._jobs.get()) is not None:
            if isinstance(job, Fetch):
                try:
                    self._read(job)
                finally:
                    job.done.set()
            else:
                try:
                    self._write(job)
                except (OSError, MemoryError):  # a full disk: it is not tried again
                    self._refused.add(job.key)
                finally:
                    self._writing.discard(job.key)

    def _look(self) -> None:
        """Gets to know what earlier programs have left."""
        with suppress(OSError):
            for entry in list(os.scandir(self._folder)):
                path = Path(entry.path)
                if entry.name.endswith(PART):
                    remove_left(path.parent, entry.name.partition(ENDING)[0] + ENDING)
                elif entry.name.endswith(ENDING) and entry.is_file():  # a pipe would be waited for
                    self._take(path)
        self._shrink()

    def _take(self, path: Path) -> None:
        with suppress(OSError):
            try:
                found = read_head(path)
            except NotAStateError:
                path.unlink()
                return
            if path.name == found.key.hex() + ENDING:
                self._add(found)
            else:
                path.unlink()

    def _add(self, file: StateFile) -> None:
        with self._lock:
            self._files[file.key] = file
            self._behind[file.parent].append(file)

    def _drop(self, file: StateFile) -> None:
        with self._lock:
            if self._files.pop(file.key, None):
                self._behind[file.parent].remove(file)
        with suppress(OSError):
            file.path.unlink()

    def _write(self, job: _Writing) -> None:
        path = self._folder / (job.key.hex() + ENDING)
        new = write_state(path, job.parent, job.before, job.saved)
        for old in list(self._behind.get(job.parent, ())):
            if new.saved.serves(old.saved.tokens) and old.key != new.key:
                self._drop(old)
        self._add(new)
        self._used(new)
        self._shrink()

    def _used(self, file: StateFile | None) -> None:
        """Notes that a file and all before it are in use: a beginning is not older than what is behind it."""
        now = time.time_ns()
        while file:
            with suppress(OSError):
                os.utime(file.path, ns=(now, now))
            file = self._files.get(file.parent)

    def _shrink(self) -> None:
        """Removes what is too much, whoever wrote it; ends of texts before their beginnings."""
        known = {file.path.name: file for file in self._files.values()}
        with suppress(OSError):
            found = []
            for entry in os.scandir(self._folder):
                if entry.name.endswith(ENDING):
                    state, file = entry.stat(), known.get(entry.name)
                    found.append((state.st_mtime_ns, -file.before if file else 0, entry.name, state.st_size))
            over = sum(size for *_, size in found) - self._most
            for *_, name, size in sorted(found) if over > 0 else ():
                if over > 0:
                    over -= size
                    if name in known:
                        self._drop(known[name])
                    else:
                        (self._folder / name).unlink()

    def _saved(self, file: StateFile) -> Saved | None:
        """Returns the state of a file, which is removed if it cannot be read."""
        try:
            return self._read_state(file)
        except (NotAStateError, OSError, MemoryError, ValueError):
            self._drop(file)
            return None

    def _read(self, job: Fetch) -> None:
        for name, files in job.wanted.items():
            found = job.found[name] = list[Saved]()
            while len(found) < len(files) and (saved := self._saved(files[len(found)])):
                found.append(saved)
            self._used(files[len(found) - 1] if found else None)
        for name, file in job.wanted_checkpoints.items():
            if saved := self._saved(file):
                job.checkpoints[name] = saved
                self._used(file)


def checkpoints_of(root: bytes) -> bytes:
    """Returns what comes before the checkpoints of texts that begin with a root."""
    return key_of(root, b"checkpoints")


def _spared(states: Sequence[Saved], checkpoint: Saved | None, tokens: bytes) -> int:
    """Returns how many tokens of a prompt these spare."""
    if checkpoint and states and checkpoint.useful(tokens) <= same_beginning(states[0].tokens, tokens):
        return checkpoint.useful(tokens)
    return sum(n for _, n in _matched(states, tokens))


def _matched(states: Sequence[Saved], tokens: bytes) -> Iterator[tuple[Saved, int]]:
    """Yields states, one behind the other, and how many further tokens of a prompt each spares."""
    for saved in states:
        yield saved, saved.useful(tokens)
        tokens = tokens[len(saved.tokens) :]
