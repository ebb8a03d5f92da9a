"""Make the embedded target with an MTP block, stage by stage; a stage whose file exists is not run again.

1. `teacher.gguf`: the target re-expressed as `mimo2`, with an untrained block;
2. `held-out-0`, `recorded-N`: it continues held-out and training prompts, with states and rows recorded;
3. `mtp.pt`: the block is trained, as in `edgespec distill`; 4. `target-mtp.gguf` is exported.
"""

from pathlib import Path

import torch

from edgespec_train import head_file, start
from edgespec_train.hidden import Hidden
from edgespec_train.model_file import About
from edgespec_train.progress import Log
from edgespec_train.recipes import target_prompts
from edgespec_train.recipes import tokenizer as tok
from edgespec_train.recipes.stages import SHIPPED, WorkFolders, measuring, stopped
from edgespec_train.recipes.target_prompts import Wanted
from edgespec_train.recording import record
from edgespec_train.shards import WIDTH
from edgespec_train.target_file import open_target
from edgespec_train.train import Plan, train

PLAN = Plan(
    tokens=6_000_000,
    anneal=4_800_000,
    warmup=30_000,
    batch=3072,
    micro=3072,
    matrix_rate=1e-2,
    vector_rate=5e-3,
)
RECORDED = Wanted(  # longer prompts would be most of what is evaluated
    tokens=1_500_000, first_epoch=30, longest=112, limits=(160,) * 9 + (560,)
)
ABOUT = About(
    "EdgeSpec tiny target with MTP", "EdgeSpec's embedded target, with a block that guesses", "9.3M", "1.0"
)


def make(
    place: WorkFolders,
    log: Log,
    shipped: Path = SHIPPED,
    *,
    plan: Plan = PLAN,
    wanted: Wanted = RECORDED,
) -> None:
    """Run every stage that is not done yet."""
    file, teacher = shipped / "target.gguf", place.work / "teacher.gguf"
    target = open_target(file)
    head = start.begin(target, "mtp")
    if not teacher.exists():
        head_file.write_mtp(head, target, teacher, ABOUT)
    tokenizer, context = tok.read_tokenizer(file), wanted.longest + max(wanted.limits) + 32
    ends = target_prompts.ends_of(tokenizer)
    with Hidden(teacher, context=context, sequences=WIDTH) as model:
        shards, held_out = target_prompts.record_texts(
            place.work,
            tokenizer,
            wanted,
            lambda some, seed: record(model, some, ends, WIDTH, seed),
            log,
        )
    torch.manual_seed(1)
    head = head.to(place.device)
    if not train(head, shards, held_out, None, place.work / "mtp.pt", plan, log):
        raise stopped("mtp")
    place.out.mkdir(parents=True, exist_ok=True)
    made = place.out / "target-mtp.gguf"
    head_file.write_mtp(head.cpu(), target, made, ABOUT)
    log(f"done: {made}; {measuring(place, made.name)}")
