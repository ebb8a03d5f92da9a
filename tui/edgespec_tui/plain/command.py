"""`edgespec chat` without a screen: from flags to an answer or a conversation in lines."""

import argparse
import asyncio
import io
import os
import shutil
import sys
import textwrap
from collections.abc import Callable
from functools import partial
from pathlib import Path

from edgespec.client.answer import Info
from edgespec.errors import EdgeSpecError, SessionError, SettingError
from edgespec_tui.endpoint.attached import AttachedEndpoint, Opening
from edgespec_tui.endpoint.engine_state import LENT
from edgespec_tui.endpoint.model_notes import PULL, note_of
from edgespec_tui.plain.lines import HELP, PlainLines, listing, resumed
from edgespec_tui.plain.plain import PlainChat, one_answer
from edgespec_tui.plain.tool_lines import ToolLines
from edgespec_tui.sessions.export import rescue, title_of
from edgespec_tui.sessions.sessions import Sessions
from edgespec_tui.settings.beginning import Beginning, begin, first_conversation, open_sessions, open_toolbox
from edgespec_tui.tools.loop import by_rule


def plain_chat(arguments: argparse.Namespace, opening: Callable[[argparse.Namespace], Opening]) -> int:
    """Lists chats, answers one prompt, or talks until the input ends; returns the exit code."""
    sys.stdin = sys.stdin or open(os.devnull)  # closed by our caller: an empty one
    if sys.stdout is None:
        raise EdgeSpecError("standard output is closed: there is nowhere to write the answer")
    for stream, errors in ((sys.stdin, "surrogateescape"), (sys.stdout, "replace")):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=errors)  # what is no text becomes a mark, not an error
    beginning = begin(arguments)
    for complaint in beginning.complaints:
        if arguments.prompt is not None:  # a program asks: settings must not change its answer
            raise SettingError(complaint)
        _tell(f"edgespec: {complaint}")
    if arguments.notice and arguments.list is None:
        _tell(f"edgespec: {arguments.notice}")
    sessions = open_sessions(arguments, on_notice=lambda sentence: _tell(f"edgespec: {sentence}"))
    try:
        if arguments.list is not None:
            print(listing(sessions.searched(arguments.list).result()))
            return 0
        return _talk(arguments, AttachedEndpoint(opening(arguments)), beginning, sessions)
    finally:
        unwritten = sessions.close()
        if arguments.prompt is None or sessions.file.was_open:  # else nobody expects it to be saved
            rescue(unwritten, lambda sentence: _tell(f"edgespec: {sentence}"))


def _talk(
    arguments: argparse.Namespace, endpoint: AttachedEndpoint, beginning: Beginning, sessions: Sessions
) -> int:
    conversation = first_conversation(arguments, sessions, beginning)
    if conversation.read_only:
        title = title_of(conversation)
        raise SessionError(f"{title!r} is open in another window: close it there, or start a new chat")
    once = arguments.prompt is not None
    talking = sys.stdin.isatty() and not once
    piped = arguments.prompt == "-"
    prompt = sys.stdin.read().removesuffix("\n").removesuffix("\r") if piped else arguments.prompt
    with asyncio.Runner() as runner:
        chat = PlainChat(
            endpoint,
            conversation,
            sessions,
            runner,
            options=beginning.options,
            quiet=arguments.quiet or once,
            by_sentence=talking and sys.stdout.isatty(),
        )
        if talking or arguments.tools is not None:
            chat.toolbox = open_toolbox(arguments, beginning.settings)
        chat.decide = partial(by_rule, arguments.approve)
        if talking:
            lines = ToolLines(input, chat.tell)
            chat.choose, chat.decide, chat.toolbox.ask = input, lines.decide, lines.answer
        if sys.stderr.isatty():
            endpoint.on_progress = chat.tell_progress
        try:
            if prompt is not None:
                return one_answer(chat, prompt, [str(Path(name).absolute()) for name in arguments.image])
            info = chat.start()
            if info.lent and not chat.quiet:
                _tell(LENT)
            if not chat.quiet:
                for sentence in info.notices:
                    _tell(f"edgespec: {sentence}")
            if talking:
                _tell(_greeting(info))
                if conversation.turns:
                    _tell(resumed(conversation))
            return PlainLines(chat, beginning.settings.new_conversation, talking=talking).talk()
        finally:
            runner.run(chat.toolbox.close())
            runner.run(endpoint.close())


def _greeting(info: Info) -> str:
    lines = [f"{info.model}, drafting with {info.draft}" if info.draft else info.model, HELP]
    if info.embedded:
        lines[0] = "The embedded pair answers."
    if note := note_of(info):
        lines[1:1] = [note.what, f"For {note.better} {PULL}; your own: --target FILE --draft FILE."]
        lines.insert(3, f"Ask, for example: {note.asks[0]}")
    if not info.speculates:
        lines.insert(1, f"At {info.where}, which reports no speculation data.")
    columns = max(20, shutil.get_terminal_size().columns - 1)
    return "\n".join(textwrap.fill(line, columns, break_long_words=False) for line in lines) + "\n"


def _tell(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)
