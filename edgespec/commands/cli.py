"""The command line: what `edgespec` understands. Commands live in files of their own."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from edgespec import __version__
from edgespec.commands import flags, trim
from edgespec.commands.bench import arguments as bench_arguments
from edgespec.commands.doctor import arguments as doctor_arguments
from edgespec.commands.pairs import arguments as installed_arguments
from edgespec.commands.plan import arguments as plan_arguments
from edgespec.commands.pull import arguments as pull_arguments
from edgespec.commands.serve import arguments as serve_arguments
from edgespec.commands.verify import arguments as verify_arguments
from edgespec.errors import SettingError
from edgespec.system import config, isolate

FILES = """Where no pair and no --target is named, the pair pulled last answers; where none was pulled, the
embedded one, a tiny model of Python and its documentation."""
DESCRIBED = {
    "bench": bench_arguments,
    "verify": verify_arguments,
    "plan": plan_arguments,
    "doctor": doctor_arguments,
    "serve": serve_arguments,
    "pull": pull_arguments,
    "trim": trim,
}  # commands that have a module of flags, in the order of --help


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit code."""
    argv = list(sys.argv[1:] if argv is None else argv)
    if not argv:  # somebody's first try: show what there is
        _parser().print_help(sys.stderr)
        return SettingError.exit_code
    try:
        arguments = _parsed(argv)
    except SettingError as error:
        print(f"edgespec: {error}", file=sys.stderr)
        return error.exit_code
    if arguments.command in ("pull", *installed_arguments.HELP):  # these need no llama.cpp
        return isolate.told(lambda: _command(arguments))
    if arguments.command in ("chat", "serve", "doctor", "plan"):  # a process of its own loads llama.cpp there
        isolate.fill_closed_streams()
        return isolate.told(lambda: _command(arguments))
    if not isolate.isolated():
        return isolate.told(lambda: isolate.run_isolated(argv))
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # until text is made, Ctrl+C ends it even inside llama.cpp
    return isolate.serve_in_child(lambda: isolate.told(lambda: _command(arguments)))


