"""Flags that several commands share: which model, how to sample, who guesses."""

from __future__ import annotations

import argparse

FILES = """Where no pair and no --target is named, the pair pulled last answers; where none was pulled, the
embedded one, a tiny model of Python and its documentation."""
DRAFTERS = ("auto", "model", "mtp", "eagle", "dflash", "medusa", "lookup", "lookahead", "none")
RARER = (
    ("--dynatemp-range", float, "the temperature follows the entropy, by up to so much"),
    ("--dynatemp-exponent", float, "how it follows it (1)"),
    ("--xtc-probability", float, "how often the likeliest tokens are left out"),
    ("--xtc-threshold", float, "those that are likelier than this (0.1)"),
    ("--dry-multiplier", float, "how much tokens lose that go on with a repetition"),
    ("--dry-base", float, "how much more for each token of its length (1.75)"),
    ("--dry-allowed-length", int, "repetitions up to this length are left alone (2)"),
    ("--dry-penalty-last-n", int, "how far back they are looked for (64; -1: everywhere)"),
)  # sampling that few want


def add_model(command: argparse.ArgumentParser, *, pair_flag: bool = True) -> None:
    """Adds the files and how they are loaded. pair_flag: an installed pair is named by --pair, not alone."""
    group = command.add_argument_group("model")
    which = "an installed pair (`edgespec list`), or embedded (default: the one pulled last)"
    if pair_flag:
        group.add_argument("--pair", metavar="NAME", help=which)
    else:
        group.add_argument("pair", metavar="PAIR", nargs="?", help=which)
    group.add_argument("--target", metavar="FILE", help="GGUF file that decides (or EDGESPEC_TARGET)")
    draft = group.add_mutually_exclusive_group()
    draft.add_argument("--draft", metavar="FILE", help="GGUF file that guesses (or EDGESPEC_DRAFT)")
    draft.add_argument("--no-draft", action="store_true", help="plain decoding: nothing guesses")
    group.add_argument(
        "--grow", metavar="SIZE-TYPE", help="run the embedded pair at the cost of a large one: 0.6B-F16"
    )
    group.add_argument("--ctx", type=int, metavar="N", help="tokens that prompt and answer may have together")
    group.add_argument(
        "--kv-type",
        choices=("f16", "q8_0", "q4_0"),
        default="f16",
        help="target's KV cache; below f16 the answer may change",
    )
    group.add_argument(
        "--draft-kv-type",
        choices=("f16", "q8_0", "q4_0"),
        default="f16",
        help="draft's KV cache; changes speed only",
    )
    group.add_argument(
        "--gpu-layers", type=int, default=-1, metavar="N", help="layers on the GPU (default: all)"
    )
    group.add_argument("--threads", type=int, metavar="N", help="default: the physical performance cores")
    add_machines(group)


def add_keep_texts(command: argparse._ActionsContainer) -> None:
    """Adds whether prompts and answers are kept for `edgespec distill`."""
    command.add_argument(
        "--keep-texts",
        type=int,
        default=0,
        metavar="MB",
        help="keep up to so much of prompts and answers on this machine, for `edgespec distill` (0: nothing)",
    )


def add_machines(group: argparse._ArgumentGroup) -> None:
    """Adds the other machines that layers may go to."""
    group.add_argument(
        "--rpc",
        metavar="HOST:PORT,...",
        help="put the target's layers on these machines, where `edgespec rpc` or llama.cpp's rpc-server runs",
    )
    group.add_argument(
        "--rpc-public",
        action="store_true",
        help="also on machines outside loopback and private networks; anybody on the way can read and change",
    )
    group.add_argument(
        "--tensor-split",
        metavar="N,N,...",
        help="parts of the layers: each machine of --rpc, then each graphics card (default: by free memory)",
    )


def add_conversation(command: argparse.ArgumentParser) -> None:
    """Adds what `run` and `chat` say beside the prompt."""
    command.add_argument("--system", metavar="TEXT", help="system prompt")
    command.add_argument("-q", "--quiet", action="store_true", help="no statistics")


def add_template(command: argparse.ArgumentParser) -> None:
    """Adds how a conversation is written, in place of the model's own way."""
    group = command.add_mutually_exclusive_group()
    group.add_argument(
        "--chat-template",
        metavar="NAME",
        help="a well-known chat template in place of the model's: chatml, llama3, gemma, mistral-v3, ... "
        "(a model that has none is spoken to in chatml)",
    )
    group.add_argument(
        "--chat-template-file", metavar="FILE", help="a Jinja template in place of the model's"
    )


def add_sampling(command: argparse.ArgumentParser, *, longest: int | None = 512) -> None:
    """Adds how the next token is chosen. longest: tokens of an answer; None is what the context holds."""
    group = command.add_argument_group(
        "sampling (defaults: the model's own, else 0.8, top-p 0.95, min-p 0.05)"
    )
    group.add_argument(
        "-n",
        "--max-tokens",
        type=int,
        default=longest,
        metavar="N",
        help=f"longest answer ({longest or 'what the context holds'})",
    )
    group.add_argument(
        "--temperature", "--temp", type=float, metavar="T", help="0 always takes the likeliest token"
    )
    group.add_argument("--top-k", type=int, metavar="K")
    group.add_argument("--top-p", type=float, metavar="P")
    group.add_argument("--min-p", type=float, metavar="P")
    group.add_argument("--typical-p", type=float, metavar="P")
    group.add_argument("--top-n-sigma", type=float, metavar="N")
    group.add_argument("--repeat-penalty", type=float, metavar="X")
    group.add_argument("--frequency-penalty", type=float, metavar="X")
    group.add_argument("--presence-penalty", type=float, metavar="X")
    group.add_argument("--penalty-last-n", type=int, metavar="N")
    group.add_argument(
        "--logit-bias",
        action="append",
        default=[],
        metavar="ID=BIAS",
        help="add to a token's logit; repeatable",
    )
    for name, kind, text in RARER:
        group.add_argument(name, type=kind, metavar="N" if kind is int else "X", help=text)
    group.add_argument(
        "--dry-breaker",
        action="append",
        default=[],
        metavar="TEXT",
        help="no repetition goes across it; repeatable",
    )
    group.add_argument(
        "--samplers",
        metavar="NAMES",
        help="which stages, in which order, as llama.cpp: top_k;xtc;temperature",
    )
    group.add_argument("--seed", type=int, metavar="N", help="same seed, same text, with or without a draft")
    group.add_argument(
        "--stop", action="append", default=[], metavar="TEXT", help="end before this text; repeatable"
    )


def add_speculation(command: argparse.ArgumentParser) -> None:
    """Adds who guesses, and how far."""
    group = command.add_argument_group("speculation")
    group.add_argument(
        "--draft-length", type=int, metavar="K", help="tokens guessed at a time (default: what pays)"
    )
    group.add_argument(
        "--drafter",
        choices=DRAFTERS,
        default="auto",
        help="who guesses (auto: draft model or head, lookup, recycling and lookahead compete)",
    )
