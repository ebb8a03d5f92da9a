"""Text files named by a user: of a limited size, and read without waiting for what never comes.

The name may be that of a folder, a device without an end, or a pipe into which nobody writes. For a flag, a
pipe with a writer is read to its end: a shell's `<(...)` is one. A program with a screen waits for none.
"""

import os
import select
import stat
from pathlib import Path

from edgespec.errors import SettingError

WRITER_S = 1.0  # a writer that is started beside us may open its pipe a moment later
FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


def read_text(flag: str, path: str | Path, *, most: int, errors: str = "strict") -> str:
    """Returns the text of a file that a flag names. errors: as `bytes.decode` has them.

    Raises SettingError, naming both, if it cannot be read, is not UTF-8, or has over `most` characters.
    """
    try:
        file = os.open(path, FLAGS)
        try:
            content = _content(file, 4 * most)
        finally:
            os.close(file)
        text = content.decode("utf-8-sig", errors)
    except UnicodeDecodeError:
        raise SettingError(f"{flag} {path} cannot be read: it is not text in UTF-8") from None
    except ValueError:  # a zero byte
        raise SettingError(f"{flag} {str(path)!r} is not the name of a file") from None
    except OSError as error:
        raise SettingError(f"{flag} {path} cannot be read: {error.strerror or error}") from None
    if len(content) > 4 * most or len(text) > most:
        raise SettingError(f"{flag} {path} has more than {most:,} characters: name another file")
    return text


def _content(file: int, most: int) -> bytearray:
    """Returns its content, up to one byte more than `most`. Raises OSError."""
    content = bytearray()
    pipe, waited = stat.S_ISFIFO(os.fstat(file).st_mode), False
    while len(content) <= most:
        try:
            piece = os.read(file, min(most + 1 - len(content), 2**20))
        except BlockingIOError:  # there is a writer, who has not written yet
            select.select([file], [], [])
            continue
        content += piece
        if piece:
            continue
        if content or not pipe:
            break
        if waited:
            raise OSError(0, "nothing is written into this pipe")
        waited = True
        select.select([file], [], [], WRITER_S)
    return content


def regular_text(path: str | Path, *, most: int) -> str:
    """Returns the text of a regular file of `most` bytes at most, at once.

    Raises SettingError if it cannot be used, FileNotFoundError or NotADirectoryError if it is not there.
    """
    try:
        content = regular_content(path, most=most)
        text = content.decode("utf-8-sig")
    except (FileNotFoundError, NotADirectoryError):
        raise
    except UnicodeDecodeError:
        raise SettingError(f"{path} is not a text file (UTF-8)") from None
    except (OSError, ValueError) as error:
        raise SettingError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if len(content) > most:
        raise SettingError(f"{path} is larger than {most:,} bytes")
    return text


def regular_content(path: str | Path, *, most: int) -> bytes:
    """Returns the content of a regular file, at once: up to one byte more than `most`.

    Raises OSError if it cannot be read or is something else, ValueError if no file can have such a name.
    """
    mode = os.stat(path).st_mode  # before it is opened: that can have effects on a device
    if not stat.S_ISREG(mode):
        raise OSError(0, "it is a folder" if stat.S_ISDIR(mode) else "it is not a regular file", str(path))
    with open(path, "rb", opener=lambda name, _: os.open(name, FLAGS)) as file:
        return file.read(most + 1) or b""