def _parsed(argv: Sequence[str]) -> argparse.Namespace:
    """Returns the flags; those of `serve` with what its settings file says. Raises SettingError."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    if arguments.command != "serve" or arguments.owned:
        return arguments
    from edgespec.commands.serve.settings_file import default_file, flags_in

    path = default_file() if arguments.config is None else Path(arguments.config)
    if path is None:
        return arguments
    named = (arguments.pair, arguments.target, arguments.draft, arguments.grow)
    from_file = flags_in(path, parser.serve, model=not any(named))
    arguments = parser.parse_args([argv[0], *from_file, *argv[1:]])
    arguments.config = str(path)
    return arguments


def _command(arguments: argparse.Namespace) -> int:
    if arguments.command == "run":
        from edgespec.commands.run import run

        return run(arguments)
    if arguments.command == "bench":
        from edgespec.commands.bench.command import bench

        return bench(arguments)
    if arguments.command == "serve":
        from edgespec.commands.serve.command import serve

        return serve(arguments)
    if arguments.command == "pull":
        from edgespec.commands.pull.command import pull

        return pull(arguments)
    if arguments.command in installed_arguments.HELP:
        from edgespec.commands.pairs.command import installed

        return installed(arguments)
    if arguments.command == "doctor":
        from edgespec.commands.doctor.command import doctor

        return doctor(arguments)
    if arguments.command == "plan":
        from edgespec.commands.plan.command import plan

        return plan(arguments)
    if arguments.command == "trim":
        return trim.trim(arguments)
    if arguments.command == "verify":
        from edgespec.commands.verify.command import verify

        return verify(arguments)
    return _chat(arguments)


def _chat(arguments: argparse.Namespace) -> int:
    """Opens a chat, once flags about the model have been looked at: a running engine would not say a word."""
    from edgespec.client.state_file import digest
    from edgespec.pairs.files import chat_template, pair_files, pair_settings
    from edgespec_tui import launch

    pair_settings(arguments)
    template = chat_template(arguments)
    arguments.template = digest(template) if template else ""
    names = (arguments.target, arguments.draft, arguments.pair, arguments.grow, config.default_target())
    if not arguments.endpoint and any(name is not None for name in names):
        target, draft = pair_files(arguments)
        arguments.target, arguments.draft = str(target), str(draft) if draft else None
        arguments.pair = arguments.grow = None
    return launch.chat(arguments)


class _Parser(argparse.ArgumentParser):
    """Tells a mistake in one line, as every other error is told."""

    serve: argparse.ArgumentParser  # the command of that name

    def error(self, message: str) -> NoReturn:
        self.exit(SettingError.exit_code, f"edgespec: {message}; {self.prog} --help lists what there is\n")


def _parser() -> _Parser:
    parser = _Parser(
        prog="edgespec",
        description="Runs a local model, sooner: a small draft guesses, the target decides.",
        epilog=FILES,
    )
    parser.add_argument("--version", action="version", version=f"edgespec {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    run = commands.add_parser("run", help="answer one prompt", description="Answers one prompt. " + FILES)
    _add_run(run)
    chat = commands.add_parser(
        "chat", help="talk, in the terminal", description="A conversation in the terminal. " + FILES
    )
    _add_chat(chat)
    for command in (run, chat):
        command.add_argument("--system", metavar="TEXT", help="system prompt")
        command.add_argument("-q", "--quiet", action="store_true", help="no statistics")
        flags.add_model(command)
        flags.add_sampling(command, longest=512 if command is run else None)
        flags.add_speculation(command)
        flags.add_template(command)
    for name, about in DESCRIBED.items():
        runs_a_model = name not in ("plan", "pull", "trim")
        command = commands.add_parser(
            name,
            help=about.HELP,
            description=about.DESCRIPTION + (" " + FILES if runs_a_model else ""),
            epilog=getattr(about, "EPILOG", None),
        )
        about.add(command)
        if runs_a_model:
            flags.add_model(command, pair_flag=name != "serve")
        if name == "serve":
            flags.add_template(command)
            parser.serve = command
        if name == "bench":
            flags.add_sampling(command, longest=bench_arguments.LONGEST_ANSWER)
            flags.add_speculation(command)
    for name, text in installed_arguments.HELP.items():
        command = commands.add_parser(name, help=text, description=installed_arguments.DESCRIPTION[name])
        installed_arguments.add(name, command)
    return parser


def _add_run(command: argparse.ArgumentParser) -> None:
    command.add_argument("prompt", nargs="?", help="what to say; - or nothing reads it from standard input")
    command.add_argument(
        "--raw", action="store_true", help="continue the prompt as it stands, without the chat template"
    )
    command.add_argument("--json", action="store_true", help="print one JSON object with text and figures")
    form = command.add_argument_group("form of the answer").add_mutually_exclusive_group()
    form.add_argument("--json-schema", metavar="FILE", help="the answer is JSON that fits this schema")
    form.add_argument("--grammar", metavar="FILE", help="the answer keeps to this grammar (GBNF or Lark)")
    form.add_argument("--regex", metavar="R", help="the whole answer matches this regular expression")


def _add_chat(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--plain",
        action="store_true",
        help="line by line, without a screen; so it is where there is no terminal",
    )
    command.add_argument(
        "-p",
        "--prompt",
        metavar="TEXT",
        help="answer this and end, writing nothing but the answer; - reads it from standard input",
    )
    command.add_argument(
        "-c",
        "--continue",
        "--session",
        dest="resume",
        nargs="?",
        const="",
        metavar="CHAT",
        help="go on with a chat: the last one, or by its title or name",
    )
    command.add_argument(
        "--list", nargs="?", const="", metavar="WORDS", help="list the chats, or those with these words"
    )
    command.add_argument("--no-save", action="store_true", help="keep this chat in no file")
    group = command.add_argument_group("another server")
    group.add_argument(
        "--endpoint", metavar="URL", help="talk to any OpenAI-style server, as http://HOST:8000/v1"
    )
    group.add_argument(
        "--api-key", metavar="KEY", help="its key (or EDGESPEC_API_KEY); - asks for it on the terminal"
    )
    group.add_argument("--api-key-file", metavar="FILE", help="a file that holds its key")
