"""Delete the files of a removed pair: in the hub's cache a name and, if it was the last, its content."""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from edgespec_models.shelf.installed_pair import InstalledModel


@dataclass(frozen=True, slots=True)
class Removed:
    """What removing a pair did."""

    deleted: tuple[str, ...]
    freed: int  # bytes
    kept: Mapping[str, str]  # path -> why it stayed


def delete_files(models: Sequence[InstalledModel], used: Mapping[str, str], *, keep_files: bool) -> Removed:
    """Deletes what EdgeSpec downloaded and no other pair uses. used: path -> the pair that uses it."""
    deleted, kept, freed = [], {}, 0
    for model in models:
        for path in model.paths:
            if path in deleted:  # target and draft may be one file
                continue
            if keep_files:
                kept[path] = "as asked"
            elif path in used:
                kept[path] = f"pair {used[path]} uses it"
            elif not model.fetched:
                kept[path] = "EdgeSpec did not download it"
            elif os.path.lexists(path):
                freed += delete_file(Path(path))
                deleted.append(path)
    return Removed(tuple(deleted), freed, kept)


def delete_file(path: Path) -> int:
    """Deletes a name in a snapshot of the hub's cache, and its content if no other name points to it."""
    content = path.resolve()
    size = content.stat().st_size if content.exists() else 0
    path.unlink()
    if content == path or not content.exists():
        return size
    snapshots = content.parent.parent / "snapshots"
    if any(other.resolve() == content for other in snapshots.rglob("*") if other.is_symlink()):
        return 0
    content.unlink()
    for folder in (path.parent, *path.parent.parents):  # nothing else leaves empty snapshot folders
        if folder == snapshots or snapshots not in folder.parents:
            break
        with suppress(OSError):
            folder.rmdir()
    return size
