"""What the pool of earlier texts costs: noting a token, looking one place up, memory.

    python tests/benchmarks/text_pool.py [--tokens 10000000] [--places 4194304]

Texts are random tokens of a vocabulary of 32,000, half of each a copy of an earlier one, as texts that repeat
are; they are noted as the loop notes them, AT_ONCE at a time. Lookups are of places in such texts.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import psutil

from edgespec.core.drafters.history import AT_ONCE, LONG, PLACES, TextPool

N_VOCAB, LENGTH = 32_000, 2048


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tokens", type=int, default=10_000_000)
    parser.add_argument("--places", type=int, default=PLACES)
    parser.add_argument("--lookups", type=int, default=20_000)
    chosen = parser.parse_args()
    before = psutil.Process().memory_info().rss
    pool, rng = TextPool(chosen.places), np.random.default_rng(1)
    earlier, noting, n = rng.integers(0, N_VOCAB, LENGTH).astype(np.int32), 0.0, 0
    text = earlier
    while n < chosen.tokens:
        text = np.append(earlier[: LENGTH // 2], rng.integers(0, N_VOCAB, LENGTH // 2)).astype(np.int32)
        writer = object()
        for end in range(AT_ONCE, LENGTH + 1, AT_ONCE):
            part = text[max(0, end - AT_ONCE - LONG) : end]
            began = time.perf_counter()
            pool.add(part, AT_ONCE, writer)
            noting += time.perf_counter() - began
        earlier, n = rng.permutation(text) if n % (64 * LENGTH) == 0 else text, n + LENGTH
    took, found = [], 0
    for end in rng.integers(LONG, LENGTH // 2, chosen.lookups).tolist():
        began = time.perf_counter()
        found += bool(pool.after(text[:end], 48)[1])
        took.append(time.perf_counter() - began)
    size = (psutil.Process().memory_info().rss - before) / 1e6
    middle, late = np.percentile(np.array(took) * 1e6, (50, 99))
    print(f"{n:,} tokens noted, {noting / n * 1e6:.2f} us each; {size:.0f} MB; {found / len(took):.0%} found")
    print(f"a lookup takes {middle:.1f} us, at the 99th percentile {late:.1f}")


if __name__ == "__main__":
    main()
