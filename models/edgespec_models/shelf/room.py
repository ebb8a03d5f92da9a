"""Room on a disk, asked for before anything is written."""

import shutil
from pathlib import Path

from edgespec_models.shelf.sizes import size_text

SPARE = 64 << 20  # bytes that are left free


def no_room(folder: Path, needed: int, doing: str = "written") -> str | None:
    """Says in a clause that a folder has no room for so many bytes more; None if it has."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if not needed or needed + SPARE <= free:
        return None
    return (
        f"{size_text(needed)} are to be {doing} to {folder}, where {size_text(free)} are free and "
        f"{size_text(SPARE)} stay so"
    )
