"""Who may write a session: the first window that opened it, as long as its process lives.

The lock is the operating system's, on a file of the session's own, so `kill -9` releases it too.
"""

from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout


class SessionLocks:
    """The sessions that this process may write. folder: None if sessions are kept in memory alone."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._held: dict[int, FileLock] = {}

    def take(self, id: int) -> bool:
        """Takes a session's lock; returns False if another window has it."""
        if self._folder is None or id in self._held:
            return True
        try:
            self._folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._folder.mkdir(mode=0o700, exist_ok=True)
            lock = FileLock(self._folder / f"{id:015x}.lock", blocking=False, thread_local=False)
            lock.acquire()
        except Timeout:
            return False
        except OSError:  # a folder that takes no file: nobody else can write there either
            return True
        self._held[id] = lock
        return True

    def give_back(self, id: int) -> None:
        """Releases a session, and leaves no file."""
        lock = self._held.pop(id, None)
        if lock is not None:
            with suppress(OSError):  # the file first, while it is ours: who waits for it finds another
                Path(lock.lock_file).unlink()
            lock.release()

    def give_all_back(self) -> None:
        for id in list(self._held):
            self.give_back(id)
