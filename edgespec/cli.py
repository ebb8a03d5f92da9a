"""The command line: what `edgespec` understands. Commands live in files of their own."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

from edgespec import __version__, config, isolate
from edgespec.bench import arguments as bench_arguments
from edgespec.doctor import arguments as doctor_arguments
from edgespec.errors import SettingError
from edgespec.installed import arguments as installed_arguments
from edgespec.plan import arguments as plan_arguments
from edgespec.pull import arguments as pull_arguments
from edgespec.server import arguments as serve_arguments
from edgespec.verify_pair import arguments as verify_arguments

FILES = """Where no pair and no --target is named, the pair pulled last answers; where none was pulled, the
embedded one, a tiny model of Python and its documentation."""


RARER = (
    ("--dynatemp-range", float, "the temperature follows the entropy, by up to so much"),
    ("--dynatemp-exponent", float, "how it follows it (1)"),
    ("--xtc-probability", float, "how often the likeliest tokens are left out"),
    ("--xtc-threshold", float, "those that are likelier than this (0.1)"),
    ("--dry-multiplier", float, "how much tokens lose that go on with a repetition"),
    ("--dry-base", float, "how much more for each token of its length (1.75)"),
    ("--dry-allowed-length", int, "repetitions up to this length are left alone (2)"),
    ("--dry-penalty-last-n", int, "how far back they are looked for (64; -1: everywhere)"),
)  # sampling that few want


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit code."""
    argv = list(sys.argv[1:] if argv is None else argv)
    arguments = _parser().parse_args(argv)
    if arguments.command in ("pull", *installed_arguments.HELP):  # these need no llama.cpp
        return isolate.told(lambda: _command(arguments))
    if arguments.command in (
        "chat",
        "serve",
        "doctor",
        "plan",
    ):  # what loads llama.cpp has a process of its own there
        isolate.fill_closed_streams()
        return isolate.told(lambda: _command(arguments))
    if not isolate.isolated():
        return isolate.told(lambda: isolate.run_isolated(argv))
    signal.signal(
        signal.SIGINT, signal.SIG_DFL
    )  # until text is generated, Ctrl+C ends it even inside llama.cpp
    return isolate.serve_in_child(lambda: isolate.told(lambda: _command(arguments)))


def _command(arguments: argparse.Namespace) -> int:
    if arguments.command == "run":
        from edgespec.one_shot import run

        return run(arguments)
    if arguments.command == "bench":
        from edgespec.bench.command import bench

        return bench(arguments)
    if arguments.command == "serve":
        from edgespec.server.command import serve

        return serve(arguments)
    if arguments.command == "pull":
        from edgespec.pull.command import pull

        return pull(arguments)
    if arguments.command in installed_arguments.HELP:
        from edgespec.installed.command import installed

        return installed(arguments)
    if arguments.command == "doctor":
        from edgespec.doctor.command import doctor

        return doctor(arguments)
    if arguments.command == "plan":
        from edgespec.plan.command import plan

        return plan(arguments)
    if arguments.command == "verify":
        from edgespec.verify_pair.command import verify

        return verify(arguments)
    return _chat(arguments)


def _chat(arguments: argparse.Namespace) -> int:
    """Opens a chat, once flags about the model have been looked at: a running engine would not say a word."""
    from edgespec.pair_files import pair_files, pair_settings
    from edgespec_tui import launch

    pair_settings(arguments)
    names = (arguments.target, arguments.draft, arguments.pair, arguments.grow, config.default_target())
    if not arguments.endpoint and any(name is not None for name in names):
        target, draft = pair_files(arguments)
        arguments.target, arguments.draft = str(target), str(draft) if draft else None
        arguments.pair = arguments.grow = None
    return launch.chat(arguments)


