"""`edgespec export`: the command that runs a pair's models on another engine, with draft and draft length."""

import argparse
import re
import shlex
import sys
from difflib import get_close_matches
from typing import NamedTuple

from edgespec.core.values import LONGEST_DRAFT
from edgespec.errors import SettingError
from edgespec.pairs.check import check_pair, find_head
from edgespec.pairs.settings import whole
from edgespec.pairs.store import installed_pairs
from edgespec_models.shelf.catalogue import CatalogueError, CatalogueModel, catalogue, find
from edgespec_models.shelf.installed_pair import InstalledModel

LENGTH = 4  # of a draft, where nobody says: engines for many users begin there
REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")
QUANT = re.compile(r"[-.]((?:UD-)?I?Q\d\w*|BF16|F16|F32|MXFP4\w*)(?:-\d{5}-of-\d{5})?\.gguf$", re.I)
WEIGHTS = "it loads the original weights: larger than the GGUF files, and rounded otherwise"
Model = InstalledModel | CatalogueModel


class Engine(NamedTuple):
    """A row of the table: a command, in which TARGET, DRAFT and LENGTH are put in."""

    version: str  # whose documentation or source the flags were checked against
    command: str
    guessing: dict[str, str]  # what is added, by what guesses: a draft model, or a kind of head
    notes: tuple[str, ...] = (WEIGHTS,)


_VLLM = '--speculative-config \'{"method": "%s", "num_speculative_tokens": LENGTH, "model": "%s"}\''
_SGLANG = "--speculative-num-steps LENGTH --speculative-eagle-topk 1 --speculative-num-draft-tokens LENGTH+1"
_SGLANG = f"--speculative-algorithm %s --speculative-draft-model-path %s {_SGLANG}"
_TENSORRT = '{"decoding_type": "%s", "max_draft_len": LENGTH, "speculative_model_dir": "DRAFT"}'
_TENSORRT = f"--extra_llm_api_options <(echo '{{\"speculative_config\": {_TENSORRT}%s}}')"
_LMDEPLOY = "--speculative-draft-model DRAFT --speculative-num-draft-tokens LENGTH"
_LMDEPLOY = f"--speculative-algorithm eagle3 {_LMDEPLOY}"
_LLAMA = "--spec-draft-n-max LENGTH --spec-type draft-"
ENGINES = {
    "vllm": Engine(
        "0.33.0",
        "vllm serve TARGET",
        {"draft": _VLLM % ("draft_model", "DRAFT"), "eagle3": _VLLM % ("eagle3", "DRAFT")}
        | {"mtp": _VLLM % ("mtp", "TARGET")},
    ),
    "sglang": Engine(
        "0.5.23",
        "python -m sglang.launch_server --model-path TARGET",
        {"draft": _SGLANG % ("STANDALONE", "DRAFT"), "eagle3": _SGLANG % ("EAGLE3", "DRAFT")}
        | {"mtp": _SGLANG % ("NEXTN", "TARGET")},
    ),
    "tensorrt-llm": Engine(
        "1.2.1",
        "trtllm-serve TARGET",
        {"draft": _TENSORRT % ("DraftTarget", ', "disable_overlap_scheduler": true')}
        | {"eagle3": _TENSORRT % ("Eagle3", "")},
        (WEIGHTS, "bash's <( ) gives it the options as a file"),
    ),
    "tgi": Engine(
        "3.3.7",
        "text-generation-launcher --model-id TARGET --speculate LENGTH",
        {},
        (WEIGHTS, "it guesses from the text alone, or with the Medusa heads in the target's own repository"),
    ),
    "lmdeploy": Engine("0.18.0", "lmdeploy serve api_server TARGET --backend pytorch", {"eagle3": _LMDEPLOY}),
    "deepspeed": Engine("MII 0.3.3", "python -m mii.entrypoints.openai_api_server --model TARGET", {}),
    "llama-server": Engine(
        "llama.cpp of llama-cpp-python 0.3.36",
        "llama-server TARGET",
        {"draft": f"DRAFT {_LLAMA}simple", "eagle3": f"DRAFT {_LLAMA}eagle3", "mtp": f"{_LLAMA}mtp"},
        ("at a temperature above 0 it accepts a guess only if the target draws that very token",),
    ),
}
DESCRIPTION = f"""Prints the command that runs a pair on another engine: {", ".join(ENGINES)}. What differs
there goes to standard error. Nothing is started."""


