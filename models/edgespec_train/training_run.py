"""A training run makes a draft for one target, in one folder, in as many sessions as needed.

The folder holds `held-out-0.npz` (held-out texts), `recorded-N.npz` (texts to train on),
`kept.npy` (the tokens that an EAGLE-3 head may guess), `plan.json` (the plan of the current round),
`round-N.pt` (the state of a training) and the draft itself. A session records texts for a share of its time,
fixes a plan that fits the rest, and trains; the next session continues an uncompleted plan.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

from edgespec_train import recorded
from edgespec_train.hidden import OUTPUT, Hidden, OfContext, Taps
from edgespec_train.progress import Log, StopRequest, Until, minutes
from edgespec_train.recorded import PromptToRecord, RecordedText
from edgespec_train.recording import record
from edgespec_train.shards import record_stream, shards_in
from edgespec_train.target_file import TargetFile, open_target

Kind = Literal["eagle3", "medusa", "draft"]
RECORDING_SHARE = 0.4  # of a session
HELD_OUT_TEXTS = 32
HELD_OUT_SHARE = 0.1  # of the first session, at most


@dataclass(frozen=True, slots=True)
class TrainingRun:
    """What is made, from what, and where."""

    target: tuple[Path, ...]  # all parts of its file
    folder: Path
    kind: Kind
    context: int  # tokens of the longest text
    width: int  # texts side by side
    threads: int
    disk: int  # bytes that texts may take
    begin_with: Path | None = None  # a small draft to begin with
    choosing: OfContext | None = None  # chooses how many of the threads evaluate the target

    @property
    def recorded(self) -> list[Path]:
        """Return the shards of texts to train on."""
        return shards_in(self.folder, "recorded")

    @property
    def held_out(self) -> list[RecordedText]:
        """Return the texts on which figures are measured."""
        return [text for path in shards_in(self.folder, "held-out") for text in recorded.read(path)]

    @property
    def plan_file(self) -> Path:
        return self.folder / "plan.json"

    def make_folder(self) -> None:
        """Make the folder, or remove what a killed session left and rename what earlier versions wrote."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for left in self.folder.glob("*.part"):
            left.unlink()
        for path in [*self.folder.glob("heard-*.npz"), *self.folder.glob("watched-0.npz")]:
            path.rename(path.with_name(path.name.replace("heard", "recorded").replace("watched", "held-out")))
        if (plan := self.folder / "course.json").exists():
            plan.rename(self.plan_file)

    def state_file(self, number: int) -> Path:
        return self.folder / f"round-{number}.pt"


PromptsFor = Callable[[Hidden, int], Iterator[PromptToRecord]]  # the target, and a seed, to its prompts


def taps_of(layers: int) -> tuple[int, ...]:
    """Return the layers whose inputs an EAGLE-3 head reads: an early one, the middle one and the last."""
    return (min(2, layers - 1), layers // 2, layers - 1)


def taps(run: TrainingRun, target: TargetFile) -> Taps:
    """Return which of the target's hidden states a draft learns from."""
    if run.kind == "eagle3":
        return taps_of(target.whole("block_count"))
    return OUTPUT if run.kind == "medusa" else None


def record_texts(
    run: TrainingRun,
    held_out: Callable[[Hidden], Iterator[PromptToRecord]],
    training: PromptsFor,
    until: float,
    stop: StopRequest,
    log: Log,
) -> None:
    """Let the target answer until a moment; first, once, for held-out texts. Raises OSError."""
    run.folder.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    with Hidden(
        run.target[0],
        taps(run, open_target(*run.target)),
        context=run.context,
        threads=run.threads,
        sequences=run.width,
    ) as target:
        ends = target.ends()
        if run.choosing:
            target.chosen = run.choosing(target.context)

        def texts(prompts: Iterator[PromptToRecord], seed: int, end: float) -> Iterator[RecordedText]:
            return record(target, prompts, ends, run.width, seed, Until(end, stop))

        if not shards_in(run.folder, "held-out"):
            soon = begun + (until - begun) * HELD_OUT_SHARE / RECORDING_SHARE
            log(f"recording held-out texts, {minutes(soon)}")
            if found := list(islice(texts(held_out(target), 1, soon), HELD_OUT_TEXTS)):
                recorded.write(run.folder / "held-out-0.npz", found)
        number = len(run.recorded)
        log(f"recording texts to train on, {minutes(until)}")
        record_stream(
            texts(training(target, number), number, until),
            run.folder,
            "recorded",
            most_bytes=run.disk,
            log=log,
            until=until,
        )
