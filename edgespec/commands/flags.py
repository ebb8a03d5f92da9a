"""Flags that several commands share: which model, how to sample, who guesses."""

import argparse
from typing import get_args

from edgespec.commands.flag_table import THREADS, add_flags, add_for_engine
from edgespec.core.values import DRAFTERS, FREE
from edgespec.pairs.rope import Scaling
from edgespec.pairs.settings import KvType
from edgespec.sampling.settings import NUMBERS

ROPE = {
    f"--rope-scaling {'|'.join(get_args(Scaling))}|": "how positions are scaled (default: what the file "
    "says; linear if only a scale is given)",
    "--rope-scale X": "read X times as far as the model was trained for",
    "--rope-freq-base X": "base of the frequencies (default: what the file says)",
    "--rope-freq-scale X": "the same as --rope-scale 1/X",
    "--yarn-orig-ctx N": "YaRN: what the model was trained for (default: what the file says)",
    "--yarn-ext-factor X": "YaRN: how much of high frequencies stays as it is; 0 scales all alike",
    "--yarn-attn-factor X": "YaRN: factor on the attention's magnitude",
    "--yarn-beta-slow X": "YaRN: rotations over the trained length below which all is scaled (1)",
    "--yarn-beta-fast X": "YaRN: rotations over the trained length above which nothing is (32)",
}
KV_TYPES = "|".join(get_args(KvType))
TARGET = {"--target FILE": "GGUF file of the target, the model that decides (or EDGESPEC_TARGET)"}
DRAFT = {"--draft FILE": "GGUF file of the draft, the model that guesses (or EDGESPEC_DRAFT)"}
NO_DRAFT = {"--no-draft": "plain decoding, without guesses"}
SIZES = {
    "--grow SIZE-TYPE": "make the embedded pair as slow as a large one, with the same output: 0.6B-F16",
    "--ctx N": "context length: tokens of prompt and answer together",
}
LOADING = {
    f"--kv-type {KV_TYPES} f16": "format of the target's KV cache; below f16 the answer may change",
    f"--draft-kv-type {KV_TYPES} f16": "format of the draft's KV cache; affects speed only",
    "--flash-attention --flash-attn -fa on|off|auto auto": "flash attention (default: where it is faster "
    "on this machine; processors are mostly faster without)",
    "--byte-identical": "greedy and seeded texts are the same to the byte, whatever guesses and however many "
    "threads evaluate; a token alone costs as much as two",
    "--gpu-layers N -1": "layers on the GPU (default: as many as fit)",
    "--override-kv KEY=TYPE:VALUE *": "metadata of the target that llama.cpp reads instead of the file's, as "
    "in qwen3moe.expert_used_count=int:4; repeatable",
    "--lora FILE[:SCALE] *": "GGUF file of a LoRA adapter for the target; repeatable",
    **THREADS,
}


def add_model(command: argparse.ArgumentParser, *, pair_flag: bool = True, media: bool = False) -> None:
    """Adds the files and how they are loaded. pair_flag: by --pair, not alone. media: pictures may come."""
    group = command.add_argument_group("model")
    which = "an installed pair (see `edgespec list`), or embedded (default: the pair pulled last)"
    if pair_flag:
        add_flags(group, {"--pair NAME": which})
    else:
        # the name alone, or behind --pair as with every other command
        group.add_argument("pair", metavar="PAIR", nargs="?", default=argparse.SUPPRESS, help=which)
        group.add_argument("--pair", metavar="NAME", help="the same")
    add_flags(group, TARGET)
    either = group.add_mutually_exclusive_group()
    add_flags(either, DRAFT)
    add_for_engine(either, NO_DRAFT)
    if media:
        projector = "the projector with which the target reads pictures and sounds; none: text only (auto: a "
        add_for_engine(group, {"--mmproj FILE auto": f"{projector}file mmproj*.gguf next to the target)"})
    add_flags(group, SIZES)
    add_for_engine(group, LOADING)
    add_placement(command)
    add_machines(group)
    add_rope(command)


def add_rope(command: argparse.ArgumentParser) -> None:
    """Adds how positions are scaled, under llama.cpp's names."""
    add_for_engine(command.add_argument_group("contexts longer than a model was trained for"), ROPE)


