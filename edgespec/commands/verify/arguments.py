"""The flags of `edgespec verify`."""

from __future__ import annotations

import argparse

HELP = "show on your own pair that the draft changes nothing"
DESCRIPTION = """Compares greedy texts and texts of a seed, with a draft and without, token by token; tests
sampled tokens against the model's own distribution (chi-square, false alarms in 1 of 10,000 runs); compares
batches with single tokens. Ends with a verdict. Exit code 0: lossless. 1: not, or an error. 3: not everything
could be checked."""
SECONDS = 120.0


def add(command: argparse.ArgumentParser) -> None:
    """Adds the flags that `verify` has beside those of the model."""
    command.set_defaults(drafter="auto", draft_length=None)
    group = command.add_argument_group("verifying")
    group.add_argument(
        "--seconds",
        type=float,
        default=SECONDS,
        metavar="S",
        help=f"time for everything, at most ({SECONDS:.0f})",
    )
    group.add_argument(
        "--json", nargs="?", const="-", metavar="FILE", help="write every figure to FILE; alone: print it"
    )
    group.add_argument("--rng-seed", type=int, metavar="N", help="draw the samples of an earlier run again")
