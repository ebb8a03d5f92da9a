"""`edgespec verify`: four checks, and their results.

They share the time by measured speed: batches against single tokens, greedy texts, texts of a seed, and the
distribution of sampled tokens. The report names what there was no time for; the verdict is then undecided;
nothing is left out silently.
"""

import argparse
import json
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from edgespec.commands import flags
from edgespec.commands.flag_table import add_flags
from edgespec.commands.open_pair import open_pair
from edgespec.commands.output_file import check_writable, write_json
from edgespec.commands.status_line import QUIET_S, Show, status_line
from edgespec.commands.verify.budget import (
    LEAST_TOKENS,
    Deadline,
    Progress,
    fitting_prompts,
    measured,
    text_plan,
)
from edgespec.commands.verify.report import Report
from edgespec.commands.verify.samples import ChiSquare, check_distribution, sampling_for, telling_prompt
from edgespec.commands.verify.texts import GREEDY, SEEDED, Way, check_batches, compare_texts
from edgespec.engine.pair import Pair
from edgespec.errors import SettingError
from edgespec.measure.prompts import built_in
from edgespec.system.cores import threads_wanted
from edgespec.system.interrupt import interruptible
from edgespec.system.isolate import INTERRUPTED

DESCRIPTION = """Compares greedy and seeded texts with and without a draft, token by token; tests sampled
tokens against the model's own distribution (chi-square, false alarms in 1 of 10,000 runs); compares batches
with single tokens. Ends with a verdict. Exit code 0: lossless. 1: not lossless, or an error. 3: not
everything could be checked."""
SECONDS = 120.0
FALSE_ALARM = 1e-4  # of one run, over all its chi-square tests
SHARES = {"batches": 0.12, "greedy": 0.35, "seeded": 0.45}  # each of the time that is left by then


def run_checks(
    pair: Pair,
    *,
    rng_seed: int,
    seconds: float = SECONDS,
    prompts: int = 15,
    samples: int = 10_000,
    clock: Callable[[], float] = time.perf_counter,
    started: float | None = None,
    cancelled: Callable[[], bool] = lambda: False,
    on_progress: Progress = lambda what, done, total: None,
) -> Report:
    """Does all checks, or those before a cancellation, as far as there is time.

    seconds: for everything. prompts, samples: how many at most. started: when the time began, on `clock`.
    """
    started = clock() if started is None else started
    end = started + 0.97 * seconds
    chosen = fitting_prompts(pair, LEAST_TOKENS)[:prompts]
    on_progress("speed", 0, 1)
    pair.costs()  # measured now, not in the middle of a text that may have to be repeated
    speed = measured(pair, chosen[0], clock)
    watch = Deadline(clock, end, end, cancelled, speed, on_progress)
    batches = tuple(check_batches(pair, watch.share(SHARES["batches"])))
    texts = {}
    for name, sampling in (("greedy", GREEDY), ("seeded", SEEDED)):
        own = watch.share(SHARES[name])
        n_tokens, each = text_plan(speed, chosen, own.left)
        compared = compare_texts(pair, chosen, own, sampling=sampling, n_tokens=n_tokens, each=each)
        texts[name] = tuple(compared)
    return Report(
        target=pair.target.path.name,
        draft=pair.draft.path.name if pair.draft else pair.draft_name,
        rng_seed=rng_seed,
        prompts=len(chosen),
        left_out=min(prompts, len(built_in())) - len(chosen),
        spread=speed.spread,
        greedy=texts["greedy"],
        seeded=texts["seeded"],
        fits=_fits(pair, samples, rng_seed, watch),
        batches=batches,
        byte_identical=pair.settings.byte_identical,
        seconds=clock() - started,
    )


def _fits(pair: Pair, samples: int, rng_seed: int, watch: Deadline) -> tuple[ChiSquare, ...]:
    """Tests the distribution under the draft model and under all drafters together; else under lookup."""
    ways = (Way("model", 2), Way("auto", 2)) if "draft" in pair.contexts else (Way("lookup", 2),)
    prompts, found = fitting_prompts(pair, LEAST_TOKENS), []
    for i, way in enumerate(ways):
        own = watch.share(0.55) if i + 1 < len(ways) else watch
        sampling = sampling_for(own)
        prompt = telling_prompt(pair, prompts, way, sampling, own.share(0.15))
        fit = check_distribution(
            pair,
            prompt,
            way,
            sampling,
            own,
            samples=samples,
            false_alarm=FALSE_ALARM / len(ways),
            rng=np.random.default_rng([rng_seed, i]),
        )
        found += [fit] if fit else []
    return tuple(found)


def add(command: argparse.ArgumentParser) -> None:
    """Adds the flags that `verify` has besides those of the model."""
    command.set_defaults(drafter="auto", draft_length=None)
    group = command.add_argument_group("verifying")
    add_flags(group, {f"--seconds S {SECONDS}": f"total time limit ({SECONDS:.0f})"})
    group.add_argument(
        "--json",
        nargs="?",
        const="-",
        metavar="FILE",
        help="write every figure to FILE; without FILE, print them",
    )
    add_flags(group, {"--rng-seed N": "repeat the random draws of an earlier run"})
    flags.add_model(command)


def run(arguments: argparse.Namespace) -> int:
    """Runs the checks and prints the report; returns the exit code (`DESCRIPTION`; 130: stopped)."""
    started = time.perf_counter()
    if not 1 <= arguments.seconds <= 86_400:
        raise SettingError(f"--seconds is {arguments.seconds:g}: it must be from 1 to 86400")
    if arguments.rng_seed is not None and arguments.rng_seed < 0:
        raise SettingError(f"--rng-seed is {arguments.rng_seed}: it must be 0 or more")
    file = Path(arguments.json) if arguments.json not in (None, "-") else None
    if file:
        check_writable("--json", file)
    rng_seed = arguments.rng_seed
    if rng_seed is None:
        rng_seed = int(np.random.default_rng().integers(10**6))
    if (
        arguments.threads is None
    ):  # else it may change between two texts, and where flash attention is on, digits
        arguments.threads = threads_wanted()
    with open_pair(arguments, remember=False) as pair, interruptible() as interrupted:
        with status_line(every_s=math.inf if arguments.json else QUIET_S) as show:
            report = run_checks(
                pair,
                rng_seed=rng_seed,
                seconds=arguments.seconds,
                started=started,
                cancelled=interrupted,
                on_progress=_shown(show, started, arguments.seconds),
            )
        if interrupted():
            print("edgespec: stopped, so nothing is decided", file=sys.stderr)
            return INTERRUPTED
    if arguments.json != "-":
        print("\n".join(report.lines()))
    if file:
        write_json(file, report.as_dict())
    elif arguments.json:
        print(json.dumps(report.as_dict()))
    return report.exit_code


def _shown(show: Show, started: float, seconds: float) -> Progress:
    """Returns what shows progress on a line."""

    def shown(what: str, done: int, total: int) -> None:
        spent = f"{time.perf_counter() - started:.0f} s of {seconds:.0f} s at most"
        show(f"{what}: {done:,} of {total:,}; {spent}")

    return shown
