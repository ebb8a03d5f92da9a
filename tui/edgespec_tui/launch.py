"""`edgespec chat`: from flags to an app on the screen, and to a terminal that is as it was."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from edgespec import config
from edgespec.attach import Wanted
from edgespec.errors import SettingError
from edgespec.pair_store import named_files
from edgespec_tui.attached_endpoint import AttachedEndpoint, Opening, attaching, connecting
from edgespec_tui.conversation import Conversation
from edgespec_tui.sessions import Sessions
from edgespec_tui.setting_values import ANSWER
from edgespec_tui.settings import FILE, Settings, read


def wants_screen(arguments: argparse.Namespace) -> bool:
    """Returns whether there is a screen for the app, and it is wanted."""
    terminal = sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    return terminal and not arguments.plain


def chat(arguments: argparse.Namespace) -> int:
    """Runs the app; returns its exit code. Raises EdgeSpecError for what can be told before it is shown."""
    endpoint = AttachedEndpoint(opening(arguments))
    file = config.settings_folder() / FILE
    settings, complaints = read(file)
    first = first_conversation(arguments, settings)
    from edgespec_tui.app import ChatApp  # Textual takes a quarter of a second: a wrong flag is told before

    notices: list[str] = list(complaints)
    sessions = Sessions.opened(config.data_folder(), on_notice=notices.append)
    app = ChatApp(
        endpoint, sessions=sessions, settings=settings, settings_file=file, first=first, notices=notices
    )
    app.chat.speculation = settings.speculation and arguments.drafter != "none" and not arguments.no_draft
    if arguments.resume is not None:
        found = sessions.named(arguments.resume) if arguments.resume else sessions.newest()
        app.context.first_conversation = found.result() or first
    try:
        code = app.run()
    finally:
        sessions.close()
    if app.fault:
        sys.stderr.write(f"edgespec: {app.fault}\n")
        return 1
    return code or 0


def first_conversation(arguments: argparse.Namespace, settings: Settings) -> Conversation:
    """Returns an empty chat with what flags and settings say. Raises SettingError."""
    first = settings.new_conversation()
    first.system = arguments.system if arguments.system is not None else first.system
    for name, ranged in ANSWER.items():
        value = getattr(arguments, name, None)
        if value is None:
            continue
        if not ranged.holds(value):
            raise SettingError(f"--{name.replace('_', '-')} is {value}: it must be {ranged.allowed}")
        if name == "seed":
            first.seed = value
        elif name == "max_tokens":
            first.max_tokens = value
        else:
            first.sampling[name] = value
    return first


def opening(arguments: argparse.Namespace) -> Opening:
    """Returns how the engine is reached that the flags name. Raises SettingError."""
    if arguments.endpoint:
        if arguments.target or arguments.draft or arguments.grow or arguments.pair:
            raise SettingError(
                "--endpoint has a model of its own: leave out --pair, --target, --draft and --grow"
            )
        return connecting(arguments.endpoint, arguments.api_key or os.environ.get("EDGESPEC_API_KEY"))
    target, draft = arguments.target, arguments.draft
    if arguments.pair is not None:
        if target or draft or arguments.grow:
            raise SettingError(
                f"pair {arguments.pair} has files of its own: leave out --target, --draft and --grow"
            )
        target, draft = named_files(arguments.pair)
    for file in filter(None, (target, draft)):
        if not Path(file).exists():
            raise SettingError(f"there is no file {file}: check the path")
    flags: list[str] = []
    for flag, value, default in (
        ("--grow", arguments.grow, None),
        ("--kv-type", arguments.kv_type, "f16"),
        ("--draft-kv-type", arguments.draft_kv_type, "f16"),
        ("--gpu-layers", arguments.gpu_layers, -1),
        ("--threads", arguments.threads, None),
    ):
        if value != default:
            flags += [flag, str(value)]
    if arguments.no_draft:
        flags.append("--no-draft")
    return attaching(
        Wanted(
            target=Path(target) if target else None,
            draft=Path(draft) if draft else None,
            n_ctx=arguments.ctx,
            flags=tuple(flags),
        )
    )
