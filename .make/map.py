"""Writes docs/map.md: every module with the first sentence of its docstring; --check only looks for them."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "map.md"
SOURCES = (
    "edgespec",
    "tui/edgespec_tui",
    "models/edgespec_models",
    "models/edgespec_train",
    "tests",
    ".make",
)
BEFORE = """# The map

Every module and what it is for, from its docstring. `make map` writes this page; it is not in git.
Where to start, and the house rules, are in [CONTRIBUTING](../CONTRIBUTING.md).
"""


def sentence(path: Path) -> str:
    """Returns the first sentence of a module's docstring. Raises ValueError if there is none."""
    words = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").split("\n\n")[0].split()
    if not words:
        raise ValueError(f"{path.relative_to(ROOT)} has no docstring: say in one sentence what it is for")
    for end, word in enumerate(words, 1):
        if word[-1] in ".?!" and (end == len(words) or words[end][0].isupper() or words[end][0] == "`"):
            return " ".join(words[:end])
    return " ".join(words)


def lines(folder: Path) -> Iterator[str]:
    """Yields the map of a folder: its own line, its modules, the folders in it."""
    if not any(folder.glob("*.py")):
        return
    opening = folder / "__init__.py"
    yield f"\n## {folder.relative_to(ROOT).as_posix()}/\n"
    if opening.exists() and opening.read_text(encoding="utf-8").strip():
        yield f"{sentence(opening)}\n"
    for path in sorted(folder.glob("*.py")):
        if path != opening:
            yield f"- `{path.name}` {sentence(path)}"
    for inner in sorted(path for path in folder.iterdir() if path.is_dir()):
        yield from lines(inner)


def page() -> str:
    """Returns the whole page."""
    found = [line for source in SOURCES for line in lines(ROOT / source)]
    return BEFORE + "\n".join(found) + "\n"


def main() -> int:
    """Writes the page, or reports a module without a sentence; returns the exit code."""
    try:
        wanted = page()
    except ValueError as error:
        sys.stderr.write(f"map: {error}\n")
        return 1
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
