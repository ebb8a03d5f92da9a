"""Make the embedded pair from nothing, stage by stage.

Every stage leaves a file in the work folder and is skipped once that file is complete, so an interrupted
run goes on where it was. All seeds are fixed. The stages:

1. vocabulary and token files of the epochs;
2. `seed`: a network of 6 layers learns at a constant rate (cheap tokens first);
3. `target`: the seed, grown to 10 layers, learns on and anneals; then `long`: windows of 2,048 at a raised
   rate, without which text past the 512th token falls apart;
4. `plain`: the draft learns from the corpus alone;
5. `said-N`: the exported target continues training prompts;
6. `draft`: the plain draft learns from what the target said;
7. the target is exported to Q8_0, the draft to Q4_0, the held-out prompts chosen, the pair measured.
"""

import json
import os
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from tokenizers import Tokenizer

from edgespec_models.distill.model_file import About
from edgespec_models.distill.network import Llama, count_parameters
from edgespec_models.distill.plan import Plan
from edgespec_models.distill.progress import Log
from recipes import (
    checkpoint,
    chorus,
    data,
    distil,
    export,
    marks,
    measure,
    model,
    prompts,
    restore,
    said,
)
from recipes import tokenizer as tok
from recipes.train import train

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
SHARDS = 5
PROMPTS = 8192  # a shard; about 800,000 tokens are said to them
FIRST_EPOCH = 10  # of the prompts
VERSION = "1.0"


@dataclass(frozen=True, slots=True)
class WorkFolders:
    """Say where the work files go, where the pair goes, and how many threads there are."""

    work: Path
    out: Path
    threads: int  # of torch; llama.cpp gets one, its threads wait by spinning and hinder each other
    device: torch.device  # of torch; llama.cpp computes on the processor


def ends_of(tokenizer: Tokenizer) -> set[int]:
    """Return the tokens after which there is nothing more to say."""
    return {tok.token_id(tokenizer, marks.TURN_END), tok.token_id(tokenizer, marks.END_OF_TEXT)}


def about(network: Llama, role: str) -> About:
    """Describe a file of the pair in its metadata."""
    size = f"{count_parameters(network) / 1e6:.1f}M"
    what = f"EdgeSpec's embedded demonstration {role}, trained from scratch on the Python standard library"
    return About(f"EdgeSpec tiny {role}", what, size, VERSION)


def finished(path: Path, tokens: int) -> Llama | None:
    """Return a stage's network if it has seen all its tokens."""
    if not path.exists():
        return None
    network, done = checkpoint.load(path)
    return network if done >= tokens else None


def stage(place: WorkFolders, name: str, start: Llama, plan: Plan, tokenizer: Tokenizer, log: Log) -> Llama:
    """Run one training stage, or return what it left."""
    network = finished(place.work / f"{name}.pt", plan.tokens)
    if network is None:
        network = start.to(place.device)
        if not train(network, place.work, name, tokenizer, plan, log):
            raise KeyboardInterrupt(f"stage {name} was stopped; the same command goes on with it")
    return network


def tune(place: WorkFolders, name: str, start: Llama, shards: list[Path], plan: Plan, log: Log) -> Llama:
    """Run one stage of distillation, or return what it left."""
    network = finished(place.work / f"{name}.pt", plan.tokens)
    if network is None:
        network = start.to(place.device)
        if not distil.distil(network, shards, place.work, name, plan, log):
            raise KeyboardInterrupt(f"stage {name} was stopped; the same command goes on with it")
    return network


def make_target(place: WorkFolders, tokenizer: Tokenizer, log: Log) -> Path:
    """Train and export the target."""
    torch.manual_seed(1)
    seed = stage(place, "seed", Llama(model.SEED), SEED, tokenizer, log)
    network = stage(place, "target", checkpoint.grow(seed, model.TARGET.layers), TARGET, tokenizer, log)
    network = stage(place, "long", network, LONG, tokenizer, log)
    path = place.work / "target.gguf"
    export.export(network, tokenizer, path, "Q8_0", about(network, "target"))
    return path


def listen(place: WorkFolders, target: Path, tokenizer: Tokenizer, log: Log) -> list[Path]:
    """Let the target continue the prompts of every shard that is not there yet."""
    shards = [place.work / f"said-{i}.npz" for i in range(SHARDS)]
    network = restore.read_network(target).to(place.device)
    for i, shard in enumerate(shards):
        if not shard.exists():
            log(f"said: shard {i + 1} of {len(shards)}")
            some = islice(said.prompts(tokenizer, FIRST_EPOCH + i), PROMPTS)
            said.write_shard(shard, list(chorus.sing(network, some, ends_of(tokenizer), i)))
    return shards


def make_draft(place: WorkFolders, tokenizer: Tokenizer, target: Path, log: Log) -> tuple[Path, Path]:
    """Train the draft, let the target speak, tune the draft to it; return (plain, tuned) files."""
    torch.manual_seed(2)
    plain = stage(place, "plain", Llama(model.DRAFT), PLAIN, tokenizer, log)
    plain_path, path = place.work / "plain.gguf", place.work / "draft.gguf"
    export.export(plain, tokenizer, plain_path, "Q8_0", about(plain, "draft, not distilled"))
    tuned = tune(place, "draft", plain, listen(place, target, tokenizer, log), DISTIL, log)
    export.export(tuned, tokenizer, path, "Q4_0", about(tuned, "draft"))
    return plain_path, path


def install(place: WorkFolders, target: Path, draft: Path) -> None:
    """Put both files and the held-out prompts in their place, each at once."""
    place.out.mkdir(parents=True, exist_ok=True)
    for path in (target, draft):
        aside = place.out / f".{path.name}.part"
        aside.write_bytes(path.read_bytes())
        os.replace(aside, place.out / path.name)
    prompts.write(place.out / "held_out_prompts.jsonl")


def measure_pair(place: WorkFolders, tokenizer: Tokenizer, target: Path, drafts: dict[str, Path]) -> Path:
    """Measure through llama.cpp and write `figures.json` and `figures.md`."""
    asked = list(prompts.choose())
    held_out = data.held_out_tokens(place.work, tokenizer)
    found = measure.measure(target, drafts, asked, held_out, ends_of(tokenizer), threads=1)
    path = place.work / "figures.json"
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    path.with_suffix(".md").write_text(measure.tables(found), encoding="utf-8")
    return path


def make_pair(place: WorkFolders, log: Log) -> None:
    """Run every stage that is not done yet."""
    place.work.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(place.threads)
    tokenizer = data.prepare_tokenizer(place.work)
    target = make_target(place, tokenizer, log)
    plain, draft = make_draft(place, tokenizer, target, log)
    install(place, target, draft)
    figures = measure_pair(place, tokenizer, target, {"plain": plain, "distilled": draft})
    log(f"done: {place.out}, figures in {figures}")
