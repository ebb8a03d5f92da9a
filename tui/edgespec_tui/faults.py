"""Bugs of our own: saved in a file for whoever fixes them, reported in one sentence to whoever met them."""

import tempfile
import traceback
from pathlib import Path

from edgespec.system import config


def told(error: BaseException, did: str) -> str:
    """Writes a bug into a file of its own; returns the sentence for the screen. did: "ended the chat"."""
    text = "".join(traceback.format_exception(error))
    folder = config.state_folder() / "faults"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", prefix="chat-", suffix=".txt", dir=folder, delete=False
        ) as file:
            file.write(text)
        where = f"details are in {Path(file.name)}"
    except OSError as problem:
        where = f"details could not be written ({problem.strerror})"
    return f"a fault of EdgeSpec's own {did} ({type(error).__name__}); {where}."
