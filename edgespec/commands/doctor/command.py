"""`edgespec doctor`: one check after the other, each shown as soon as it is done."""

import argparse
import sys
import time
from collections.abc import Iterator

from edgespec.commands import flags
from edgespec.commands.doctor import machine_checks, pair_checks, surroundings
from edgespec.commands.doctor.cards import cards
from edgespec.commands.doctor.findings import Finding, document, lines, problem, problems, verdict
from edgespec.commands.doctor.llama_child import ask
from edgespec.commands.doctor.speculation_check import speculation
from edgespec.commands.status_line import StatusLine
from edgespec.errors import EdgeSpecError, SettingError
from edgespec.pairs.files import pair_files, pair_settings
from edgespec.system.builds import here
from edgespec.system.isolate import INTERRUPTED
from edgespec.system.other_programs import Others
from edgespec.system.self_test import SelfTest
from edgespec.system.self_test import run as run_self_test

DESCRIPTION = """Checks the processor, graphics cards and the build of llama.cpp, threads and memory, the
pair, whether speculation is on and makes it faster here (a measurement of 10 seconds), running servers, and
the hub settings. It says how to fix each problem it finds. It changes nothing and uses no network."""
EPILOG = """Exit code 0: no problem found. 1: a problem found. 2: a wrong flag."""
WATCHED_S = 0.5  # how long others are watched before we keep the machine busy ourselves


def add(command: argparse.ArgumentParser) -> None:
    """Adds the flags that `doctor` has beside those of the model."""
    group = command.add_argument_group("doctor")
    group.add_argument("--json", action="store_true", help="print one JSON object, for programs")
    group.add_argument("--no-measure", action="store_true", help="skip the measurement")
    limit = "time limit of the measurement, loading excluded (10)"
    group.add_argument("--seconds", type=float, default=10.0, metavar="S", help=limit)
    command.set_defaults(drafter="auto")
    flags.add_model(command, media=True)


def run(arguments: argparse.Namespace) -> int:
    """Runs the checks; returns 1 if something is wrong, else 0."""
    if not 0 < arguments.seconds <= 600:
        raise SettingError(f"--seconds is {arguments.seconds}: it must be more than 0 and at most 600")
    pair_settings(arguments)  # refuses wrong values before anything is checked
    found: list[Finding] = []
    try:
        with StatusLine() as line:
            for findings in _checks(arguments):
                found += findings
                line.show(f"looked at {findings[-1].topic} ..." if findings else "")
    except KeyboardInterrupt:
        print("edgespec: stopped", file=sys.stderr)
        return INTERRUPTED
    if arguments.json:
        print(document(found))
    else:
        print("\n".join([*lines(found), "", verdict(found)]))
    return int(problems(found) > 0)


def _checks(arguments: argparse.Namespace) -> Iterator[list[Finding]]:
    settings = pair_settings(arguments)
    others = Others()
    time.sleep(WATCHED_S)
    busy = others.cores()
    there = cards()
    at = here(next((card.cuda for card in there if card.cuda), None))
    said = ask({"what": "build"}, timeout=60.0)
    yield machine_checks.program(at)
    yield machine_checks.build(said, at)
    if "devices" in said:
        yield machine_checks.arithmetic(run_self_test() or SelfTest(), at)
    yield machine_checks.graphics(there, said, at)
    yield machine_checks.threads(arguments.threads, busy=busy)
    yield machine_checks.memory()
    machines = machine_checks.others(settings.rpc, said, at)
    yield machines
    loads = "devices" in said and not problems(machines)
    yield from _of_the_pair(arguments, loads)
    yield surroundings.endpoint()
    yield surroundings.hub()
    yield surroundings.folders()


def _of_the_pair(arguments: argparse.Namespace, loads: bool) -> Iterator[list[Finding]]:
    """Checks the pair as far as it makes sense: what is broken is not measured."""
    settings = pair_settings(arguments, remember=False)
    try:
        target, draft = pair_files(arguments)
    except EdgeSpecError as error:
        yield [problem("pair", str(error), "see the sentence")]
        return
    found = pair_checks.pair(target, draft) + pair_checks.projector(target, settings.mmproj)
    yield found
    if not loads or problems(found):
        return
    found = pair_checks.fit(target, draft, settings)
    yield found
    if not arguments.no_measure and not problems(found):
        StatusLine().show("measuring speculation ...")
        yield speculation(target, draft, settings, arguments.seconds)
