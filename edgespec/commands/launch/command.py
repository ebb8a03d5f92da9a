"""`edgespec launch`: starts a coding agent with a pair of this machine, and says afterwards what it took."""

import argparse
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from edgespec.commands import flags
from edgespec.commands.flag_table import add_flags
from edgespec.commands.launch.programs import PROGRAMS, Place, Program, Setup
from edgespec.commands.launch.session import called_in, counts_of, in_words
from edgespec.commands.loading import pair_settings
from edgespec.errors import EdgeSpecError, SettingError
from edgespec.local.attach import Attached, Progress, WantedEngine, attach
from edgespec.local.engine_flags import engine_flags
from edgespec.pairs.files import pair_files
from edgespec.system import config
from edgespec_models.kept_file import write_whole

DESCRIPTION = (
    "Starts a coding agent on a pair of this machine: finds or starts a server, sets the agent's address, "
    "context and models for this run, and says at the end what it evaluated and what speculation gained. "
    "None of the agent's own files is changed. What follows -- goes to the agent."
)
FLAGS = {
    "--print": "only show what would be set, with a server at the usual address",
    "--anyway": "start the agent although the context or the model's tool calls look insufficient",
    "--slots N": "requests answered at the same time, such as an agent's own sub-agents (2)",
}
USUAL = "http://127.0.0.1:8080"
TRIES = 3  # calls that the model is asked for


def add(command: argparse.ArgumentParser) -> None:
    """Adds the flags."""
    command.add_argument("program", metavar="NAME", help=", ".join(PROGRAMS))
    add_flags(command, FLAGS)
    flags.add_model(command)
    command.set_defaults(drafter="auto", chat_template=None, chat_template_file=None)


def run(arguments: argparse.Namespace) -> int:
    """Runs the agent; returns its exit code. Raises EdgeSpecError for what keeps it from starting."""
    program = PROGRAMS.get(arguments.program)
    if program is None:
        raise SettingError(f"there is no agent {arguments.program!r} here: name one of {', '.join(PROGRAMS)}")
    slots = 2 if arguments.slots is None else arguments.slots
    if not 1 <= slots <= 64:
        raise SettingError(f"--slots is {slots}: it must be from 1 to 64")
    pair_settings(arguments)
    n_ctx = arguments.ctx or program.n_ctx
    folder = config.state_folder() / "launch" / arguments.program
    if arguments.print or program.setup(Place("", "", "", n_ctx, "")).show:
        _show(program, Place(USUAL, "none", "edgespec", n_ctx, str(folder)), arguments.behind)
        return 0
    executable = shutil.which(program.executable)
    if executable is None:
        raise SettingError(f"{program.executable} is not installed: {program.install}")
    target, draft = pair_files(arguments)
    extra = (
        *engine_flags(arguments),
        "--slots",
        str(slots),
        "--cache-disk",
        "8",
    )
    with attach(WantedEngine(target, draft, n_ctx, extra), _tell) as engine:
        _check(engine, arguments.program, program, n_ctx, anyway=arguments.anyway)
        server = engine.client.server
        place = Place(
            f"http://{server.host}:{server.port}", server.key or "none", engine.model, n_ctx, str(folder)
        )
        setup = program.setup(place)
        before = counts_of(engine.client)
        code = _run(executable, setup, folder, arguments.behind)
        if (after := counts_of(engine.client)) is not None and before is not None:
            sys.stderr.write(f"edgespec: {in_words(before, after)}\n")
        if fault := engine.fault():
            sys.stderr.write(f"edgespec: {fault}\n")
        return code


def _tell(progress: Progress) -> None:
    if progress.stage != "ready" and progress.fraction is None:
        sys.stderr.write(f"edgespec: {progress.text}\n")


def _check(engine: Attached, name: str, program: Program, n_ctx: int, *, anyway: bool) -> None:
    """Raises SettingError if the pair is not up to an agent, unless that is wanted anyway."""
    found = []
    has = min(n for n in (engine.info.n_ctx, engine.info.n_ctx_train, n_ctx) if n)
    if has < program.n_ctx:
        found.append(
            f"{engine.model} has {has:,} tokens of context, and {name} needs {program.n_ctx:,} at least"
        )
    if not (calls := called_in(engine.client, TRIES)):
        found.append(f"{engine.model} called no tool in {TRIES} tries")
    elif calls < TRIES:
        sys.stderr.write(f"edgespec: {engine.model} called a tool in {calls} of {TRIES} tries\n")
    if found and not anyway:
        raise SettingError(f"{'; '.join(found)}: choose another pair with --pair, or add --anyway")
    for sentence in found:
        sys.stderr.write(f"edgespec: {sentence}\n")


def _show(program: Program, place: Place, arguments: list[str]) -> None:
    """Prints what would be set."""
    setup = program.setup(place)
    if setup.show:
        print(f"{setup.show}\n\nThen: edgespec serve --alias {place.model} --ctx {place.n_ctx}")
        return
    for name, text in setup.files.items():
        print(f"# {Path(place.folder) / name}\n{text}")
    for name, value in setup.environment.items():
        print(f"export {name}={shlex.quote(value)}")
    print(shlex.join([program.executable, *setup.arguments, *arguments]))


def _run(executable: str, setup: Setup, folder: Path, arguments: list[str]) -> int:
    """Runs the program in this terminal, and returns its exit code. Ctrl+C is the program's."""
    try:
        for name, text in setup.files.items():
            write_whole(folder / name, text)
    except OSError as error:
        raise EdgeSpecError(f"{folder} cannot be written ({error}): make room, or check its owner") from None
    command = [executable, *setup.arguments, *arguments]
    process = subprocess.Popen(command, env={**os.environ, **setup.environment})
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:  # it got it, too, and decides
            continue
