"""Files that exist whole or not at all, even if the disk is full or the program is killed."""

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO


def put_in_place(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file beside its place, then move it there. Raises OSError, and then leaves nothing behind."""
    aside = path.with_name(path.name + ".part")
    try:
        with open(aside, "wb") as file:
            try:
                write(file)
            except RuntimeError as error:  # torch's report of a full disk
                if "write" not in str(error).lower():
                    raise
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path)) from error
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except BaseException as error:
        with suppress(OSError):
            aside.unlink()
        if isinstance(error, OSError):
            error.filename = error.filename or str(path)
        raise
