"""Make the embedded pair from nothing, stage by stage.

Every stage leaves a file in the work folder and is skipped once that file is complete, so an interrupted
run goes on where it was. All seeds are fixed. The stages:

1. vocabulary and token files of the epochs;
2. `seed`: a network of 6 layers learns at a constant rate (cheap tokens first);
3. `target`: the seed, grown to 10 layers, learns on and anneals; then `long`: windows of 2,048 at a raised
   rate, without which text past the 512th token falls apart;
4. `plain`: the draft learns from the corpus alone;
5. `held-out-0`, `recorded-N`: the exported target continues prompts, through llama.cpp;
6. `draft`: the plain draft learns from what the target wrote, as in `edgespec distill`;
7. the target is exported to Q8_0, the draft to Q4_0, and the held-out prompts are chosen.

`onward` starts at 5, from the files that ship: the work folder of the run that made them does not last.
"""

import shlex
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer

from edgespec_models import tiny
from edgespec_models.kept_file import copy_whole
from edgespec_train import train as learning
from edgespec_train.hidden import Hidden
from edgespec_train.model_file import About
from edgespec_train.network import Llama, count_parameters
from edgespec_train.progress import Log
from edgespec_train.recipes import data, export, model, prompts, target_prompts
from edgespec_train.recipes import tokenizer as tok
from edgespec_train.recipes.rounding import rounded
from edgespec_train.recipes.target_prompts import Wanted
from edgespec_train.recipes.train import train
from edgespec_train.recorded import PromptToRecord, RecordedText
from edgespec_train.recording import read_back, record
from edgespec_train.shards import WIDTH
from edgespec_train.start import read_llama
from edgespec_train.target_file import open_target
from edgespec_train.train import Plan

SEED = Plan(tokens=8_400_000, anneal=3_800_000, floor=0.43, save_every=1_500_000)
TARGET = Plan(
    tokens=5_000_000,
    anneal=5_000_000,
    full=0.5,
    warmup=50_000,
    lengths=((0, 256), (3_000_000, 512), (4_650_000, 2048)),
    first_epoch=2,
)
LONG = Plan(tokens=450_000, anneal=430_000, full=0.25, warmup=20_000, lengths=((0, 2048),), first_epoch=5)
PLAIN = Plan(tokens=2_000_000, anneal=1_200_000, warmup=100_000, matrix_rate=6e-3, first_epoch=2)
DISTIL = Plan(tokens=32_000_000, anneal=22_000_000, warmup=100_000, matrix_rate=6e-3, batch=8192)
ROUND_FROM = 0.7  # of that plan, weights are rounded as in the file
RECORDED = Wanted(tokens=4_000_000, first_epoch=10, longest=230, limits=(136,))  # measurements go to 128
VERSION = "1.0"
SHIPPED = tiny.target_path().parent


@dataclass(frozen=True, slots=True)
class WorkFolders:
    """Say where the work files go, where the pair goes, and where torch computes."""

    work: Path
    out: Path
    device: torch.device  # llama.cpp computes on the processor, with one thread: more hinder torch


def about(network: Llama, role: str) -> About:
    """Describe a file of the pair in its metadata."""
    size = f"{count_parameters(network) / 1e6:.1f}M"
    what = f"EdgeSpec's embedded demonstration {role}, trained from scratch on the Python standard library"
    return About(f"EdgeSpec tiny {role}", what, size, VERSION)


def stopped(name: str) -> KeyboardInterrupt:
    return KeyboardInterrupt(f"{name} was stopped; the same command goes on with it")


def stage(place: WorkFolders, name: str, start: Llama, plan: Plan, tokenizer: Tokenizer, log: Log) -> Llama:
    """Run one training stage, or return what it left."""
    network = start.to(place.device)
    if not train(network, place.work, name, tokenizer, plan, log):
        raise stopped(name)
    return network.cpu()


