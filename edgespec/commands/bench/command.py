"""`edgespec bench`: from flags to figures on the screen and in files."""

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgespec.commands import flags
from edgespec.commands.bench import report
from edgespec.commands.bench.about import about, heading
from edgespec.commands.flag_table import add_flags
from edgespec.commands.open_pair import open_pair
from edgespec.commands.output_file import check_writable, write_json
from edgespec.commands.request import request_for
from edgespec.commands.status_line import Show, status_line
from edgespec.commands.table import wrapped
from edgespec.engine.pair import Pair
from edgespec.errors import EngineError, SettingError
from edgespec.measure.figures import FEWEST_STEPS, summary
from edgespec.measure.in_turn import Measured, OnProgress, measure
from edgespec.measure.lines import OURS, PLAIN, Line, Mode, Unit, lines_for, parse_modes, units_for
from edgespec.measure.prompts import Prompt, built_in, fitting, read_prompts
from edgespec.measure.takers import WARM_UP_TOKENS, Asked, PairTaker
from edgespec.pairs.files import pair_name
from edgespec.pairs.store import note_speed
from edgespec.system.interrupt import interruptible
from edgespec.system.isolate import INTERRUPTED
from edgespec.system.other_programs import BUSY_CORES

DESCRIPTION = """Measures speculation and plain decoding in turn, on the same prompts and seeds: greedy, with
the model's own sampling, and with a user's seed. --grow 0.6B-F16 shows in about a minute what speculation
gains at the cost of a real model. The speed-up on a prompt is the ratio of decode speeds, first token
excluded; over several prompts it is their geometric mean, with a 95 % interval (Student's t on the
logarithms). The other figures are those of `edgespec run`."""
LONGEST_ANSWER = 64
SECONDS = 60.0
SWEEP_TAKES = 4.0  # times as long, by default
NO_TEMPLATE = "the model has no chat template: prompts were continued as they are, as with --raw"
SHOWN_EVERY_S = 10.0  # if there is no terminal
FLAGS = {
    "--prompts FILE": "your own prompts: FILE.jsonl has one object per line, with prompt, kind and raw, or "
    "as in Spec-Bench (category, turns); any other file is one prompt (default: 15 built-in prompts of 5 "
    "kinds)",
    "--raw": "continue the prompts as they are, without the chat template",
    "--modes LIST greedy,sampled,coupled": "greedy: temperature 0; sampled: the model's sampling, block "
    "verification, fixed random numbers; coupled: the model's sampling with a user's seed (default: all "
    "three)",
    "--repeat N 1": "times each prompt is answered (1)",
    "--seconds S": f"time limit ({SECONDS:.0f}; {SWEEP_TAKES:.0f} times that with --sweep)",
    "--sweep": "also measure every fixed draft length",
    "--json FILE": "write every figure, with machine, build, cost tables, texts and raw rounds",
}


@dataclass(frozen=True, slots=True)
class RunPlan:
    """The flags, as far as they are known before anything is loaded."""

    modes: tuple[Mode, ...]
    prompts: tuple[Prompt, ...]
    repeats: int
    seconds: float
    json: Path | None


def plan(arguments: argparse.Namespace) -> RunPlan:
    """Reads the flags. Raises SettingError for whatever would fail later."""
    if arguments.no_draft or arguments.drafter == "none" or arguments.draft_length == 0:
        raise SettingError(
            "bench compares speculation with plain decoding: leave out the flag that turns it off"
        )
    if arguments.max_tokens <= FEWEST_STEPS:
        raise SettingError(
            f"-n is {arguments.max_tokens}: measuring a speed needs {FEWEST_STEPS + 1} tokens or more"
        )
    if arguments.repeat < 1:
        raise SettingError(f"--repeat is {arguments.repeat}: it must be 1 or more")
    seconds = arguments.seconds
    if seconds is None:
        seconds = SECONDS * (SWEEP_TAKES if arguments.sweep else 1)
    if not seconds > 0:
        raise SettingError(f"--seconds is {seconds}: it must be more than 0")
    if arguments.seed is not None and arguments.seed < 0:
        raise SettingError(f"--seed is {arguments.seed}: here it must be 0 or more")
    modes = parse_modes(arguments.modes)
    if arguments.temperature == 0:
        modes = ("greedy",)  # the others would be the same
    prompts = built_in() if arguments.prompts is None else read_prompts(Path(arguments.prompts))
    json_file = Path(arguments.json) if arguments.json is not None else None
    if json_file:
        check_writable("--json", json_file)
    return RunPlan(modes, prompts, arguments.repeat, seconds, json_file)


def add(command: argparse.ArgumentParser) -> None:
    """Adds the flags that `bench` has besides those of the model, of sampling and of speculation."""
    group = command.add_argument_group("measuring")
    add_flags(group, FLAGS)
    flags.add_model(command)
    flags.add_sampling(command, longest=LONGEST_ANSWER)
    flags.add_speculation(command)


