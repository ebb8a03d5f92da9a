"""Which tokens a head may guess: those that its target writes most often."""

from collections import Counter
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgespec_models.distill import heard


def most_said(shards: list[Path], count: int, vocab: int) -> NDArray[np.int64]:
    """Return the most frequent tokens, in the order of their ids; ties go to the lower id."""
    seen: Counter[int] = Counter()
    for shard in shards:
        for text in heard.read(shard):
            seen.update(text.ids[text.prompt :].tolist())
            seen.update(text.top_ids[:, 0].tolist())
    order = sorted(range(vocab), key=lambda token: (-seen[token], token))
    return np.sort(np.asarray(order[:count], np.int64))


def numbers_of(kept: NDArray[np.int64], vocab: int) -> NDArray[np.int64]:
    """Return the head's own number of every token of the target, -1 if it has none."""
    numbers = np.full(vocab, -1, np.int64)
    numbers[kept] = np.arange(len(kept))
    return numbers
