"""The flags of `edgespec pull`."""

from __future__ import annotations

import argparse

HELP = "download a pair that fits"
DESCRIPTION = """Downloads a target and its draft together, by the name of a pair of the catalogue or by
repository, and installs them under a name. Before that it reads the first megabytes of both and says whether
they fit. A repository alone: it says which drafts would fit, and why. With nothing at all it lists the
catalogue. What was interrupted goes on where it stopped."""
EPILOG = """HF_TOKEN or `hf auth login` give access to gated and private repositories, HF_ENDPOINT names a
mirror, HF_HUB_CACHE where files go, and HF_HUB_OFFLINE=1 asks nobody. Files lie in the hub's own cache, which
other programs use too. HF_HUB_DISABLE_XET=1 downloads by plain ranges, which resume to the megabyte."""


def add(command: argparse.ArgumentParser) -> None:
    """Adds the flags."""
    command.add_argument(
        "what",
        nargs="?",
        metavar="NAME|REPO[:QUANT]",
        help="a pair of the catalogue, or the target's repository, as ggml-org/Qwen3-8B-GGUF:Q4_K_M",
    )
    draft = command.add_mutually_exclusive_group()
    draft.add_argument("--draft", metavar="REPO[:QUANT]", help="the draft's repository")
    draft.add_argument("--target-only", action="store_true", help="no draft: its text alone guesses")
    command.add_argument("--name", metavar="NAME", help="what to call the pair (default: as the target)")
    command.add_argument(
        "--check",
        action="store_true",
        help="say what would be downloaded and whether it fits; no more",
    )
    command.add_argument(
        "-y", "--yes", action="store_true", help="ask nothing: take the first draft, fit or not"
    )