def make_target(place: WorkFolders, tokenizer: Tokenizer, log: Log) -> Path:
    """Train and export the target."""
    torch.manual_seed(1)
    seed = stage(place, "seed", Llama(model.SEED), SEED, tokenizer, log)
    network = stage(place, "target", model.grow(seed, model.TARGET.layers), TARGET, tokenizer, log)
    network = stage(place, "long", network, LONG, tokenizer, log)
    path = place.work / "target.gguf"
    export.export(network, tokenizer, path, "Q8_0", about(network, "target"))
    return path


def everywhere(
    target: Hidden, asked: list[PromptToRecord], ends: set[int], seed: int
) -> Iterator[RecordedText]:
    """Yield texts with the target's rows inside prompts too: these are read again, in one sequence more."""
    for text in record(target, asked, ends, WIDTH, seed):
        ids = text.ids.tolist()
        yield read_back(target, PromptToRecord(ids[:1], text.temperature, 0, tuple(ids[1:])), WIDTH)


def tune(
    place: WorkFolders,
    name: str,
    start: Llama,
    target: Path,
    tokenizer: Tokenizer,
    log: Log,
    *,
    plan: Plan = DISTIL,
    wanted: Wanted = RECORDED,
) -> Path:
    """Train a draft on what its target says; return its file."""
    ends, context = target_prompts.ends_of(tokenizer), wanted.longest + max(wanted.limits)
    with Hidden(target, None, context=context, sequences=WIDTH + 1) as speaker:
        shards, held_out = target_prompts.record_texts(
            place.work,
            tokenizer,
            wanted,
            lambda some, seed: everywhere(speaker, some, ends, seed),
            log,
        )
    draft = start.to(place.device)

    def inside(share: float) -> AbstractContextManager[None]:
        return rounded(draft) if share >= ROUND_FROM else nullcontext()

    state = place.work / f"{name}.pt"
    if not learning.train(draft, shards, held_out, None, state, plan, log, inside=inside):
        raise stopped(name)
    path = place.work / "draft.gguf"
    export.export(draft.cpu(), tokenizer, path, "Q4_0", about(draft, "draft"))
    return path


def install(place: WorkFolders, target: Path, draft: Path, log: Log) -> None:
    """Put both files and the held-out prompts in their place, each at once, and say how to measure them."""
    place.out.mkdir(parents=True, exist_ok=True)
    for path in (target, draft):
        copy_whole(path, place.out / path.name)
    prompts.write(place.out / "held_out_prompts.jsonl")
    log(f"done: {place.out}; {measuring(place, target.name, '--draft', place.out / draft.name)}")


def measuring(place: WorkFolders, target: str, *draft: object) -> str:
    """Say which command measures the acceptance of four guesses on the held-out prompts."""
    words = ["--target", place.out / target, *draft, "--prompts", tiny.held_out_prompts_path()]
    words += ["--raw", "--draft-length", 4, "-n", 128, "--seconds", 3600]
    return f"measure it: {shlex.join(map(str, ['edgespec', 'bench', *words]))}"


def make_pair(place: WorkFolders, log: Log) -> None:
    """Run every stage that is not done yet."""
    tokenizer = data.prepare_tokenizer(place.work)
    target = make_target(place, tokenizer, log)
    torch.manual_seed(2)
    plain = stage(place, "plain", Llama(model.DRAFT), PLAIN, tokenizer, log)
    install(place, target, tune(place, "draft", plain, target, tokenizer, log), log)


def go_on(
    place: WorkFolders,
    log: Log,
    shipped: Path = SHIPPED,
    *,
    plan: Plan = DISTIL,
    wanted: Wanted = RECORDED,
) -> None:
    """Train the shipped draft further, with the shipped target as it is; nothing that ships is touched."""
    target = shipped / "target.gguf"
    start = read_llama(open_target(shipped / "draft.gguf"))
    tokenizer = tok.read_tokenizer(target)
    draft = tune(place, "onward", start, target, tokenizer, log, plan=plan, wanted=wanted)
    install(place, target, draft, log)
