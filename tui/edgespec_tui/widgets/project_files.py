"""The files below a folder, without those that its project ignores: found by parts of their names, or listed.

git says which they are, where there is git and a repository; elsewhere hidden folders are left out.
"""

import os
import re
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path

from textual.fuzzy import FuzzySearch

MOST_FILES = 50_000
MOST_FITTING, MOST_FOUND = 400, 20  # files that are compared, and shown
GIT = ["git", "-c", "core.fsmonitor=false"]  # which would run a program that a repository names
GIT_S = 5.0
FRESH_S = 5.0  # for how long a list is used
PASSED_OVER = frozenset({"node_modules", "__pycache__", "venv", "target", "build", "dist"})


def files_below(folder: Path, *, git: Sequence[str] = GIT) -> list[str]:
    """Returns the paths of a folder's files, relative to it, in order; at most MOST_FILES."""
    command = [*git, "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate"]
    try:
        ran = subprocess.run(
            command, cwd=folder, capture_output=True, stdin=subprocess.DEVNULL, timeout=GIT_S, check=True
        )
        return sorted(map(os.fsdecode, filter(None, ran.stdout.split(b"\0")[:MOST_FILES])))
    except (OSError, ValueError, subprocess.SubprocessError):  # no git, no repository
        return sorted(islice(_walked(folder), MOST_FILES))


def _walked(folder: Path) -> Sequence[str]:
    found: list[str] = []
    for at, folders, names in os.walk(folder):
        folders[:] = sorted(one for one in folders if one[:1] != "." and one not in PASSED_OVER)
        found += [os.path.relpath(os.path.join(at, name), folder) for name in names if name[:1] != "."]
        if len(found) >= MOST_FILES:
            break
    return found


def is_group(name: str) -> bool:
    """Returns whether a name stands for several files: a folder's, written with its slash, or a pattern's."""
    return name.endswith("/") or "*" in name


def in_group(name: str, files: Sequence[str]) -> list[str]:
    """Returns those of a folder's files that such a name stands for; a star takes slashes, too."""
    if name.endswith("/"):
        return [file for file in files if file.startswith(name.removeprefix("./"))]
    return [file for file in files if fnmatchcase(file, name)]


def named_like(typed: str, files: Sequence[str]) -> list[str]:
    """Returns files whose paths have these letters in this order, the best first; MOST_FOUND at most."""
    letters = re.compile(".*?".join(map(re.escape, typed)), re.IGNORECASE)
    fitting = list(islice(filter(letters.search, files), MOST_FITTING))
    search = FuzzySearch()
    ranked = sorted(fitting, key=lambda file: (-search.match(typed, file)[0], len(file), file))
    return ranked[:MOST_FOUND]


class ProjectFiles:
    """The files of the folder that the program runs in; listed in a thread, and again after FRESH_S."""

    def __init__(self) -> None:
        self._files: list[str] = []
        self._listed = -FRESH_S  # when, monotonic
        self._at_work: threading.Thread | None = None

    def known(self, then: Callable[[], object]) -> list[str]:
        """Returns what is known; calls `then` in another thread if a newer list differs."""
        old = time.monotonic() - self._listed > FRESH_S
        if old and (self._at_work is None or not self._at_work.is_alive()):
            self._at_work = threading.Thread(target=self._list, args=(then,), daemon=True)
            self._at_work.start()
        return self._files

    def _list(self, then: Callable[[], object]) -> None:
        try:
            found = files_below(Path.cwd())
        except OSError:  # the folder has gone
            found = []
        self._listed = time.monotonic()
        if found != self._files:
            self._files = found
            then()
