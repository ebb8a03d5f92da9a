"""Files that are kept: written whole or not at all, whoever else writes them and whatever ends the program.

What is written goes to a file next to the place, which takes the name once its bytes are on the disk: a
finished name never stands for what a power cut could still lose.
"""

import glob
import itertools
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PART = ".part"  # how the name of an unfinished file ends
WEEK = 7 * 24 * 3600.0  # seconds
_numbers = itertools.count()


@contextmanager
def replacing(path: Path, *, private: bool = False, sync: bool = True) -> Iterator[Path]:
    """Yields a file next to a place, to write to; it takes the place at the end, and is gone if that fails.

    private: nobody else may read it. sync: wait until the disk has it, which caches need not.
    An OSError that passes names the place, if it names no file.
    """
    aside = path.with_name(f"{path.name}.{os.getpid()}-{next(_numbers)}{PART}")
    try:
        os.close(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if private else 0o666))
        yield aside
        if sync:
            with aside.open("rb+") as file:
                os.fsync(file.fileno())
        os.replace(aside, path)
    except BaseException as error:
        with suppress(OSError):
            aside.unlink()
        if isinstance(error, OSError) and (not error.filename or error.filename == str(aside)):
            error.filename = str(path)
        raise


def remove_left(folder: Path, name: str = "") -> None:
    """Removes what programs that were killed have left unfinished in a folder: of one file, or of all."""
    for left in folder.glob(f"{glob.escape(name) or '*'}.*{PART}"):
        number = left.name.rsplit(".", 2)[1].partition("-")[0]
        with suppress(OSError):
            if number.isdecimal() and not _writes(int(number), left):
                left.unlink()


def _writes(number: int, file: Path) -> bool:
    """True if the process of that number runs, and did not start after the file. Raises OSError."""
    import psutil  # slow to import

    try:
        process = psutil.Process(number)
        return process.status() != psutil.STATUS_ZOMBIE and process.create_time() <= file.stat().st_mtime + 1
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:
        return True


def write_whole(path: Path, text: str, *, private: bool = True, sync: bool = True) -> None:
    """Replaces a text file; makes its folder. Raises OSError if that fails."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path, private=private, sync=sync) as aside:
        aside.write_text(text, encoding="utf-8")


def copy_whole(source: Path, path: Path) -> None:
    """Replaces a file by a copy of another. Raises OSError if that fails."""
    with replacing(path) as aside:
        shutil.copyfile(source, aside)


def is_recent(path: Path) -> bool:
    """Returns whether what a file says of this machine was measured within a week: machines change."""
    with suppress(OSError):
        return 0 <= time.time() - path.stat().st_mtime < WEEK
    return False
