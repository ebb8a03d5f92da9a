"""`edgespec trim`: a draft with fewer tokens, kept where it is faster for its target on this machine.

The rows of logits that a small model makes are a large part of its cost, and most tokens are hardly ever
guessed (FR-Spec, Zhao et al. 2025, arXiv 2502.14856). What is left out costs acceptance: so both drafts
answer the built-in prompts in turn, and their speeds decide.
"""

from __future__ import annotations

import argparse
import math
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from edgespec.commands.status_line import StatusLine
from edgespec.errors import EdgeSpecError, ModelFileError, SettingError

if TYPE_CHECKING:
    from edgespec.commands.bench.figures import Ratio

DESCRIPTION = (
    "Writes a copy of a draft with a smaller vocabulary, and keeps it only if it is faster for its target "
    "here: both drafts answer the built-in prompts in turn."
)
FEWEST = 512  # tokens below which nothing is worth guessing
SPARE_DISK = 64 << 20
TOKENS = 64  # of an answer


@dataclass(frozen=True, slots=True)
class Trial:
    """How two drafts did on the same prompts."""

    step_s: tuple[float, float]  # seconds of a guess: the whole draft, the trimmed one
    accepted: tuple[float, float]  # acceptance rates
    speed: Ratio  # tok/s with the trimmed draft over tok/s with the whole one


def add(command: argparse.ArgumentParser) -> None:
    """Adds the flags."""
    command.add_argument("file", metavar="DRAFT", help="GGUF file of the draft")
    command.add_argument("--target", metavar="FILE", required=True, help="GGUF file that it guesses for")
    command.add_argument(
        "--tokens", type=int, metavar="N", help="ordinary tokens to keep (default: a quarter of them)"
    )
    command.add_argument("-o", "--output", metavar="FILE", help="where to (default: beside the draft)")
    command.add_argument(
        "--anyway", action="store_true", help="keep the result without measuring whether it pays"
    )
    command.add_argument("--threads", type=int, metavar="N", help="default: the physical performance cores")


def run(arguments: argparse.Namespace) -> int:
    """Writes the draft, measures it, and keeps it where it pays; returns 1 where it does not."""
    from edgespec_models.gguf.header import HeaderError, read_file
    from edgespec_models.gguf.trim import TOKENS, most_used, write_with_tokens
    from edgespec_models.shelf.pair_check import check_headers
    from edgespec_models.shelf.sizes import size_text

    draft, target = Path(arguments.file), Path(arguments.target)
    try:
        header = read_file(draft)
        read_file(target)
        tokens = header.metadata.get(TOKENS)
        n_all = len(tokens) if isinstance(tokens, list) else 0
        n = n_all // 4 if arguments.tokens is None else arguments.tokens
        kept = most_used(header, max(n, 0))
    except HeaderError as error:
        raise ModelFileError(str(error)) from None
    if not FEWEST <= n or len(kept) >= n_all:
        raise SettingError(
            f"--tokens is {n:,}: keep {FEWEST} at least, and fewer than the {n_all:,} there are"
        )
    output = (
        Path(arguments.output) if arguments.output else draft.with_name(f"{draft.stem}-{n // 1000}k.gguf")
    )
    _check_output(output, draft)
    try:
        write_with_tokens(draft, output, kept)
    except OSError as error:
        raise EdgeSpecError(f"{output} cannot be written: {error.strerror or error}") from None
    saved = f"{size_text(draft.stat().st_size)} to {size_text(output.stat().st_size)}"
    print(f"{len(kept):,} of {n_all:,} tokens: {saved}")
    if arguments.anyway:
        print(f"kept as {output}")
        return 0
    worth = False
    try:
        verdict = check_headers(read_file(target), read_file(output))
        if not verdict.usable:
            raise SettingError(f"--tokens is {n:,}, and {verdict}: keep more tokens")
        found = _compare(target, draft, output, arguments.threads)
        worth = found.speed.low is not None and found.speed.low > 1
    finally:
        if not worth:
            output.unlink(missing_ok=True)
    print("\n".join(_told(found)))
    print(f"kept as {output}" if worth else "not kept: it is not shown to be faster here (--anyway keeps it)")
    return 0 if worth else 1


def _check_output(output: Path, draft: Path) -> None:
    if output.exists():
        raise SettingError(f"{output} is there already: remove it, or name another file with -o")
    if not output.parent.is_dir():
        raise SettingError(f"-o {output}: there is no folder {output.parent}")
    needed, free = draft.stat().st_size, shutil.disk_usage(output.parent).free
    if needed + SPARE_DISK > free:
        raise SettingError(
            f"{output.parent} has {free >> 20:,} MiB free, and {needed >> 20:,} are needed: make room"
        )


def _told(found: Trial) -> list[str]:
    """Returns what was found, in lines for people."""
    before, after = found.step_s
    speed = found.speed
    interval = f" (95 %: {speed.low:.2f} to {speed.high:.2f})" if speed.low and speed.high else ""
    return [
        f"a guess: {before * 1000:.2f} ms to {after * 1000:.2f} ms",
        f"accepted: {found.accepted[0]:.2f} to {found.accepted[1]:.2f}",
        f"speed: {speed.value:.2f} times{interval}, over {speed.n} prompts",
    ]


def _compare(target: Path, whole: Path, part: Path, threads: int | None, length: int | None = None) -> Trial:
    """Has both drafts answer the same prompts in turn, greedy. length: None is what pays, round by round."""
    import edgespec
    from edgespec.commands.bench.figures import combine
    from edgespec.commands.prompts import built_in

    settings = edgespec.PairSettings(remember=False, threads=threads)
    line, found = StatusLine(), []
    line.show("loading ...")
    with edgespec.load(target, whole, settings) as one, edgespec.load(target, part, settings) as other:
        pairs = (one, other)
        going_on = {
            token: -math.inf for token in one.target.end_tokens
        }  # so that all answers have one length
        sampling = edgespec.Sampling(temperature=0, logit_bias=going_on)
        request = edgespec.Request(max_tokens=TOKENS, sampling=sampling, drafter="model", draft_length=length)
        steps = [pair.costs().draft.seconds(1) for pair in pairs]
        prompts = built_in()
        try:
            for n, prompt in enumerate(prompts):
                line.show(f"prompt {n + 1} of {len(prompts)} ...")
                order = -1 if n % 2 else 1
                said = [edgespec.generate(pair, prompt.text, request).figures for pair in pairs[::order]]
                found.append(said[::order])
        finally:
            line.clear()
    drafted = [sum(of[i].drafted for of in found) for i in (0, 1)]
    if not all(drafted):
        raise EdgeSpecError(
            f"no guesses of either draft pay for {target.name} on this machine: nothing is kept"
        )
    rates = [sum(of[i].accepted for of in found) / drafted[i] for i in (0, 1)]
    speeds = [
        (prompt.name, b.tok_per_s / a.tok_per_s)
        for prompt, (a, b) in zip(prompts, found, strict=True)
        if a.tok_per_s and b.tok_per_s
    ]
    ratio = combine(speeds)
    assert ratio is not None  # end tokens are banned: every answer has a speed
    return Trial((steps[0], steps[1]), (rates[0], rates[1]), ratio)
