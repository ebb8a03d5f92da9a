"""`edgespec trim`: a draft with fewer tokens, kept if it is faster for its target on this machine.

The rows of logits are a large part of a small model's cost, and most tokens are hardly ever
guessed (FR-Spec, Zhao et al. 2025, arXiv 2502.14856). Leaving them out costs acceptance: so both drafts
answer the built-in prompts in turn, and their speeds decide.
"""

from __future__ import annotations

import argparse
import glob
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from edgespec.commands.in_turn import FEWEST, PATIENCE, endless, in_turn
from edgespec.commands.output_file import check_output
from edgespec.commands.status_line import StatusLine
from edgespec.errors import EdgeSpecError, ModelFileError, SettingError
from edgespec_models.kept_file import remove_left, replacing

if TYPE_CHECKING:
    from edgespec.commands.bench.figures import Ratio

DESCRIPTION = (
    "Writes a copy of a draft with a smaller vocabulary, lets both drafts answer the built-in prompts "
    "in turn, and keeps the copy only if it is faster for its target on this machine."
)
FEWEST_TOKENS = 512  # below which nothing is worth guessing
MOST_MINUTES = 24 * 60


@dataclass(frozen=True, slots=True)
class DraftContest:
    """How two drafts did on the same prompts."""

    step_s: tuple[float, float]  # seconds of a guess: the whole draft, the trimmed one
    accepted: tuple[float, float]  # acceptance rates
    speed: Ratio  # tok/s with the trimmed draft over tok/s with the whole one