def run(arguments: argparse.Namespace) -> int:
    """Measures and prints the results; returns the exit code (130 after Ctrl+C, with the figures so far)."""
    request_for(arguments)  # refuses wrong values before anything is loaded
    wanted = plan(arguments)
    with open_pair(arguments, remember=False) as pair, interruptible() as interrupted:
        request = request_for(arguments, pair)
        seed = 1 if arguments.seed is None else arguments.seed
        asked = Asked(request.sampling, arguments.max_tokens, seed, request.stop, request.drafter)
        modes = wanted.modes if request.sampling.temperature > 0 else ("greedy",)
        prompts, tokens, left_out = _fitting(pair, wanted.prompts, asked, raw=arguments.raw)
        lines = lines_for(modes, sweep=arguments.sweep, draft_length=arguments.draft_length)
        units = units_for(prompts, lines, repeats=wanted.repeats, rng=np.random.default_rng(seed))
        ours = PairTaker(pair, asked, tokens, interrupted)
        began = time.monotonic()
        ours.warm_up(units[0])
        length = affordable(asked.max_tokens, wanted.seconds, time.monotonic() - began)
        ours.asked = replace(asked, max_tokens=length)
        with status_line(every_s=SHOWN_EVERY_S) as show:
            measured = measure(
                units,
                ours,
                budget_s=wanted.seconds,
                cancelled=interrupted,
                on_progress=_shown(show, len(units), wanted.seconds),
            )
        described = about(arguments, pair, ours.asked)
        template = pair.target.chat_template or arguments.raw
    _keep_speed(arguments, measured, modes, length)
    shorter = _shorter(length, wanted.seconds) if length < asked.max_tokens else ""
    notes = [left_out, shorter, "" if template else NO_TEMPLATE, _others_note(measured)]
    found = report.results(measured.samples, lines)
    remarks = [line for note in (*notes, *_cut_short(measured)) for line in wrapped(note, "* ")]
    blank = [""] if remarks else []
    print("\n".join([*heading(measured, described), *report.tables(found), *blank, *remarks]))
    if wanted.json:
        write_json(wanted.json, report.document(found, measured, described))
    if measured.samples or measured.cancelled:
        return INTERRUPTED if measured.cancelled else 0
    raise EngineError("nothing was measured: allow more --seconds")


def _keep_speed(
    arguments: argparse.Namespace, measured: Measured, modes: tuple[Mode, ...], length: int
) -> None:
    """Saves for `edgespec list` how fast an installed pair was, with the model's own sampling if measured."""
    name = pair_name(arguments)
    mode = "sampled" if "sampled" in modes else modes[0]
    ours, plain = (summary(measured.samples, mode, line, PLAIN) for line in (OURS, PLAIN))
    if name and ours.n and arguments.draft_length is None and arguments.drafter == "auto":
        tokens = ours.n * length
        note_speed(name, tokens=tokens, tok_per_s=ours.tok_per_s, plain_tok_per_s=plain.tok_per_s)


def _fitting(
    pair: Pair, prompts: tuple[Prompt, ...], asked: Asked, *, raw: bool
) -> tuple[list[Prompt], dict[str, NDArray[np.int32]], str]:
    """Returns the prompts that the context holds with an answer, their tokens, and a note on the others."""
    found, tokens = fitting(pair, prompts, asked.max_tokens, raw=raw)
    if not found:
        raise SettingError(
            f"no prompt fits a context of {pair.n_ctx:,} tokens with an answer of {asked.max_tokens}: "
            "give a larger --ctx, a smaller -n, or shorter prompts"
        )
    gone = len(prompts) - len(found)
    note = (
        f"{gone} of {len(prompts)} prompts do not fit the context of {pair.n_ctx:,} tokens and are left out"
    )
    return found, tokens, note if gone else ""


def _others_note(measured: Measured) -> str:
    """Says how busy others kept the machine, if that may have changed the figures."""
    during = sum(measured.others) / max(1, len(measured.others))
    if during < BUSY_CORES:
        return ""
    worst = max(measured.others)
    return f"other programs kept {during:.1f} cores busy (at worst {worst:.1f}): take these figures with care"


def affordable(most: int, budget_s: float, warm_up_s: float) -> int:
    """Returns how many tokens answers may have, so that the first comparison ends within the budget.

    warm_up_s: what answers of WARM_UP_TOKENS to the same prompt took, on every line.
    """
    if warm_up_s <= 0:
        return most
    return min(most, max(FEWEST_STEPS + 1, int(WARM_UP_TOKENS * budget_s / warm_up_s)))


def _shorter(length: int, seconds: float) -> str:
    return (
        f"answers had {length} tokens at most, so that one comparison ended within --seconds {seconds:g}: "
        "more time gives longer answers, and better figures"
    )


def _cut_short(measured: Measured) -> Iterator[str]:
    """Yields why not all was measured."""
    if measured.cancelled:
        yield "stopped by Ctrl+C: these are the figures so far"
    if measured.out_of_time and measured.finished:
        whole = measured.seconds / measured.finished * measured.planned * 1.1
        yield f"the time was up: --seconds {whole:.0f} would do all {measured.planned} comparisons"


def _shown(show: Show, total: int, budget: float) -> OnProgress:
    """Returns what shows units and their lines as they begin."""
    started = time.monotonic()

    def shown(unit: Unit, way: Line) -> None:
        spent = f"{time.monotonic() - started:.0f} s of {budget:.0f} at most"
        show(f"{unit.number + 1}/{total}  {spent}  {unit.mode}  {unit.prompt.kind[:16]}  {way.name}")

    return shown
