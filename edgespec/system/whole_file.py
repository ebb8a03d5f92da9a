"""Small files that are kept between starts: written whole or not at all, whoever else writes them."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Replaces a file; makes its folder. Raises OSError if that fails."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, aside = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".part")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(aside, path)
    except OSError:
        with suppress(OSError):
            os.unlink(aside)
        raise
