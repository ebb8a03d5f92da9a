"""A course: a draft for one target, made in one folder, in as many sittings as needed.

The folder holds `watched-0.npz` (held-out texts), `heard-N.npz` (texts to train on),
`kept.npy` (the tokens that an EAGLE-3 head may guess), `course.json` (the plan of the current round),
`round-N.pt` (the state of a training) and the draft itself. A sitting gathers texts for a share of its time,
fixes a plan that fits the rest, and trains; the next sitting continues an uncompleted plan.
"""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from edgespec_models.distill import device, gather, head_file, heard, start
from edgespec_models.distill.heard import Saying, most_said, numbers_of
from edgespec_models.distill.hidden import Hidden, OfContext
from edgespec_models.distill.listen import listen
from edgespec_models.distill.model_file import About, write_draft
from edgespec_models.distill.network import Llama, count_parameters
from edgespec_models.distill.progress import Log, Until, Wish, minutes
from edgespec_models.distill.round_plan import micro_of, planned, rate_of, text_tokens
from edgespec_models.distill.target_file import TargetFile, open_target
from edgespec_models.distill.train import Plan, Student, held_out, train
from edgespec_models.kept_file import replacing, write_whole

Kind = Literal["eagle3", "draft"]
LISTENING = 0.4  # of a sitting
WATCHED = 32  # texts
WATCHING = 0.1  # of the first sitting, at most
PASSES = 20  # over the gathered texts; more teaches nothing
SAFE = 0.65  # share of the possible tokens that is planned, so that plans are completed
SHARDS_BYTES = 1 << 30  # of shards in memory at once


@dataclass(frozen=True, slots=True)
class Course:
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
    def plan_file(self) -> Path:
        return self.folder / "course.json"

    def state_file(self, number: int) -> Path:
        return self.folder / f"round-{number}.pt"


Asking = Callable[[Hidden, int], Iterator[Saying]]  # the target, and a seed, to its prompts


