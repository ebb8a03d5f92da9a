"""Train the shipped draft on: from the files that ship, with the target as it is.

The work folder of the run that made the pair does not last; the committed files are enough. The target,
read back into torch, continues prompts of epochs that the draft has not seen, and the draft, made wider
without changing what it computes, learns from that. As in `stages.py`, every stage leaves a file in the
work folder and is skipped once that is complete. Nothing that ships is touched: the result is in `out`.
"""

from dataclasses import replace
from itertools import islice
from pathlib import Path

import torch
from tokenizers import Tokenizer

from recipes import checkpoint, chorus, export, marks, model, restore, said, stages
from recipes import tokenizer as tok
from recipes.progress import Log
from recipes.train import Plan

SHIPPED = Path(__file__).resolve().parents[1] / "edgespec_models" / "tiny"
SHAPE = replace(model.DRAFT, width=160, ffn=448)  # as wide as a target at six times the cost allows
PLAN = Plan(tokens=40_000_000, anneal=30_000_000, warmup=100_000, matrix_rate=6e-3)
SHARDS = 8
PROMPTS = 8192  # a shard; about 800,000 tokens come of them
FIRST_EPOCH = 10


def listen(place: stages.Place, target: Path, tokenizer: Tokenizer, log: Log) -> list[Path]:
    """Let the target continue the prompts of every shard that is not there yet."""
    shards = [place.work / f"chorus-{i}.npz" for i in range(SHARDS)]
    ends = {tok.token_id(tokenizer, marks.TURN_END), tok.token_id(tokenizer, marks.END_OF_TEXT)}
    network = restore.read_network(target).to(place.device)
    for i, shard in enumerate(shards):
        if not shard.exists():
            log(f"chorus: shard {i + 1} of {len(shards)}")
            prompts = islice(said.prompts(tokenizer, FIRST_EPOCH + i), PROMPTS)
            said.write_shard(shard, list(chorus.sing(network, prompts, ends, i)))
    return shards


def go_on(place: stages.Place, log: Log, shipped: Path = SHIPPED) -> None:
    """Run every stage that is not done yet, and measure the new draft beside the shipped one."""
    place.work.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(place.threads)
    torch.manual_seed(3)
    target, old, new = shipped / "target.gguf", shipped / "draft.gguf", place.work / "draft.gguf"
    tokenizer = restore.read_tokenizer(target)
    tokenizer.save(str(place.work / "tokenizer.json"))
    shards = listen(place, target, tokenizer, log)
    start = checkpoint.widen(restore.read_network(old), SHAPE.width, SHAPE.ffn)
    draft = stages.tune(place, "onward", start, shards, PLAN, log)
    export.export(draft, tokenizer, new, "Q8_0", stages.about(draft, "draft"))
    stages.install(place, target, new)
    figures = stages.measure_pair(place, tokenizer, target, {"shipped": old, "onward": new})
    log(f"done: {place.out}, figures in {figures}")