def add(command: argparse.ArgumentParser) -> None:
    """Adds the flags."""
    command.add_argument("pair", metavar="PAIR", help="a pair of the catalogue, or an installed one")
    command.add_argument("--to", required=True, metavar="ENGINE", help="the engine")
    length = f"tokens of a draft ({LENGTH})"
    command.add_argument("--draft-length", type=int, default=LENGTH, metavar="N", help=length)
    for model in ("target", "draft"):
        what = f"the repository of the {model}'s original weights, where the catalogue has none"
        command.add_argument(f"--{model}-repo", metavar="OWNER/NAME", help=what)


def run(arguments: argparse.Namespace) -> int:
    """Prints the command; returns the exit code."""
    name, length = arguments.to.lower(), arguments.draft_length
    whole("--draft-length", length, 1, LONGEST_DRAFT)
    if name not in ENGINES:
        near = get_close_matches(name, ENGINES, n=1) or [", ".join(ENGINES)]
        raise SettingError(f"--to {arguments.to}: no command for this engine is known, but for {near[0]}")
    version, command, guessing, notes = ENGINES[name]
    target, draft, guesses = _models(arguments.pair)
    if guesses in guessing:
        command += f" {guessing[guesses]}"
    elif guesses:
        notes += (f"without the pair's own guesses: {name} has no flag for a {guesses}",)
    words = {"LENGTH+1": str(length + 1), "LENGTH": str(length)}
    for model, place in ((target, "target"), (draft, "draft")):
        if model and place.upper() in command:
            own, given = name == "llama-server", getattr(arguments, f"{place}_repo")
            words[place.upper()] = _local(model, place) if own else _repository(model, place, given)
    print(re.sub("|".join(map(re.escape, words)), lambda found: words[found[0]], command))
    print("\n".join((*notes, f"flags checked against {name} {version}")), file=sys.stderr)
    return 0


def _models(name: str) -> tuple[Model, Model | None, str | None]:
    """Returns target, draft, and what guesses. Raises SettingError for an unknown pair."""
    pair = installed_pairs().get(name)
    if pair is None:
        try:
            entry = find(name)
        except CatalogueError as error:
            raise SettingError(f"no pair {name!r} is installed, and {error}") from None
        return entry.target, entry.draft, "draft" if entry.draft else None
    path = pair.draft.path if pair.draft else None
    if head := find_head(pair.target.path, path):
        return pair.target, pair.draft, head.kind
    other = path is not None and check_pair(pair.target.path, path) is not None
    return pair.target, pair.draft, "draft with another vocabulary" if other else "draft" if path else None


def _local(model: Model, place: str) -> str:
    """Returns the flags with which llama-server gets a GGUF file."""
    if isinstance(model, InstalledModel):
        return f"{'--model' if place == 'target' else '--spec-draft-model'} {shlex.quote(str(model.path))}"
    quant = QUANT.search(model.file)
    repo = f"{model.repo}:{quant[1]}" if quant else model.repo
    return f"{'--hf-repo' if place == 'target' else '--spec-draft-hf'} {repo}"


def _repository(model: Model, place: str, given: str | None) -> str:
    """Returns the repository of a model's original weights. Raises SettingError if it is unknown."""
    known = {of.repo: of.base for entry in catalogue() for of in entry.models}
    if REPOSITORY.fullmatch(repo := given or known.get(model.repo, "unknown")):
        return repo
    flag = f"name it with --{place}-repo OWNER/NAME"
    raise SettingError(f"the repository of the {place}'s original weights is {repo!r}: {flag}")
