"""One box with 1 to 256 streams, on a virtual clock: when does speculation stop paying, and is it then off?

    python tests/benchmarks/scale.py [--streams 1 2 4 ...] [--tokens 96] [--python-ms 0.3] [--rows 63]

Loop, engine, drafter and the joint pace are the real ones; evaluations take no time, and move a clock by
a card's cost curve (`CARDS`). Guesses are right with a stated probability. All streams begin together; speed
is measured until the first of them ends. --rows: limit of an evaluation (`edgespec serve`: 63,
and 32 slots). --python-ms: what a round of a stream takes outside of evaluations.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from many_streams import CARDS, SIZES, Box, play

STREAMS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
ACCEPTED = {"good": 0.85, "fair": 0.7, "poor": 0.45}


def main() -> int:
    """Prints a table for each card."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, nargs="+", default=STREAMS)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--python-ms", type=float, default=0.0)
    parser.add_argument("--rows", type=int, default=SIZES[-1])
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    found: dict[str, dict[str, list[dict[str, float]]]] = {}
    python_s = arguments.python_ms / 1000
    for card, points in CARDS.items():
        print(f"\n{card}: one token {1000 * points[1]:.0f} ms, 64 {1000 * points[64]:.0f} ms")
        print("streams  plain tok/s" + "".join(f"   {name} ({a:.0%})" for name, a in ACCEPTED.items()))
        for streams in arguments.streams:
            plain = play(
                Box(points, 0.0, streams, fixed=0, python_s=python_s, n_rows=arguments.rows), arguments.tokens
            )
            line = f"{streams:7}  {plain.tok_per_s:11.0f}"
            for name, accepted in ACCEPTED.items():
                ours = play(
                    Box(points, accepted, streams, python_s=python_s, n_rows=arguments.rows), arguments.tokens
                )
                four = play(
                    Box(points, accepted, streams, fixed=4, python_s=python_s, n_rows=arguments.rows),
                    arguments.tokens,
                )
                line += f"   {ours.tok_per_s / plain.tok_per_s:4.2f} x {ours.drafted:4.2f}"
                line += f" (4: {four.tok_per_s / plain.tok_per_s:4.2f})"
                found.setdefault(card, {}).setdefault(name, []).append(
                    {**asdict(ours), "plain": plain.tok_per_s, "always_four": four.tok_per_s}
                )
            print(line, flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