class _Parser(argparse.ArgumentParser):
    """Tells a mistake in one line, as every other error is told."""

    def error(self, message: str) -> NoReturn:
        self.exit(SettingError.exit_code, f"edgespec: {message}; {self.prog} --help lists what there is\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="edgespec",
        description="Runs a local model, sooner: a small draft guesses, the target decides.",
        epilog=FILES,
    )
    parser.add_argument("--version", action="version", version=f"edgespec {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    run = commands.add_parser("run", help="answer one prompt", description="Answers one prompt. " + FILES)
    run.add_argument("prompt", nargs="?", help="what to say; - or nothing reads it from standard input")
    run.add_argument(
        "--raw", action="store_true", help="continue the prompt as it stands, without the chat template"
    )
    run.add_argument("--json", action="store_true", help="print one JSON object with text and figures")
    form = run.add_argument_group("form of the answer").add_mutually_exclusive_group()
    form.add_argument("--json-schema", metavar="FILE", help="the answer is JSON that fits this schema")
    form.add_argument("--grammar", metavar="FILE", help="the answer keeps to this grammar (GBNF or Lark)")
    form.add_argument("--regex", metavar="R", help="the whole answer matches this regular expression")
    chat = commands.add_parser(
        "chat", help="talk, in the terminal", description="A conversation in the terminal. " + FILES
    )
    _add_chat(chat)
    for command in (run, chat):
        command.add_argument("--system", metavar="TEXT", help="system prompt")
        command.add_argument("-q", "--quiet", action="store_true", help="no statistics")
        _add_model(command)
        _add_sampling(command, longest=512 if command is run else None)
        _add_speculation(command)
    bench = commands.add_parser(
        "bench", help=bench_arguments.HELP, description=bench_arguments.DESCRIPTION + " " + FILES
    )
    bench_arguments.add(bench)
    _add_model(bench)
    _add_sampling(bench, longest=bench_arguments.LONGEST_ANSWER)
    _add_speculation(bench)
    verify = commands.add_parser(
        "verify", help=verify_arguments.HELP, description=verify_arguments.DESCRIPTION + " " + FILES
    )
    verify_arguments.add(verify)
    _add_model(verify)
    plan_arguments.add(
        commands.add_parser("plan", help=plan_arguments.HELP, description=plan_arguments.DESCRIPTION)
    )
    doctor = commands.add_parser(
        "doctor",
        help=doctor_arguments.HELP,
        description=doctor_arguments.DESCRIPTION + " " + FILES,
        epilog=doctor_arguments.EPILOG,
    )
    doctor_arguments.add(doctor)
    _add_model(doctor)
    serve = commands.add_parser(
        "serve",
        help=serve_arguments.HELP,
        description=serve_arguments.DESCRIPTION + " " + FILES,
        epilog=serve_arguments.EPILOG,
    )
    serve_arguments.add(serve)
    _add_model(serve, pair_flag=False)
    _add_pairs(commands)
    return parser


def _add_pairs(commands: argparse._SubParsersAction[_Parser]) -> None:
    pull = commands.add_parser(
        "pull",
        help=pull_arguments.HELP,
        description=pull_arguments.DESCRIPTION,
        epilog=pull_arguments.EPILOG,
    )
    pull_arguments.add(pull)
    for name, text in installed_arguments.HELP.items():
        command = commands.add_parser(name, help=text, description=installed_arguments.DESCRIPTION[name])
        installed_arguments.add(name, command)


def _add_chat(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--plain",
        action="store_true",
        help="line by line, without a screen; so it is where there is no terminal",
    )
    command.add_argument(
        "-p", "--prompt", metavar="TEXT",
        help="answer this and end, writing nothing but the answer; - reads it from standard input",
    )  # fmt: skip
    command.add_argument(
        "-c", "--continue", "--session", dest="resume", nargs="?", const="", metavar="CHAT",
        help="go on with a chat: the last one, or by its title or name",
    )  # fmt: skip
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


def _add_model(command: argparse.ArgumentParser, *, pair_flag: bool = True) -> None:
    group = command.add_argument_group("model")
    which = "an installed pair (`edgespec list`), or embedded (default: the one pulled last)"
    if pair_flag:
        group.add_argument("--pair", metavar="NAME", help=which)
    else:
        group.add_argument("pair", metavar="PAIR", nargs="?", help=which)
    group.add_argument("--target", metavar="FILE", help="GGUF file that decides (or EDGESPEC_TARGET)")
    draft = group.add_mutually_exclusive_group()
    draft.add_argument("--draft", metavar="FILE", help="GGUF file that guesses (or EDGESPEC_DRAFT)")
    draft.add_argument("--no-draft", action="store_true", help="plain decoding: nothing guesses")
    group.add_argument(
        "--grow", metavar="SIZE-TYPE", help="run the embedded pair at the cost of a large one: 0.6B-F16"
    )
    group.add_argument("--ctx", type=int, metavar="N", help="tokens that prompt and answer may have together")
    group.add_argument(
        "--kv-type",
        choices=("f16", "q8_0", "q4_0"),
        default="f16",
        help="target's KV cache; below f16 the answer may change",
    )
    group.add_argument(
        "--draft-kv-type",
        choices=("f16", "q8_0", "q4_0"),
        default="f16",
        help="draft's KV cache; changes speed only",
    )
    group.add_argument(
        "--gpu-layers", type=int, default=-1, metavar="N", help="layers on the GPU (default: all)"
    )
    group.add_argument("--threads", type=int, metavar="N", help="default: the physical performance cores")


def _add_sampling(command: argparse.ArgumentParser, *, longest: int | None = 512) -> None:
    group = command.add_argument_group(
        "sampling (defaults: the model's own, else 0.8, top-p 0.95, min-p 0.05)"
    )
    group.add_argument(
        "-n",
        "--max-tokens",
        type=int,
        default=longest,
        metavar="N",
        help=f"longest answer ({longest or 'what the context holds'})",
    )
    group.add_argument(
        "--temperature", "--temp", type=float, metavar="T", help="0 always takes the likeliest token"
    )
    group.add_argument("--top-k", type=int, metavar="K")
    group.add_argument("--top-p", type=float, metavar="P")
    group.add_argument("--min-p", type=float, metavar="P")
    group.add_argument("--typical-p", type=float, metavar="P")
    group.add_argument("--top-n-sigma", type=float, metavar="N")
    group.add_argument("--repeat-penalty", type=float, metavar="X")
    group.add_argument("--frequency-penalty", type=float, metavar="X")
    group.add_argument("--presence-penalty", type=float, metavar="X")
    group.add_argument("--penalty-last-n", type=int, metavar="N")
    group.add_argument(
        "--logit-bias",
        action="append",
        default=[],
        metavar="ID=BIAS",
        help="add to a token's logit; repeatable",
    )
    for name, kind, text in RARER:
        group.add_argument(name, type=kind, metavar="N" if kind is int else "X", help=text)
    group.add_argument(
        "--dry-breaker",
        action="append",
        default=[],
        metavar="TEXT",
        help="no repetition goes across it; repeatable",
    )
    group.add_argument(
        "--samplers",
        metavar="NAMES",
        help="which stages, in which order, as llama.cpp: top_k;xtc;temperature",
    )
    group.add_argument("--seed", type=int, metavar="N", help="same seed, same text, with or without a draft")
    group.add_argument(
        "--stop", action="append", default=[], metavar="TEXT", help="end before this text; repeatable"
    )


def _add_speculation(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("speculation")
    group.add_argument(
        "--draft-length", type=int, metavar="K", help="tokens guessed at a time (default: what pays)"
    )
    group.add_argument(
        "--drafter",
        choices=("auto", "model", "lookup", "none"),
        default="auto",
        help="who guesses (auto: draft model, lookup and recycling compete)",
    )
