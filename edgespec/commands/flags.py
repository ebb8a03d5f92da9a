"""Flags that several commands share: which model, how to sample, who guesses."""

import argparse

from edgespec.commands import loading
from edgespec.commands.flag_table import add_flags, add_for_engine
from edgespec.core.values import DRAFTERS, FREE
from edgespec.sampling.settings import NUMBERS

TARGET = {"--target FILE": "GGUF file of the target, the model that decides (or EDGESPEC_TARGET)"}
DRAFT = {"--draft FILE": "GGUF file of the draft, the model that guesses (or EDGESPEC_DRAFT)"}
NO_DRAFT = {"--no-draft": "plain decoding, without guesses"}
SIZES = {
    "--grow SIZE-TYPE": "make the embedded pair as slow as a large one, with the same output: 0.6B-F16",
    "--ctx N": "context length: tokens of prompt and answer together",
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
    loading.add(command, group)


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
