"""Flags that several commands share: which model, how to sample, who guesses."""

import argparse
from typing import get_args

from edgespec.core.values import DRAFTERS, FREE
from edgespec.pairs.rope import Scaling
from edgespec.pairs.settings import KvType
from edgespec.sampling.settings import NUMBERS

ROPE = (
    ("--rope-scale", float, "read N times as far as the model was trained for"),
    ("--rope-freq-base", float, "base of the frequencies (default: what the file says)"),
    ("--rope-freq-scale", float, "the same as --rope-scale 1/N"),
    ("--yarn-orig-ctx", int, "YaRN: what the model was trained for (default: what the file says)"),
    ("--yarn-ext-factor", float, "YaRN: how much of high frequencies stays as it is; 0 scales all alike"),
    ("--yarn-attn-factor", float, "YaRN: factor on the attention's magnitude"),
    ("--yarn-beta-slow", float, "YaRN: rotations over the trained length below which all is scaled (1)"),
    ("--yarn-beta-fast", float, "YaRN: rotations over the trained length above which nothing is (32)"),
)


def add_model(command: argparse.ArgumentParser, *, pair_flag: bool = True, media: bool = False) -> None:
    """Adds the files and how they are loaded. pair_flag: an installed pair is named by --pair, not alone.

    media: what is asked may have pictures.
    """
    group = command.add_argument_group("model")
    which = "an installed pair (see `edgespec list`), or embedded (default: the pair pulled last)"
    if pair_flag:
        group.add_argument("--pair", metavar="NAME", help=which)
    else:
        group.add_argument("pair", metavar="PAIR", nargs="?", help=which)
    group.add_argument(
        "--target",
        metavar="FILE",
        help="GGUF file of the target, the model that decides (or EDGESPEC_TARGET)",
    )
    draft = group.add_mutually_exclusive_group()
    draft.add_argument(
        "--draft", metavar="FILE", help="GGUF file of the draft, the model that guesses (or EDGESPEC_DRAFT)"
    )
    draft.add_argument("--no-draft", action="store_true", help="plain decoding, without guesses")
    if media:
        _add_projector(group)
    group.add_argument(
        "--grow",
        metavar="SIZE-TYPE",
        help="make the embedded pair as slow as a large one, with the same output: 0.6B-F16",
    )
    _add_loading(group)
    add_placement(command)
    add_machines(group)
    add_rope(command)


def _add_loading(group: argparse._ArgumentGroup) -> None:
    """Adds how the files are loaded."""
    group.add_argument(
        "--ctx", type=int, metavar="N", help="context length: tokens of prompt and answer together"
    )
    group.add_argument(
        "--kv-type",
        choices=get_args(KvType),
        default="f16",
        help="format of the target's KV cache; below f16 the answer may change",
    )
    group.add_argument(
        "--draft-kv-type",
        choices=get_args(KvType),
        default="f16",
        help="format of the draft's KV cache; affects speed only",
    )
    group.add_argument(
        "--gpu-layers", type=int, default=-1, metavar="N", help="layers on the GPU (default: as many as fit)"
    )
    group.add_argument(
        "--override-kv",
        action="append",
        default=[],
        metavar="KEY=TYPE:VALUE",
        help="metadata of the target that llama.cpp reads instead of the file's, as in "
        "qwen3moe.expert_used_count=int:4; repeatable",
    )
    group.add_argument(
        "--lora",
        action="append",
        default=[],
        metavar="FILE[:SCALE]",
        help="GGUF file of a LoRA adapter for the target; repeatable",
    )
    group.add_argument(
        "--threads", type=int, metavar="N", help="threads (default: one for each physical performance core)"
    )


def _add_projector(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--mmproj",
        metavar="FILE",
        default="auto",
        help="the projector with which the target reads pictures and sounds; none: text only (auto: a file "
        "mmproj*.gguf beside the target)",
    )


def add_rope(command: argparse.ArgumentParser) -> None:
    """Adds how positions are scaled, under llama.cpp's names."""
    group = command.add_argument_group("contexts longer than a model was trained for")
    group.add_argument(
        "--rope-scaling",
        choices=get_args(Scaling),
        help="how positions are scaled (default: what the file says; linear if only a scale is given)",
    )
    for name, kind, text in ROPE:
        group.add_argument(name, type=kind, metavar="N", help=text)


def add_keep_texts(command: argparse._ActionsContainer) -> None:
    """Adds whether prompts and answers are kept for `edgespec distill`."""
    command.add_argument(
        "--keep-texts",
        type=int,
        default=0,
        metavar="MB",
        help="keep up to this much of your prompts and answers on this machine, for `edgespec "
        "distill` (0: nothing)",
    )