def taps_of(layers: int) -> tuple[int, ...]:
    """Return the layers whose inputs an EAGLE-3 head reads: an early one, the middle one and the last."""
    return (min(2, layers - 1), layers // 2, layers - 1)


def taps(course: Course, target: TargetFile) -> tuple[int, ...] | None:
    return taps_of(target.whole("block_count")) if course.kind == "eagle3" else None


def hear(
    course: Course,
    watched: Callable[[Hidden], Iterator[Saying]],
    asked: Asking,
    until: float,
    stop: Wish,
    log: Log,
) -> None:
    """Let the target answer until a moment; first, once, for held-out texts. Raises OSError."""
    course.folder.mkdir(parents=True, exist_ok=True)
    target = open_target(*course.target)
    begun = time.monotonic()
    with Hidden(
        course.target[0],
        taps(course, target),
        context=course.context,
        threads=course.threads,
        sequences=course.width,
    ) as speaker:
        ends = speaker.ends()
        if course.choosing:
            speaker.chosen = course.choosing(speaker.context)

        def said(sayings: Iterator[Saying], seed: int, moment: float) -> Iterator[heard.Heard]:
            wish = Until(moment, stop)
            return listen(speaker, sayings, ends, course.width, seed, wish)

        if not gather.there(course.folder, "watched"):
            soon = begun + (until - begun) * WATCHING / LISTENING
            log(f"gathering held-out texts, {minutes(soon)}")
            if found := list(islice(said(watched(speaker), 1, soon), WATCHED)):
                heard.write(course.folder / "watched-0.npz", found)
        number = len(gather.there(course.folder, "heard"))
        log(f"gathering texts to train on, {minutes(until)}")
        gather.keep(
            said(asked(speaker, number), number, until),
            course.folder,
            "heard",
            most_bytes=course.disk,
            log=log,
            until=until,
        )


@dataclass(frozen=True, slots=True)
class Learned:
    """How a training ended."""

    draft: Path
    complete: bool  # the plan is completed
    rounds: int
    tokens: int  # seen in this round
    before: float  # shared probability of target and draft on held-out sampled text, before the training

    after: float


def is_open(course: Course) -> bool:
    """Return whether there is an uncompleted plan."""
    record = _record(course)
    return record is not None and _done(course, record["number"]) < record["plan"]["tokens"]


def learn(course: Course, until: float, stop: Wish, log: Log) -> Learned:
    """Train until the plan is completed or a moment comes; write the draft. Raises OSError, ValueError."""
    device.use_threads(course.threads)
    target = open_target(*course.target)
    shards = gather.there(course.folder, "heard")
    watched = [text for path in gather.there(course.folder, "watched") for text in heard.read(path)]
    if not shards or not watched:
        raise ValueError("no text was gathered yet")
    kept = _kept(course, target, shards)
    numbers = None if kept is None else numbers_of(kept, target.vocab)
    record = _record(course)
    complete = record is not None and _done(course, record["number"]) >= record["plan"]["tokens"]
    student = _begin(course, target, kept)
    if record is None or (complete and time.monotonic() < until):
        record = _next_round(course, record, student, shards, watched, numbers, until, log)
        complete = False
    number, plan = record["number"], Plan(**{**record["plan"], "lengths": ((0, 256),)})
    if number > 1 and not course.state_file(number).exists():
        student.load_state_dict(_weights(course.state_file(number - 1)))
    student = student.to(device.choose())
    if complete:
        student.load_state_dict(_weights(course.state_file(number)))
    else:
        complete = train(
            student,
            shards[: record["shards"]],
            watched,
            numbers,
            course.state_file(number),
            plan,
            log,
            stop=Until(until, stop),
            save_s=min(120.0, max(10.0, (until - time.monotonic()) / 4)),
            threads=course.threads,
            together=max(1, SHARDS_BYTES // max(1, max(path.stat().st_size for path in shards))),
        )
        course.state_file(number - 2).unlink(missing_ok=True)
    after = held_out(student, watched, numbers)[0][2]
    return Learned(
        write(course, target, student.cpu(), kept),
        complete,
        number,
        _done(course, number),
        record["before"],
        after,
    )


def _kept(course: Course, target: TargetFile, shards: list[Path]) -> NDArray[np.int64] | None:
    """Return the tokens that a head may guess, fixed when they are first asked for; None: all."""
    count = tokens_kept(target.vocab)
    if course.kind == "draft" or count == target.vocab:
        return None
    path = course.folder / "kept.npy"
    if not path.exists():
        with replacing(path) as aside, aside.open("wb") as file:
            np.save(file, most_said(shards, count, target.vocab))
    kept: NDArray[np.int64] = np.load(path)
    return kept


def tokens_kept(vocab: int) -> int:
    """Return how many tokens a head may guess: all of a small vocabulary, a quarter of a large one."""
    return vocab if vocab <= 16384 else max(12288, vocab // 4 // 32 * 32)


def _begin(course: Course, target: TargetFile, kept: NDArray[np.int64] | None) -> Student:
    torch.manual_seed(1)
    if course.kind == "eagle3":
        return start.begin(target, "eagle3", kept)
    return start.read_llama(open_target(course.begin_with)) if course.begin_with else start.small(target)


def _record(course: Course) -> Any:
    """Return the content of course.json; None if there is no plan yet."""
    try:
        return json.loads(course.plan_file.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None


def _done(course: Course, number: int) -> int:
    path = course.state_file(number)
    if not path.exists():
        return 0
    return int(torch.load(path, weights_only=True, map_location="cpu", mmap=True)["done"])


def _weights(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = torch.load(path, weights_only=True, map_location="cpu")["head"]
    return content


def _next_round(
    course: Course,
    record: Any,
    student: Student,
    shards: list[Path],
    watched: list[heard.Heard],
    numbers: NDArray[np.int64] | None,
    until: float,
    log: Log,
) -> Any:
    """Fix the plan of another round by this machine's speed of training, and write it down."""
    student = student.to(device.choose())
    if record is None:
        log(f"trying the present draft, and how fast it trains here; {minutes(until)}")
    before = record["before"] if record else held_out(student, watched, numbers)[0][2]
    micro = micro_of(student)
    rate = rate_of(student, shards, numbers, micro)
    heard_tokens = sum(text_tokens(path) for path in shards)
    wanted = min(rate * max(1.0, until - time.monotonic()) * SAFE, PASSES * heard_tokens)
    plan = planned(int(max(wanted, 4096)), micro, first=record is None and course.begin_with is None)
    if course.kind == "draft":
        plan = replace(plan, matrix_rate=plan.matrix_rate * 0.6, vector_rate=plan.vector_rate * 0.6)
    fixed = {
        "number": (record["number"] if record else 0) + 1,
        "plan": asdict(plan),
        "shards": len(shards),
        "before": before,
    }
    write_whole(course.plan_file, json.dumps(fixed, indent=1))
    student.cpu()
    return fixed


def write(course: Course, target: TargetFile, student: Student, kept: NDArray[np.int64] | None) -> Path:
    """Write the draft as a GGUF file, whole or not at all; return its path. Raises OSError."""
    made = course.folder / f"new-{course.kind}.gguf"
    name = course.target[0].stem
    size = f"{count_parameters(student) / 1e6:.0f}M"
    if isinstance(student, Llama):
        about = About(f"{name} draft", f"A draft for {name}, fine-tuned on its output", size, "1")
        write_draft(student, target, made, about)
        return made
    about = About(f"{name} EAGLE-3", f"An EAGLE-3 head for {name}, trained on its output", size, "1")
    all_ = np.arange(target.vocab) if kept is None else kept
    layers = taps(course, target)
    assert layers is not None  # a head reads some
    head_file.write_eagle3(student, target, made, about, layers, all_, output="Q8_0")
    return made
