"""`edgespec chat`: a conversation in the terminal."""

import argparse
from dataclasses import replace
from pathlib import Path

from edgespec.client import api_key
from edgespec.client.state_file import digest
from edgespec.commands import flags, loading
from edgespec.commands.flag_table import add_flags
from edgespec.errors import SettingError
from edgespec.pairs.files import chat_template, pair_files
from edgespec.pairs.store import standing_in
from edgespec.system import config
from edgespec_tui import launch
from edgespec_tui.endpoint.media import mark_of

DESCRIPTION = "A chat in the terminal that shows what speculation does."
FLAGS = {
    "--plain": "plain lines instead of a full-screen app; the default without a terminal",
    "-p --prompt TEXT": "answer this prompt, print only the answer and exit; - reads the prompt from "
    "standard input",
    "--tools SERVERS": "servers whose tools may be called, with commas, or none (default: all; with -p none)",
    "--approve none|read|all": "with -p, which calls are allowed: read, those of tools that only read, as "
    "their servers say",
    "--image FILE *": "a picture that goes with the prompt of -p; repeatable (in the chat: @FILE)",
}
ENDPOINT = {
    "--endpoint URL": "chat with any OpenAI-style server, such as http://HOST:8000/v1",
    "--model NAME": "which of its models answers; else that of the settings, its only one, or you choose",
    **api_key.FLAGS,
}


def add(command: argparse.ArgumentParser) -> None:
    """Adds the flags."""
    add_flags(command, FLAGS)
    command.add_argument(
        "-c",
        "--continue",
        "--session",
        dest="resume",
        nargs="?",
        const="",
        metavar="CHAT",
        help="continue a chat: the last one, or the one with this title or name",
    )
    command.add_argument(
        "--list",
        nargs="?",
        const="",
        metavar="WORDS",
        help="list all chats, or those that contain these words",
    )
    add_flags(command, {"--no-save": "do not save this chat"})
    add_flags(command.add_argument_group("another server"), ENDPOINT)
    loading.add_keep_texts(command)
    flags.add_conversation(command)
    flags.add_model(command, pair_flag=False, media=True)
    flags.add_sampling(command, longest=None)
    flags.add_speculation(command)
    flags.add_template(command)


def run(arguments: argparse.Namespace) -> int:
    """Opens a chat, once the flags about the model are checked: a running engine would not report them."""
    if arguments.image and arguments.prompt is None:
        raise SettingError("--image goes with a prompt: add -p TEXT, or write @FILE in the chat")
    for name in arguments.image:
        mark_of(Path(name))  # now, not before the answer
    names = (arguments.target, arguments.draft, arguments.pair, arguments.grow, config.default_target())
    named = any(name is not None for name in names)
    arguments.notice = ""
    asked = arguments.endpoint or arguments.prompt is not None  # a program asks: no other model answers it
    if not (named or asked) and (other := standing_in()):
        arguments.pair, arguments.notice = other
        named = True
    replace(loading.pair_settings(arguments), keep_texts=arguments.keep_texts * 2**20)
    if arguments.no_save:
        arguments.keep_texts = 0
    template = chat_template(arguments)
    arguments.template = digest(template) if template else ""
    if named and not arguments.endpoint:
        target, draft = pair_files(arguments)
        arguments.target, arguments.draft = str(target), str(draft) if draft else None
        arguments.pair = arguments.grow = None
    return launch.chat(arguments)
