"""The file of a server that does not run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from edgespec.client.state_file import Announcement, ServerState


@contextmanager
def announced(state: ServerState) -> Iterator[Path]:
    """Yields the file of a server, and removes it at the end. Raises OSError if it cannot be written."""
    with closing(Announcement()) as announcement:
        yield announcement.write(state)
