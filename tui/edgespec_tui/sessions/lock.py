"""Who may write a session: the first window that opened it, as long as its process lives."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout


def lock_of(folder: Path | None, id: int) -> Callable[[], None] | None:
    """Takes the right to write a session; returns what releases it, or None if another window has it.

    The lock is the operating system's, on a file of the session's own, so `kill -9` releases it too.
    folder: None where no other window can be.
    """
    if folder is None:
        return unlocked
    try:
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        lock = FileLock(folder / f"{id:015x}.lock", blocking=False, thread_local=False)
        lock.acquire()
    except Timeout:
        return None
    except OSError:  # a folder that takes no file: nobody else can write there either
        return unlocked

    def release() -> None:
        with suppress(OSError):  # the file first, while it is ours: who waits for it finds another
            Path(lock.lock_file).unlink()
        lock.release()

    return release


def unlocked() -> None:
    """Releases what needs no lock."""
