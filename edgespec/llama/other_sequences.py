"""How much of a cache other sequences hold while one is evaluated: seen in use, kept for the next start.

Without flash attention the cells of others cost as much as a sequence's own. One agent behind 4 slots hardly
has company; a coordinator with three sub-agents pays four times for attention.
"""

import contextlib
import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from edgespec.llama.sequence import HeldSequence
from edgespec.system.config import cache_folder
from edgespec_models.checked_value import kept_value
from edgespec_models.kept_file import write_whole

ASSUMED = 0.5  # cells that each other sequence holds for each of one's own, before anything is seen
WEIGHT = 4e6  # of that: tokens times the cells behind which they are evaluated
FADE = 0.5  # of what was seen before, with each start


class OtherSequences:
    """What was seen in one context: sums over evaluated tokens, of cells."""

    def __init__(self) -> None:
        self.own = self.others = 0.0

    def note(self, sequences: Sequence[HeldSequence], evaluated: Iterable[tuple[int, int]]) -> None:
        """Counts an evaluation. evaluated: the number of each sequence, and how many tokens of it."""
        cells = [seq.held - seq.shared for seq in sequences]
        everything = sum(cells)
        for s, n in evaluated:
            self.own += n * sequences[s].held
            self.others += n * (everything - cells[s])

    def keep(self, model: Path, n_seq: int) -> None:
        """Adds what was seen to what is kept for a model; a folder that cannot be written is no error."""
        if n_seq == 1 or not self.own:
            return
        own, others = _kept(model, n_seq)
        seen = {"own": FADE * own + self.own, "others": FADE * others + self.others}
        with contextlib.suppress(OSError):
            write_whole(_path(model, n_seq), json.dumps(seen), sync=False)


def others_in_use(model: Path, n_seq: int) -> float:
    """Returns how many cells each other sequence holds, on average, for each of the one that is evaluated."""
    if n_seq == 1:
        return 0.0
    own, others = _kept(model, n_seq)
    return (ASSUMED * WEIGHT + others / (n_seq - 1)) / (WEIGHT + own)


def _kept(model: Path, n_seq: int) -> tuple[float, float]:
    """Returns what is kept of a model's own cells, and of others'; zeros if nothing that makes sense."""
    held = kept_value(dict[str, float], _path(model, n_seq)) or {}
    own, others = held.get("own", 0.0), held.get("others", 0.0)
    return (own, others) if min(own, others) >= 0 else (0.0, 0.0)


def _path(model: Path, n_seq: int) -> Path:
    key = hashlib.sha256(f"{model.resolve()} {n_seq}".encode()).hexdigest()[:20]
    return cache_folder() / "attention" / f"others-{key}.json"
