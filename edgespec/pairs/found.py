"""The best pair among the models that other programs have downloaded: looked for in a child, within limits.

A folder may be huge or on a disk that hangs, a file may be damaged. So a child of low priority looks, for so
long and through so many files; whatever goes wrong there, nothing was found.
"""

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edgespec.errors import EdgeSpecError, SettingError
from edgespec.pairs.store import store_errors
from edgespec.system.json_child import JsonChild
from edgespec_models.shelf.store import InstalledModel, InstalledPair, Store

LONGEST_S = 15.0
MOST_FILES = 48  # models whose headers are read
CHILD = "edgespec.pairs.found_child"
OVERHEAD = 0.7e9  # bytes: caches of both models at a usual context, and what evaluating takes
EASY = 0.7  # share of the memory


@dataclass(frozen=True, slots=True)
class Found:
    """A target that is here and, if one fits it, a draft."""

    program: str  # whose the target is
    label: str  # that program's name for it
    target: InstalledModel
    draft_label: str = ""
    draft: InstalledModel | None = None

    @property
    def size(self) -> int:
        """Bytes of both."""
        return self.target.size + (self.draft.size if self.draft else 0)

    def installed(self, store: Store) -> InstalledPair:
        """Installs it, where its files are. Raises SettingError."""
        pair = InstalledPair(name_of(self.label), self.target, self.draft, "imported", time.time())
        with store_errors():
            store.add(pair)
        return pair


def name_of(label: str) -> str:
    """Makes a pair's name from a file's name or a label. Raises SettingError."""
    stem = label.rpartition("/")[2].lower().removesuffix(".gguf")
    name = re.sub(r"[^a-z0-9._-]+", "-", stem).strip("._-")[:64]
    if not name:
        raise SettingError(f"no name can be derived from {label!r}: give one with --name")
    return name


def best_found(memory: int, *, longest_s: float = LONGEST_S, child: str = CHILD) -> Found | None:
    """Returns the best pair that fits into so many bytes of memory; None if there is none, or too late."""
    try:
        with JsonChild(child, longest_s=longest_s) as search:
            answer = search.ask({"most": MOST_FILES})
        return best([_found(one) for one in answer["found"]], memory)
    except (EdgeSpecError, OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def best(found: list[Found], memory: int) -> Found | None:
    """Returns the largest pair that fits well; if none does, the largest target alone."""
    fitting = [one for one in found if one.size + OVERHEAD <= EASY * memory]
    return max(fitting, key=lambda one: (one.draft is not None, one.target.size), default=None)


def _found(described: Mapping[str, Any]) -> Found:
    target, draft = (
        model and InstalledModel(tuple(map(str, model["paths"])), int(model["size"]))
        for model in (described["target"], described["draft"])
    )
    labels = (str(described[name] or "") for name in ("program", "label", "draft_label"))
    program, label, draft_label = labels
    return Found(program, label, target, draft_label, draft)
