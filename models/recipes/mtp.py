"""Make the embedded target with an MTP block, stage by stage; a stage whose file exists is not run again.

1. `teacher.gguf`: the target re-expressed as `mimo2`, with an untrained block;
2. `watched-0`, `heard-N`: it continues held-out and training prompts, with states and rows recorded;
3. `mtp.pt`: the block is trained, as in `edgespec distill`; 4. `target-mtp.gguf` is exported.
"""

from pathlib import Path

import torch

from edgespec_models.distill import gather, head_file, start
from edgespec_models.distill.hidden import Hidden
from edgespec_models.distill.listen import listen
from edgespec_models.distill.model_file import About
from edgespec_models.distill.progress import Log
from edgespec_models.distill.target_file import open_target
from edgespec_models.distill.train import Plan, train
from recipes import asked
from recipes import tokenizer as tok
from recipes.asked import Wanted
from recipes.stages import SHIPPED, WorkFolders, measuring, stopped

PLAN = Plan(
    tokens=6_000_000,
    anneal=4_800_000,
    warmup=30_000,
    batch=3072,
    micro=3072,
    matrix_rate=1e-2,
    vector_rate=5e-3,
)
HEARD = Wanted(  # longer prompts would be most of what is evaluated
    said=1_500_000, first_epoch=30, longest=112, limits=(160,) * 9 + (560,)
)
ABOUT = About(
    "EdgeSpec tiny target with MTP", "EdgeSpec's embedded target, with a block that guesses", "9.3M", "1.0"
)


def make(place: WorkFolders, log: Log, shipped: Path = SHIPPED) -> None:
    """Run every stage that is not done yet."""
    file, teacher = shipped / "target.gguf", place.work / "teacher.gguf"
    target = open_target(file)
    head = start.begin(target, "mtp")
    if not teacher.exists():
        head_file.write_mtp(head, target, teacher, ABOUT)
    tokenizer, context = tok.read_tokenizer(file), HEARD.longest + max(HEARD.limits) + 32
    ends = asked.ends_of(tokenizer)
    with Hidden(teacher, context=context, sequences=gather.WIDTH) as speaker:
        shards, watched = asked.hear(
            place.work,
            tokenizer,
            HEARD,
            lambda some, seed: listen(speaker, some, ends, gather.WIDTH, seed),
            log,
        )
    torch.manual_seed(1)
    head = head.to(place.device)
    if not train(head, shards, watched, None, place.work / "mtp.pt", PLAN, log):
        raise stopped("mtp")
    place.out.mkdir(parents=True, exist_ok=True)
    made = place.out / "target-mtp.gguf"
    head_file.write_mtp(head.cpu(), target, made, ABOUT)
    log(f"done: {made}; {measuring(place, made.name)}")
