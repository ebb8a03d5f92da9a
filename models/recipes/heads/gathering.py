"""Let SmolLM2 ask itself and answer, in a process for each core.

Threads of one process wait for each other at every product, which takes longest beside other programs.

Process N writes `heard-N-0.npz`, `heard-N-1.npz` and so on; all existing ones count towards the goal.
"""

import multiprocessing
import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import torch

from edgespec_models.distill import gather, heard
from edgespec_models.distill.native import Native
from edgespec_models.distill.progress import Stop
from edgespec_models.distill.saying import Saying
from edgespec_models.distill.start import read_llama
from edgespec_models.distill.target_file import open_target
from recipes.__main__ import say
from recipes.heads import asking, spec_bench
from recipes.heads.sing import Choir, sing
from recipes.stages import WorkFolders

WIDTH, WIDTH_ON_GPU = 96, 256  # texts side by side
OWN = 0.75  # of the answers are to questions that the target made
KEPT_MEMORY = {  # otherwise glibc returns large tensors at once, and a step pages them in again
    "MALLOC_MMAP_THRESHOLD_": "4000000000",
    "MALLOC_TRIM_THRESHOLD_": "8000000000",
    "MALLOC_TOP_PAD_": "100000000",
}


@dataclass(frozen=True, slots=True)
class Errand:
    """The work of one process."""

    file: Path
    bench: Path
    work: Path
    taps: tuple[int, ...]
    number: int
    goal: int  # tokens written
    width: int  # texts side by side
    device: str


def shards(work: Path) -> list[Path]:
    """Return all existing shards."""
    return sorted(work.glob("heard-*-*.npz"))


def gather_all(place: WorkFolders, file: Path, bench: Path, taps: tuple[int, ...], goal: int) -> list[Path]:
    """Return shards in which the target wrote at least `goal` tokens.

    Raises KeyboardInterrupt if a signal stops it.
    """
    missing = goal - sum(map(heard.said, shards(place.work)))
    if missing > 0:
        several, width = (place.threads, WIDTH) if place.device.type == "cpu" else (1, WIDTH_ON_GPU)
        each = -(-missing // several)
        run_all(
            [Errand(file, bench, place.work, taps, n, each, width, str(place.device)) for n in range(several)]
        )
    return shards(place.work)


def run_all(errands: list[Errand]) -> None:
    """Run each errand in a process, and end all if one fails or a stop is requested."""
    os.environ.update({name: os.environ.get(name, value) for name, value in KEPT_MEMORY.items()})
    start, stop = multiprocessing.get_context("spawn"), Stop()
    running = [start.Process(target=run, args=(errand,), daemon=True) for errand in errands]
    for process in running:
        process.start()
    while any(process.is_alive() for process in running):
        for process in running:
            process.join(1.0)
        if stop.wanted or any(process.exitcode for process in running):
            for process in running:
                process.terminate()
    if stop.wanted:
        raise KeyboardInterrupt("gathering was stopped; the same command goes on with it")
    if failed := [process.exitcode for process in running if process.exitcode]:
        raise RuntimeError(f"a process that gathers ended with {failed[0]}")


def run(errand: Errand) -> None:
    """Gather until the goal, or until a signal."""
    torch.set_num_threads(1)
    stop = Stop()
    target, reader = open_target(errand.file), Native(errand.file, context=64)
    template = target.text("tokenizer.chat_template")
    choir = Choir(read_llama(target).to(errand.device), errand.taps, errand.width)
    questions, name = spec_bench.read(errand.bench), f"heard-{errand.number}"
    seed = 1000 * errand.number + len(gather.there(errand.work, name))
    own = asking.self_asked(reader, template, questions)

    def others() -> Iterator[Saying]:
        for part in count():
            yield from asking.training(
                reader, template, spec_bench.training(questions), f"{errand.number} {seed} {part}"
            )

    ends = asking.ends(target)
    texts = own.listen(sing(choir, own.sayings(others(), OWN), ends, seed, stop))
    gather.keep(
        texts,
        errand.work,
        name,
        goal=errand.goal,
        log=lambda line: say(f"{name}: {line}, {own.made} questions of its own"),
    )
