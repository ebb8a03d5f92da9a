"""What a call would do, in lines: its arguments, and the difference if they name a file and its new text."""

import difflib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgespec.system.named_file import regular_content
from edgespec_tui.tools.loop import Proposal

PATHS = ("path", "file_path", "filepath", "filename", "file", "target_file")
TEXTS = ("content", "contents", "new_content", "file_text", "text")
OLD, NEW = ("oldText", "old_text", "old_string", "old_str"), ("newText", "new_text", "new_string", "new_str")
LARGEST = 2**20  # bytes of a file that is compared
MOST = 400  # lines


def preview(proposal: Proposal) -> list[str]:
    """Returns the lines: a difference has + and - before them. A path that is no file here is a new one."""
    arguments = dict(proposal.arguments)
    path, content = _first(arguments, PATHS), _first(arguments, TEXTS)
    lines: list[str] = []
    if path is not None and content is not None:
        lines = _difference(path, _now(path), content)
        arguments = {name: value for name, value in arguments.items() if value != content}
    edits = arguments.get("edits")
    for edit in edits if isinstance(edits, list) else [arguments]:
        old, new = (_first(edit, names) if isinstance(edit, Mapping) else None for names in (OLD, NEW))
        if old is not None and new is not None:
            lines += [f"-{line}" for line in old.splitlines()] + [f"+{line}" for line in new.splitlines()]
            arguments = {
                name: value for name, value in arguments.items() if name not in ("edits", *OLD, *NEW)
            }
    shown = json.dumps(arguments, indent=2, ensure_ascii=False).splitlines() if arguments else ["{}"]
    lines = [*shown, *lines]
    more = len(lines) - MOST
    return lines if more <= 0 else [*lines[:MOST], f"[{more:,} more lines]"]


def _first(arguments: Mapping[str, Any], names: tuple[str, ...]) -> str | None:
    return next((arguments[name] for name in names if isinstance(arguments.get(name), str)), None)


def _now(path: str) -> str:
    """Returns what a file holds now; "" if it cannot be read from here."""
    try:
        content = regular_content(Path(path).expanduser(), most=LARGEST)
    except (OSError, ValueError, RuntimeError):
        return ""
    return content.decode("utf-8", "replace") if len(content) <= LARGEST else ""


def _difference(path: str, old: str, new: str) -> list[str]:
    if len(new) > LARGEST:
        return [f"[a text of {len(new):,} characters]"]
    before, after = old.splitlines(), new.splitlines()
    return [*difflib.unified_diff(before, after, path, f"{path} (new)", lineterm="", n=2)]
