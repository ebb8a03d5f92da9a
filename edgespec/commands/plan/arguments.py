"""The flags of `edgespec plan`."""

from __future__ import annotations

import argparse

HELP = "how fast pairs would run here, before anything is downloaded"
DESCRIPTION = """Says how fast pairs would run on this machine: tokens per second plain and with speculation.
What an evaluation costs depends on shapes and number formats, not on weights, so a few layers of each model
are made with random weights in a temporary file, evaluated through the real engine, and scaled to the full
depth; of the models themselves only the heads are read (under 16 MB each, kept by nobody). What was measured
is kept for this machine. Without a PAIR: those of the catalogue that fit into its memory."""


def add(command: argparse.ArgumentParser) -> None:
    """Adds all flags of `plan`."""
    command.add_argument(
        "pairs",
        nargs="*",
        metavar="PAIR",
        help="of the catalogue, an installed one, or a repository[:quant] with --draft",
    )
    command.add_argument("--target", metavar="FILE", help="a GGUF file instead of a PAIR")
    command.add_argument("--draft", metavar="FILE|REPO", help="the draft for --target or for a repository")
    command.add_argument(
        "--acceptance",
        type=float,
        metavar="A",
        help="share of guesses that are accepted, 0 to 1 (default: what is known of the pair, else assumed)",
    )
    command.add_argument("--again", action="store_true", help="measure again what is known")
    command.add_argument("--json", action="store_true", help="print one JSON object, for programs")
    group = command.add_argument_group("model")
    group.add_argument("--ctx", type=int, metavar="N", help="tokens of context, for what fits")
    group.add_argument("--kv-type", choices=("f16", "q8_0", "q4_0"), default="f16", help="target's KV cache")
    group.add_argument("--gpu-layers", type=int, default=-1, metavar="N", help="layers on the GPU (all)")
    group.add_argument("--threads", type=int, metavar="N", help="default: the physical performance cores")
