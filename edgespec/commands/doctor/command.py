"""`edgespec doctor`: one check after the other, each told as soon as it is known."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator

from edgespec.commands.bench.machine import Others
from edgespec.commands.doctor import machine_checks, pair_checks, report, surroundings
from edgespec.commands.doctor.asking import ask
from edgespec.commands.doctor.cards import cards
from edgespec.commands.doctor.findings import Finding, problem
from edgespec.commands.doctor.speculation_check import speculation
from edgespec.commands.status_line import StatusLine
from edgespec.errors import EdgeSpecError, SettingError
from edgespec.pairs.files import pair_files, pair_settings
from edgespec.system.builds import here
from edgespec.system.isolate import INTERRUPTED
from edgespec.system.self_test import SelfTest
from edgespec.system.self_test import run as run_self_test

WATCHED_S = 0.5  # how long others are watched before we keep the machine busy ourselves


def doctor(arguments: argparse.Namespace) -> int:
    """Runs the checks; returns 1 where something is wrong, else 0."""
    if not 0 < arguments.seconds <= 600:
        raise SettingError(f"--seconds is {arguments.seconds}: it must be more than 0 and at most 600")
    pair_settings(arguments)  # nonsense is refused before anything is looked at
    found: list[Finding] = []
    try:
        for findings in _checks(arguments):
            found += findings
            StatusLine().show(f"looked at {findings[-1].topic} ..." if findings else "")
    except KeyboardInterrupt:
        StatusLine().clear()
        print("edgespec: stopped", file=sys.stderr)
        return INTERRUPTED
    StatusLine().clear()
    if arguments.json:
        print(report.document(found))
    else:
        print("\n".join([*report.lines(found), "", report.verdict(found)]))
    return int(any(finding.status == "problem" for finding in found))


def _checks(arguments: argparse.Namespace) -> Iterator[list[Finding]]:
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
    loads = "devices" in said
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
    found = pair_checks.pair(target, draft)
    yield found
    if not loads or any(finding.status == "problem" for finding in found):
        return
    found = pair_checks.fit(target, draft, settings)
    yield found
    if not arguments.no_measure and not any(finding.status == "problem" for finding in found):
        StatusLine().show("measuring speculation ...")
        yield speculation(target, draft, settings, arguments.seconds)