def add_keep_texts(command: argparse._ActionsContainer) -> None:
    """Adds whether prompts and answers are kept for `edgespec distill`."""
    text = "keep up to this much of your prompts and answers on this machine, for `edgespec distill`"
    add_for_engine(command, {"--keep-texts MB 0": f"{text} (0: nothing)"})


def add_placement(command: argparse.ArgumentParser) -> None:
    """Adds where tensors lie that do not follow their layers, under llama.cpp's names."""
    group = command.add_argument_group("models larger than the graphics card")
    for of, model in (("", "target"), ("-draft", "draft")):
        usual = "" if of else " (default: as few as needed)"
        table = {
            f"--cpu-moe{of}": f"keep all experts of the {model} in main memory",
            f"--n-cpu-moe{of} N": f"keep the experts of the {model}'s first N layers in main memory{usual}",
            f"--override-tensor{of}{'' if of else ' -ot'} PATTERN=PLACE *": f"put the {model}'s tensors "
            "whose names match a regular expression on a device, or on CPU, main memory; repeatable",
        }
        add_for_engine(group, table)


def add_machines(group: argparse._ArgumentGroup) -> None:
    """Adds the other machines that layers may go to."""
    table = {
        "--rpc HOST:PORT,...": "put layers of the target on these machines, which run `edgespec rpc` or "
        "llama.cpp's rpc-server",
        "--rpc-public": "allow machines outside private networks; anyone on the way can read and change the "
        "traffic",
        "--tensor-split N,N,...": "share of the layers for each --rpc machine, then each graphics card "
        "(default: by free memory)",
    }
    add_for_engine(group, table)


def add_conversation(command: argparse._ActionsContainer) -> None:
    """Adds what `run` and `chat` take besides the prompt."""
    add_flags(command, {"--system TEXT": "system prompt", "-q --quiet": "print no statistics"})


def add_template(command: argparse.ArgumentParser) -> None:
    """Adds how a conversation is written, instead of the model's own way."""
    table = {
        "--chat-template NAME": "a well-known chat template instead of the model's own: chatml, llama3, "
        "gemma, mistral-v3, ... (a model without one gets chatml)",
        "--chat-template-file FILE": "a Jinja template instead of the model's own",
    }
    add_for_engine(command.add_mutually_exclusive_group(), table)


def add_length(group: argparse._ActionsContainer, longest: int | None = 512) -> None:
    """Adds how long an answer may be. longest: by default; None is what the context holds."""
    most = f"longest answer, in tokens ({longest or 'as long as the context allows'})"
    add_flags(group, {f"-n --max-tokens N {longest or ''}": most})


def add_sampling(command: argparse.ArgumentParser, *, longest: int | None = 512, length: bool = True) -> None:
    """Adds how the next token is chosen, and how long an answer may be if `length`. longest: by default."""
    group = command.add_argument_group(
        "sampling (defaults: what the model file recommends, else temperature 0.8, top-p 0.95, min-p 0.05)"
    )
    if length:
        add_length(group, longest)
    for name, number in NUMBERS.items():
        flags = ["--" + name.replace("_", "-"), *["--temp"] * (name == "temperature")]
        default = "" if number.off == number.default else f" (default {number.default:g})"
        metavar = "N" if number.kind is int else "X"
        group.add_argument(*flags, type=number.kind, metavar=metavar, help=number.help + default)
    table = {
        "--logit-bias ID=BIAS *": "add BIAS to a token's logit; repeatable",
        "--dry-breaker TEXT *": "a repetition never extends across this text; repeatable",
        "--samplers NAMES": "sampling stages and their order, as in llama.cpp: top_k;xtc;temperature",
        "--seed N": "the same seed gives the same text, with or without a draft",
        "--stop TEXT *": "stop before this text; repeatable",
    }
    add_flags(group, table)


def add_speculation(command: argparse.ArgumentParser) -> None:
    """Adds who guesses, and how far."""
    drafters = f"what makes the guesses (auto: draft model or head, {', '.join(FREE)} compete)"
    table = {
        "--draft-length K": "tokens guessed per round (default: whatever is fastest, chosen each round)",
        f"--drafter {'|'.join(DRAFTERS)} auto": drafters,
    }
    add_flags(command.add_argument_group("speculation"), table)
