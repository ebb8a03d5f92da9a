"""Train a run's draft: fix a plan that fits the time, train, and write the draft's file."""

import json
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from edgespec_models.kept_file import replacing, write_whole
from edgespec_train import device, head_file, start
from edgespec_train.medusa import MedusaNetwork
from edgespec_train.model_file import About, write_draft
from edgespec_train.network import Llama, count_parameters
from edgespec_train.progress import Log, StopRequest, Until, minutes
from edgespec_train.recorded import RecordedText, most_frequent, numbers_of
from edgespec_train.round_plan import micro_of, planned, rate_of, text_tokens
from edgespec_train.target_file import TargetFile, open_target
from edgespec_train.train import Plan, Student, held_out_figures, train
from edgespec_train.training_run import TrainingRun, taps_of

PASSES = 20  # over the recorded texts; more teaches nothing
SAFE = 0.65  # share of the possible tokens that is planned, so that plans are completed
SHARDS_BYTES = 1 << 30  # of shards in memory at once


@dataclass(frozen=True, slots=True)
class Learned:
    """How a training ended."""

    draft: Path
    complete: bool  # the plan is completed
    rounds: int
    tokens: int  # seen in this round
    before: float  # shared probability of target and draft on held-out sampled text, before the training
    after: float


def is_open(run: TrainingRun) -> bool:
    """Return whether there is an uncompleted plan."""
    plan = _saved_plan(run)
    return plan is not None and _done(run, plan["number"]) < plan["plan"]["tokens"]


def learn(run: TrainingRun, until: float, stop: StopRequest, log: Log) -> Learned:
    """Train until the plan is completed or a moment comes; write the draft. Raises OSError, ValueError."""
    device.use_threads(run.threads)
    target = open_target(*run.target)
    shards, held_out = run.recorded, run.held_out
    if not shards or not held_out:
        raise ValueError("no text was recorded yet")
    kept = _kept(run, target, shards)
    numbers = None if kept is None else numbers_of(kept, target.vocab)
    saved = _saved_plan(run)
    complete = saved is not None and not is_open(run)
    student = begin(run, target, kept)
    if saved is None or (complete and time.monotonic() < until):
        saved = _next_round(run, saved, student, shards, held_out, numbers, until, log)
        complete = False
    number, plan = saved["number"], Plan(**{**saved["plan"], "lengths": ((0, 256),)})
    if number > 1 and not run.state_file(number).exists():
        student.load_state_dict(weights_of(run.state_file(number - 1)))
    student = student.to(device.choose())
    if complete:
        student.load_state_dict(weights_of(run.state_file(number)))
    else:
        complete = train(
            student,
            shards[: saved["shards"]],
            held_out,
            numbers,
            run.state_file(number),
            plan,
            log,
            stop=Until(until, stop),
            save_s=min(120.0, max(10.0, (until - time.monotonic()) / 4)),
            threads=run.threads,
            together=max(1, SHARDS_BYTES // max(1, max(path.stat().st_size for path in shards))),
        )
        run.state_file(number - 2).unlink(missing_ok=True)
    after = held_out_figures(student, held_out, numbers)[0][2]
    return Learned(
        write(run, target, student.cpu(), kept),
        complete,
        number,
        _done(run, number),
        saved["before"],
        after,
    )


def _kept(run: TrainingRun, target: TargetFile, shards: list[Path]) -> NDArray[np.int64] | None:
    """Return the tokens that a head may guess, fixed when they are first asked for; None: all."""
    count = tokens_kept(target.vocab)
    if run.kind == "draft" or count == target.vocab:
        return None
    path = run.folder / "kept.npy"
    if not path.exists():
        with replacing(path) as aside, aside.open("wb") as file:
            np.save(file, most_frequent(shards, count, target.vocab))
    kept: NDArray[np.int64] = np.load(path)
    return kept


def tokens_kept(vocab: int) -> int:
    """Return how many tokens a head may guess: all of a small vocabulary, a quarter of a large one."""
    return vocab if vocab <= 16384 else max(12288, vocab // 4 // 32 * 32)


def begin(run: TrainingRun, target: TargetFile, kept: NDArray[np.int64] | None) -> Student:
    torch.manual_seed(1)
    if run.kind == "eagle3":
        return start.begin(target, "eagle3", kept)
    if run.kind == "medusa":
        return start.medusa(target, kept)
    return start.read_llama(open_target(run.begin_with)) if run.begin_with else start.small(target)


def _saved_plan(run: TrainingRun) -> Any:
    """Return the content of plan.json; None if there is no plan yet."""
    try:
        return json.loads(run.plan_file.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None


def _done(run: TrainingRun, number: int) -> int:
    path = run.state_file(number)
    if not path.exists():
        return 0
    return int(torch.load(path, weights_only=True, map_location="cpu", mmap=True)["done"])


def weights_of(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = torch.load(path, weights_only=True, map_location="cpu")["head"]
    return content


def _next_round(
    run: TrainingRun,
    saved: Any,
    student: Student,
    shards: list[Path],
    held_out: list[RecordedText],
    numbers: NDArray[np.int64] | None,
    until: float,
    log: Log,
) -> Any:
    """Fix the plan of another round by this machine's speed of training, and write it down."""
    student = student.to(device.choose())
    if saved is None:
        log(f"trying the present draft, and how fast it trains here; {minutes(until)}")
    before = saved["before"] if saved else held_out_figures(student, held_out, numbers)[0][2]
    micro = micro_of(student)
    rate = rate_of(student, shards, numbers, micro)
    recorded_tokens = sum(text_tokens(path) for path in shards)
    wanted = min(rate * max(1.0, until - time.monotonic()) * SAFE, PASSES * recorded_tokens)
    plan = planned(int(max(wanted, 4096)), micro, first=saved is None and run.begin_with is None)
    if run.kind == "draft":
        plan = replace(plan, matrix_rate=plan.matrix_rate * 0.6, vector_rate=plan.vector_rate * 0.6)
    fixed = {
        "number": (saved["number"] if saved else 0) + 1,
        "plan": asdict(plan),
        "shards": len(shards),
        "before": before,
    }
    write_whole(run.plan_file, json.dumps(fixed, indent=1))
    student.cpu()
    return fixed


def write(run: TrainingRun, target: TargetFile, student: Student, kept: NDArray[np.int64] | None) -> Path:
    """Write the draft as a GGUF file, whole or not at all; return its path. Raises OSError."""
    made = run.folder / f"new-{run.kind}.gguf"
    name = run.target[0].stem
    size = f"{count_parameters(student) / 1e6:.0f}M"
    if isinstance(student, Llama):
        about = About(f"{name} draft", f"A draft for {name}, fine-tuned on its output", size, "1")
        write_draft(student, target, made, about)
        return made
    if isinstance(student, MedusaNetwork):
        about = About(f"{name} Medusa", f"Medusa heads for {name}, trained on its output", size, "1")
        head_file.write_medusa(student, target, made, about, kept)
        return made
    about = About(f"{name} EAGLE-3", f"An EAGLE-3 head for {name}, trained on its output", size, "1")
    all_ = np.arange(target.vocab) if kept is None else kept
    layers = taps_of(target.whole("block_count"))
    head_file.write_eagle3(student, target, made, about, layers, all_, output="Q8_0")
    return made
