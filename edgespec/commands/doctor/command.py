"""`edgespec doctor`: one check after the other, each shown as soon as it is done."""

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import replace

from edgespec.client import api_key
from edgespec.client.client import Client
from edgespec.commands import flags
from edgespec.commands.doctor import findings, last_requests, machine_checks, pair_checks
from edgespec.commands.doctor.findings import Finding
from edgespec.commands.flag_table import add_flags
from edgespec.commands.loading import pair_settings
from edgespec.commands.status_line import Show, status_line
from edgespec.errors import EdgeSpecError, SettingError
from edgespec.memory.oracle import llama_build
from edgespec.pairs.files import pair_files
from edgespec.system.cards import cards
from edgespec.system.cores import performance_cores
from edgespec.system.other_programs import Others
from edgespec.system.self_test import SelfTest
from edgespec.system.self_test import run as run_self_test

DESCRIPTION = """Checks the processor, graphics cards and the build of llama.cpp, threads and memory, the
pair, whether speculation is on and makes it faster here (a measurement of 10 seconds), running servers, and
the hub settings. It says what to do about each problem, or which page of docs/ to read. It changes nothing
and uses no network."""
EPILOG = """Exit code 0: no problem found. 1: a problem found. 2: a wrong flag."""
FLAGS = {
    "--json": "print one JSON object, for programs",
    "--no-measure": "skip the measurement",
    "--seconds S 10": "time limit of the measurement, loading excluded (10)",
    "--endpoint URL": "show only the last ten requests of a running server: where the tokens of their "
    "prompts were, and what broke a prefix",
    **api_key.FLAGS,
}
WATCHED_S = 0.5  # how long others are watched before we keep the machine busy ourselves


def add(command: argparse.ArgumentParser) -> None:
    """Adds the flags that `doctor` has besides those of the model."""
    add_flags(command.add_argument_group("doctor"), FLAGS)
    command.set_defaults(drafter="auto")
    flags.add_model(command, media=True)


def run(arguments: argparse.Namespace) -> int:
    """Runs the checks; returns 1 if something is wrong, else 0."""
    if arguments.endpoint:
        client = Client.at(arguments.endpoint, api_key.api_key(arguments))
        requests = client.last_requests()
        shown = {"requests": requests} if arguments.json else last_requests.lines(client.where, requests)
        print(json.dumps(shown, indent=1) if arguments.json else "\n".join(shown))
        return 0
    if not 0 < arguments.seconds <= 600:
        raise SettingError(f"--seconds is {arguments.seconds}: it must be more than 0 and at most 600")
    pair_settings(arguments)  # refuses wrong values before anything is checked
    found: list[Finding] = []
    with status_line() as show:
        for part in _checks(arguments, show):
            found += part
            show(f"looked at {part[-1].topic} ..." if part else "")
    print(findings.document(found) if arguments.json else "\n".join(findings.lines(found)))
    return int(findings.n_problems(found) > 0)


def _checks(arguments: argparse.Namespace, show: Show) -> Iterator[list[Finding]]:
    settings = replace(pair_settings(arguments), remember=False)
    others = Others()
    time.sleep(WATCHED_S)
    threads = machine_checks.threads(arguments.threads, performance_cores(), busy=others.cores())
    build = llama_build()
    yield [machine_checks.program(), machine_checks.build(build)]
    if "devices" in build:
        yield [machine_checks.arithmetic(run_self_test() or SelfTest())]
    yield machine_checks.graphics(cards(), build)
    yield [*threads, machine_checks.memory()]
    yield (machines := machine_checks.machines(settings.rpc, build))
    try:
        target, draft = pair_files(arguments)
        found = pair_checks.pair(target, draft) + pair_checks.projector(target, settings.mmproj)
    except EdgeSpecError as error:
        remedy = f"name other files, or download them again: {pair_checks.OWN}"
        found = [Finding("pair", "problem", str(error), remedy)]
    yield found
    sound = "devices" in build and not findings.n_problems(machines + found)
    if sound:  # what is broken is not loaded
        yield (found := pair_checks.fit(target, draft, settings))
    if sound and not (arguments.no_measure or findings.n_problems(found)):
        show("measuring speculation ...")
        yield pair_checks.speculation(target, draft, settings, arguments.seconds)
    yield [*machine_checks.endpoint(), machine_checks.hub(), machine_checks.folders()]
