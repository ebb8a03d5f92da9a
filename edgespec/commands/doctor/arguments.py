"""The flags of `edgespec doctor`."""

from __future__ import annotations

import argparse

HELP = "look for what is wrong here: build, memory, pair, speculation, endpoint"
DESCRIPTION = """Looks at processor, graphics cards and the build of llama.cpp, threads and memory, the pair,
whether speculation is really on and pays here (a measurement of 10 seconds), running servers, and the
settings for the hub. Every problem comes with its remedy. Nothing is changed, and no network is used."""
EPILOG = """Exit code: 0 nothing is wrong, 1 something is (what, is shown), 2 a flag is wrong."""


def add(command: argparse.ArgumentParser) -> None:
    """Adds the flags that `doctor` has beside those of the model."""
    group = command.add_argument_group("doctor")
    group.add_argument("--json", action="store_true", help="print one JSON object, for programs")
    group.add_argument("--no-measure", action="store_true", help="leave out the measurement")
    group.add_argument(
        "--seconds", type=float, default=10.0, metavar="S", help="longest measurement, after loading (10)"
    )
    command.set_defaults(drafter="auto")
