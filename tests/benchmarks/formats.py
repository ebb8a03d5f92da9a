"""What rows cost by number format: seconds of an evaluation of n rows, all with outputs, in those of one.

    python tests/benchmarks/formats.py FOLDER [--sizes 0.6B-Q8_0 0.6B-Q4_K_M ...] [--turns 7]

The embedded target, grown and converted (`pairs.py`). Sizes are timed in turn, each behind one of the same
size, which builds its graph; the least of all turns counts, since other programs only ever add. The second
line of each is what `edgespec/core/pace/row_costs.py` holds. `bars.py` takes the same sizes, and
compares what is chosen with plain decoding, fixed lengths and llama-server.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np
from pairs import target_file

from edgespec.core.loop import Want
from edgespec.engine.pair import Pair
from edgespec.llama.devices import cpu_features
from edgespec.pairs.settings import PairSettings

FORMATS = ("F16", "BF16", "Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "IQ4_XS", "Q4_0")
ROWS = (*range(1, 17), 24, 32, 48)
BEFORE = 64  # tokens of context


def seconds_by_rows(pair: Pair, turns: int) -> dict[int, float]:
    """Returns the seconds of an evaluation by its rows."""
    target = pair.contexts["target"]
    found = dict.fromkeys(ROWS, float("inf"))
    text = np.append(np.arange(2, BEFORE + 2, dtype=np.int32), np.int32(0))
    for _ in range(turns):
        for n in ROWS:
            tail = tuple(7919 * i % pair.target.n_vocab for i in range(1, n))
            for _ in range(2):
                before = target.seconds - target.tried
                target.score([Want(text, tail, n)])
                seconds = target.seconds - target.tried - before
            found[n] = min(found[n], seconds)
    target.clear(0)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sizes", nargs="+", default=[f"0.6B-{name}" for name in FORMATS])
    parser.add_argument("--turns", type=int, default=7)
    arguments = parser.parse_args()
    print("processor features:", " ".join(cpu_features()))
    for size in arguments.sizes:
        target = target_file(arguments.folder, size)
        with Pair(target, None, PairSettings(n_ctx=1024, remember=False)) as pair:
            found = seconds_by_rows(pair, arguments.turns)
        print(size, "ms:", " ".join(f"{n}:{1000 * seconds:.1f}" for n, seconds in found.items()))
        print(size, "in tokens:", " ".join(f"{found[n] / found[1]:.2f}" for n in ROWS), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
