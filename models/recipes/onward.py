"""Train the shipped draft further: from the files that ship, with the target as it is.

The work folder of the run that made the pair does not last; the committed files are enough. The stages are
the last ones of `stages.py`: the target continues prompts, the draft trains on the result. Nothing that ships
is touched: the result is in `out`.
"""

from pathlib import Path

import torch

from edgespec_models.distill.progress import Log
from recipes import export, restore, stages

SHIPPED = Path(__file__).resolve().parents[1] / "edgespec_models" / "tiny"


def go_on(place: stages.WorkFolders, log: Log, shipped: Path = SHIPPED) -> None:
    """Run every stage that is not done yet, and measure the new draft beside the shipped one."""
    place.work.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(place.threads)
    target, old, new = shipped / "target.gguf", shipped / "draft.gguf", place.work / "draft.gguf"
    tokenizer = restore.read_tokenizer(target)
    tokenizer.save(str(place.work / "tokenizer.json"))
    shards = stages.listen(place, target, tokenizer, log)
    draft = stages.tune(place, "onward", restore.read_network(old), shards, stages.DISTIL, log)
    export.export(draft, tokenizer, new, "Q4_0", stages.about(draft, "draft"))
    stages.install(place, target, new)
    figures = stages.measure_pair(place, tokenizer, target, {"shipped": old, "onward": new})
    log(f"done: {place.out}, figures in {figures}")