def add(command: argparse.ArgumentParser) -> None:
    """Adds the flags."""
    command.add_argument("file", metavar="DRAFT", help="GGUF file of the draft")
    command.add_argument("--target", metavar="FILE", required=True, help="GGUF file of its target")
    command.add_argument(
        "--tokens", type=int, metavar="N", help="ordinary tokens to keep (default: a quarter of them)"
    )
    command.add_argument("-o", "--output", metavar="FILE", help="output file (default: beside the draft)")
    command.add_argument("--anyway", action="store_true", help="keep the result without measuring it")
    command.add_argument(
        "--minutes", type=float, default=10.0, metavar="N", help="approximate time limit for measuring (10)"
    )
    command.add_argument(
        "--threads", type=int, metavar="N", help="threads (default: one for each physical performance core)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Writes the draft, measures it, and keeps it if it pays; returns 1 if it does not."""
    from edgespec_models.shelf.sizes import size_text

    if not 0 < arguments.minutes <= MOST_MINUTES:
        raise SettingError(f"--minutes is {arguments.minutes:g}: it must be between 0 and {MOST_MINUTES}")
    draft, target = Path(arguments.file), Path(arguments.target)
    n, n_all, kept = _tokens_kept(draft, target, arguments.tokens)
    output = (
        Path(arguments.output) if arguments.output else draft.with_name(f"{draft.stem}-{n // 1000}k.gguf")
    )
    remove_left(output)
    check_output(output, draft.stat().st_size)
    try:
        with replacing(output) as aside, _removed_by_signals(aside):
            _write(draft, aside, kept)
            saved = f"{size_text(draft.stat().st_size)} to {size_text(aside.stat().st_size)}"
            print(f"{len(kept):,} of {n_all:,} tokens: {saved}", flush=True)
            if not (arguments.anyway or _pays(target, draft, aside, n, arguments)):
                raise _NotKeptError
    except _NotKeptError:
        print("not kept: not shown to be faster here (--anyway keeps it)")
        return 1
    print(f"kept as {output}")
    return 0


class _NotKeptError(Exception):
    """The trimmed draft does not pay."""


@contextmanager
def _removed_by_signals(aside: Path) -> Iterator[None]:
    """Ends the program at a signal, and the file with it: an exception raised inside a callback is lost."""

    def leave(number: int, _: object) -> NoReturn:
        for left in (aside, *aside.parent.glob(f"{glob.escape(aside.name)}.*")):
            with suppress(OSError):
                left.unlink()
        os._exit(128 + number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _tokens_kept(draft: Path, target: Path, wanted: int | None) -> tuple[int, int, list[int]]:
    """Returns how many ordinary tokens stay, how many tokens there are, and which stay.

    Raises SettingError, ModelFileError.
    """
    from edgespec_models.gguf.header import HeaderError, read_file
    from edgespec_models.gguf.trim import TOKENS, most_used, ordinary_tokens

    try:
        header = read_file(draft)
        read_file(target)
        tokens = header.metadata.get(TOKENS)
        n_all = len(tokens) if isinstance(tokens, list) else 0
        ordinary = ordinary_tokens(header)
        n = ordinary // 4 if wanted is None else wanted
        kept = most_used(header, max(n, 0))
    except HeaderError as error:
        raise ModelFileError(str(error)) from None
    if not FEWEST_TOKENS <= n or len(kept) >= n_all:
        raise SettingError(
            f"--tokens is {n:,}: keep {FEWEST_TOKENS} at least, and fewer than the {ordinary:,} ordinary "
            f"ones of {draft.name}"
        )
    return n, n_all, kept


def _write(draft: Path, aside: Path, kept: list[int]) -> None:
    from edgespec_models.gguf.trim import write_with_tokens

    try:
        write_with_tokens(draft, aside, kept)
    except OSError as error:
        raise EdgeSpecError(f"{aside.parent} cannot be written: {error.strerror or error}") from None


def _pays(target: Path, draft: Path, aside: Path, n: int, arguments: argparse.Namespace) -> bool:
    """Prints a trial's result; True if the trimmed draft is shown to be faster. Raises EdgeSpecError."""
    from edgespec_models.gguf.header import read_file
    from edgespec_models.shelf.pair_check import check_headers

    verdict = check_headers(read_file(target), read_file(aside))
    if not verdict.usable:
        raise SettingError(f"--tokens is {n:,}, and {verdict}: keep more tokens")
    found = _compare(target, draft, aside, arguments.threads, 60 * arguments.minutes)
    print("\n".join(_told(found)))
    return found.speed.low is not None and found.speed.low > 1


def _told(found: DraftContest) -> list[str]:
    """Returns the results, in lines for people."""
    before, after = found.step_s
    speed = found.speed
    interval = f" (95 %: {speed.low:.2f} to {speed.high:.2f})" if speed.low and speed.high else ""
    return [
        f"a guess: {before * 1000:.2f} ms to {after * 1000:.2f} ms",
        f"accepted: {found.accepted[0]:.2f} to {found.accepted[1]:.2f}",
        f"speed: {speed.value:.2f} times{interval}, over {speed.n} prompts",
    ]


def _compare(
    target: Path, whole: Path, part: Path, threads: int | None, seconds: float, length: int | None = None
) -> DraftContest:
    """Has both drafts answer the same prompts in turn, greedy. length: None is what pays, round by round."""
    import edgespec
    from edgespec.commands.bench.figures import combine
    from edgespec.commands.prompts import built_in, by_kind, tokenize

    settings = edgespec.PairSettings(remember=False, threads=threads)
    line = StatusLine()
    line.show("loading both drafts ...")
    try:
        with edgespec.load(target, whole, settings) as one, edgespec.load(target, part, settings) as other:
            pairs = (one, other)
            line.show("measuring the cost of guesses ...")
            steps = [pair.costs().draft.seconds(1) for pair in pairs]
            prompts = [prompt for row in by_kind(built_in()) for prompt in row]
            tokens = tokenize(one, prompts)
            lines = [(pair, endless(pair, "model", length)) for pair in pairs]
            asked = [tokens[prompt.name].tolist() for prompt in prompts]
            found = in_turn(lines, asked, seconds, line.show)
    finally:
        line.clear()
    if len(found) < FEWEST:
        raise EdgeSpecError(
            f"in {PATIENCE * seconds / 60:.0f} minutes both drafts answered {len(found)} prompts that count, "
            f"and a verdict rests on {FEWEST}: nothing is kept; give it more --minutes, or a calmer machine"
        )
    drafted = [sum(figures[i].drafted for figures in found) for i in (0, 1)]
    if not all(drafted):
        raise EdgeSpecError(
            f"guesses of neither draft make {target.name} faster on this machine: nothing is kept"
        )
    rates = [sum(figures[i].accepted for figures in found) / drafted[i] for i in (0, 1)]
    ratio = combine([(str(n), (b.tok_per_s or 0) / (a.tok_per_s or 1)) for n, (a, b) in enumerate(found)])
    assert ratio is not None  # there are some, and all have a speed
    return DraftContest((steps[0], steps[1]), (rates[0], rates[1]), ratio)
