"""The command line: the commands there are, and what runs them. Each one's flags and work are in its file."""

import argparse
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from edgespec import __version__
from edgespec.errors import SettingError
from edgespec.system import isolate

FILES = """Without a pair or --target, EdgeSpec uses the pair you pulled last; if there is none, the embedded
pair, a tiny model trained on Python's source and documentation."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command: its line in --help, and its module.

    The module has DESCRIPTION, perhaps EPILOG, `add(parser)` for all its flags and `run(arguments)`, which
    returns the exit code. It is imported only if the command was asked for.
    """

    help: str
    module: str  # in edgespec.commands
    child: bool = False  # it loads llama.cpp into its process, so that is a child process
    files: bool = False  # its --help says which model answers if none is named


COMMANDS = {
    "run": Command("answer one prompt", "run", child=True, files=True),
    "chat": Command("chat in the terminal", "chat", files=True),
    "demo": Command("show in a minute what speculation is for", "demo"),
    "serve": Command(
        "serve an OpenAI-style endpoint for editors, assistants and programs", "serve.command", files=True
    ),
    "launch": Command("start a coding agent on a pair of this machine", "launch.command", files=True),
    "pull": Command("download a target and a draft that fits it", "pull.command"),
    "list": Command("list the pairs on this machine", "pairs.list"),
    "show": Command("show everything known about a pair", "pairs.show"),
    "rm": Command("remove a pair and the files no other pair uses", "pairs.remove"),
    "import": Command("use GGUF files that are already on this machine", "pairs.import_files"),
    "plan": Command("estimate how fast pairs would run here, before you download them", "plan.command"),
    "bench": Command(
        "measure what speculation gains on this machine", "bench.command", child=True, files=True
    ),
    "verify": Command(
        "check on your own pair that the draft does not change the output",
        "verify.command",
        child=True,
        files=True,
    ),
    "distill": Command("train a draft for your own model on that model's output", "distill", child=True),
    "export": Command("print the command that runs a pair on another engine", "export"),
    "convert": Command("convert a model's weights to another number format", "convert"),
    "mcp": Command("list, add, remove, test and import servers of tools for the chat", "mcp"),
    "rpc": Command(
        "lend this machine to another one, which puts layers of its model on it", "rpc", child=True
    ),
    "doctor": Command(
        "find problems with the build, memory, pair, speculation or endpoint",
        "doctor.command",
        files=True,
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit code."""
    argv = list(sys.argv[1:] if argv is None else argv)
    if not argv:  # somebody's first try: show what there is
        parser_for(None)[0].print_help(sys.stderr)
        return SettingError.exit_code
    command = COMMANDS.get(argv[0])
    if command is None or not command.child:
        isolate.fill_closed_streams()
        return isolate.reporting(lambda: run_command(argv))
    if not isolate.isolated():
        return isolate.reporting(lambda: isolate.run_isolated(argv))
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # until text is made, Ctrl+C ends it even inside llama.cpp
    return isolate.serve_in_child(lambda: isolate.reporting(lambda: run_command(argv)))


def run_command(argv: Sequence[str]) -> int:
    """Runs one command in this process; returns its exit code. Raises SettingError, and what it raises."""
    arguments = parsed(argv)
    return int(_module(arguments.command).run(arguments))


def _module(name: str) -> Any:
    return import_module(f"edgespec.commands.{COMMANDS[name].module}")


def parsed(argv: Sequence[str]) -> argparse.Namespace:
    """Returns the flags; those of `serve` with its settings file. Raises SettingError."""
    parser, command = parser_for(argv[0] if argv else None)
    behind: Sequence[str] = ()  # for the program that is started
    if argv[:1] in (["launch"], ["mcp"]) and "--" in argv:
        argv, behind = argv[: argv.index("--")], argv[argv.index("--") + 1 :]
    arguments, unknown = parser.parse_known_args(argv)
    if unknown:
        command.error(_unknown(unknown, command))
    arguments.behind = list(behind)
    if arguments.command != "serve" or arguments.owned:
        return arguments
    from edgespec.commands.serve.settings_file import default_file, flags_in

    path = default_file() if arguments.config is None else Path(arguments.config)
    if path is None:
        return arguments
    named = (arguments.pair, arguments.target, arguments.draft, arguments.grow)
    from_file = flags_in(path, command, model=not any(named))
    arguments = parser.parse_args([argv[0], *from_file, *argv[1:]])
    arguments.config = str(path)
    arguments.read_again = partial(parsed, argv)
    return arguments


def _unknown(unknown: list[str], command: argparse.ArgumentParser) -> str:
    """Says what was not understood: a flag, if there is one, since what follows it may be its value."""
    flag = next((word.partition("=")[0] for word in unknown if word.startswith("-")), None)
    if flag is None:
        return f"unrecognized arguments: {' '.join(unknown)}"
    near = get_close_matches(flag, command._option_string_actions, n=1)
    return f"there is no flag {flag}" + (f": did you mean {near[0]}?" if near else "")


class _Parser(argparse.ArgumentParser):
    """Reports a mistake in one line, like every other error."""

    def error(self, message: str) -> NoReturn:
        self.exit(SettingError.exit_code, f"edgespec: {message}; see {self.prog} --help\n")


def parser_for(wanted: str | None) -> tuple[argparse.ArgumentParser, argparse.ArgumentParser]:
    """Returns the parser of the command line, and that of one command; it knows no other command's flags."""
    parser = _Parser(
        prog="edgespec",
        description="Speculative decoding for local GGUF models: a small draft guesses, your model decides.",
        epilog=FILES,
    )
    parser.add_argument("--version", action="version", version=f"edgespec {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    found: argparse.ArgumentParser = parser
    for name, command in COMMANDS.items():
        own = commands.add_parser(name, help=command.help)
        if name == wanted:
            module = _module(name)
            own.description = f"{module.DESCRIPTION} {FILES}" if command.files else module.DESCRIPTION
            own.epilog = getattr(module, "EPILOG", None)
            module.add(own)
            found = own
    return parser, found
