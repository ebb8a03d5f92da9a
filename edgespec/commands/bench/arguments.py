"""The flags of `edgespec bench`."""

from __future__ import annotations

import argparse

HELP = "measure what speculation is worth on this machine"
DESCRIPTION = """Measures speculation and plain decoding in turn, on the same prompts and seeds: greedy, with
the model's own sampling, and with a user's seed. --grow 0.6B-F16 shows within about a minute what it is worth
at the cost of a real model. Speed-up: the ratio of decode speeds, first token excluded, on one prompt; over
prompts the geometric mean, with a 95 % interval by Student's t on the logarithms. The other figures mean what
`edgespec run` means by them."""
LONGEST_ANSWER = 64
SECONDS = 60.0
SWEEP_TAKES = 4.0  # times as long, by default
PEER_TAKES = 2.0


def add(command: argparse.ArgumentParser) -> None:
    """Adds the flags that `bench` has beside those of the model, of sampling and of speculation."""
    group = command.add_argument_group("measuring")
    group.add_argument(
        "--prompts",
        metavar="FILE",
        help="what to ask: FILE.jsonl with one object a line, of Spec-Bench (category, turns) or with "
        "prompt, kind, raw; any other file is one prompt (default: 15 that ship, of 5 kinds)",
    )
    group.add_argument(
        "--raw", action="store_true", help="continue the prompts as they stand, without the chat template"
    )
    group.add_argument(
        "--modes",
        default="greedy,sampled,coupled",
        metavar="LIST",
        help="greedy: temperature 0. sampled: the model's sampling, block verification, fixed rng. coupled: "
        "the same with a user's seed (default: all three)",
    )
    group.add_argument("--repeat", type=int, default=1, metavar="N", help="times each prompt is taken (1)")
    group.add_argument(
        "--seconds",
        type=float,
        metavar="S",
        help=f"begin nothing that would end later ({SECONDS:.0f}; with --peer {PEER_TAKES:.0f} times that, "
        f"with --sweep {SWEEP_TAKES:.0f} times)",
    )
    group.add_argument(
        "--sweep", action="store_true", help="every fixed draft length beside the one that is chosen"
    )
    group.add_argument(
        "--peer",
        metavar="NAME=PATH",
        help="run llama-server=PATH on the same files, in turn: plain, with its default draft length, and "
        "with --sweep every fixed one",
    )
    group = command.add_argument_group("results")
    group.add_argument("--json", metavar="FILE", help="every figure, with the raw rounds")
    group.add_argument("--markdown", metavar="FILE", help="the tables in Markdown, with machine and date")
    group.add_argument(
        "--picture", metavar="FILE", help=".png or .svg; needs matplotlib: pip install 'edgespec[bench]'"
    )