def add_placement(command: argparse.ArgumentParser) -> None:
    """Adds where tensors lie that do not follow their layers, under llama.cpp's names."""
    group = command.add_argument_group("models larger than the graphics card")
    for of, model in (("", "target"), ("-draft", "draft")):
        group.add_argument(
            f"--cpu-moe{of}", action="store_true", help=f"keep all experts of the {model} in main memory"
        )
        group.add_argument(
            f"--n-cpu-moe{of}",
            type=int,
            metavar="N",
            help=f"keep the experts of the {model}'s first N layers in main memory"
            + (" (default: as few as needed)" if not of else ""),
        )
        group.add_argument(
            f"--override-tensor{of}",
            *([] if of else ["-ot"]),
            action="append",
            default=[],
            metavar="PATTERN=PLACE",
            help=f"put the {model}'s tensors whose names match a regular expression on a device, or on CPU, "
            "main memory; repeatable",
        )


def add_machines(group: argparse._ArgumentGroup) -> None:
    """Adds the other machines that layers may go to."""
    group.add_argument(
        "--rpc",
        metavar="HOST:PORT,...",
        help="put layers of the target on these machines, which run `edgespec rpc` or llama.cpp's rpc-server",
    )
    group.add_argument(
        "--rpc-public",
        action="store_true",
        help="allow machines outside private networks; anyone on the way can read and change the traffic",
    )
    group.add_argument(
        "--tensor-split",
        metavar="N,N,...",
        help="share of the layers for each --rpc machine, then each graphics card (default: by free memory)",
    )


def add_conversation(command: argparse.ArgumentParser) -> None:
    """Adds what `run` and `chat` take beside the prompt."""
    command.add_argument("--system", metavar="TEXT", help="system prompt")
    command.add_argument("-q", "--quiet", action="store_true", help="print no statistics")


def add_template(command: argparse.ArgumentParser) -> None:
    """Adds how a conversation is written, instead of the model's own way."""
    group = command.add_mutually_exclusive_group()
    group.add_argument(
        "--chat-template",
        metavar="NAME",
        help="a well-known chat template instead of the model's own: chatml, llama3, gemma, mistral-v3, ... "
        "(a model without one gets chatml)",
    )
    group.add_argument(
        "--chat-template-file", metavar="FILE", help="a Jinja template instead of the model's own"
    )


def add_sampling(command: argparse.ArgumentParser, *, longest: int | None = 512) -> None:
    """Adds how the next token is chosen. longest: tokens of an answer; None is what the context holds."""
    group = command.add_argument_group(
        "sampling (defaults: what the model file recommends, else temperature 0.8, top-p 0.95, min-p 0.05)"
    )
    group.add_argument(
        "-n",
        "--max-tokens",
        type=int,
        default=longest,
        metavar="N",
        help=f"longest answer, in tokens ({longest or 'as long as the context allows'})",
    )
    for name, number in NUMBERS.items():
        flags = ["--" + name.replace("_", "-"), *["--temp"] * (name == "temperature")]
        default = "" if number.off == number.default else f" (default {number.default:g})"
        metavar = "N" if number.kind is int else "X"
        group.add_argument(*flags, type=number.kind, metavar=metavar, help=number.help + default)
    group.add_argument(
        "--logit-bias",
        action="append",
        default=[],
        metavar="ID=BIAS",
        help="add BIAS to a token's logit; repeatable",
    )
    group.add_argument(
        "--dry-breaker",
        action="append",
        default=[],
        metavar="TEXT",
        help="a repetition never extends across this text; repeatable",
    )
    group.add_argument(
        "--samplers",
        metavar="NAMES",
        help="sampling stages and their order, as in llama.cpp: top_k;xtc;temperature",
    )
    group.add_argument(
        "--seed", type=int, metavar="N", help="the same seed gives the same text, with or without a draft"
    )
    group.add_argument(
        "--stop", action="append", default=[], metavar="TEXT", help="stop before this text; repeatable"
    )


def add_speculation(command: argparse.ArgumentParser) -> None:
    """Adds who guesses, and how far."""
    group = command.add_argument_group("speculation")
    group.add_argument(
        "--draft-length",
        type=int,
        metavar="K",
        help="tokens guessed per round (default: whatever is fastest, chosen each round)",
    )
    group.add_argument(
        "--drafter",
        choices=DRAFTERS,
        default="auto",
        help=f"what makes the guesses (auto: draft model or head, {', '.join(FREE)} compete)",
    )
