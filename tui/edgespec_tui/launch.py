"""`edgespec chat`: from flags to an app on the screen, and back to the terminal as it was."""

import argparse
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from edgespec.client.api_key import api_key
from edgespec.errors import SettingError
from edgespec.local.attach import WantedEngine, attach
from edgespec.local.engine_flags import engine_flags
from edgespec.memory.recommended import recommended_here
from edgespec.pairs.found import best_found
from edgespec.pairs.store import open_store
from edgespec_tui.endpoint.attached import AttachedEndpoint, Begun, Opening, connecting
from edgespec_tui.sessions.conversation import Conversation
from edgespec_tui.sessions.export import rescue
from edgespec_tui.settings.beginning import (
    begin,
    first_conversation,
    open_sessions,
    open_toolbox,
    settings_path,
)
from edgespec_tui.settings.instructions import offer
from edgespec_tui.settings.settings import read
from edgespec_tui.tools.toolbox import Toolbox
from edgespec_tui.widgets.question import QuestionText
from edgespec_tui.widgets.typed_ahead import TypedAhead


def wants_screen(arguments: argparse.Namespace) -> bool:
    """Returns whether there is a screen for the app, and it is wanted."""
    lines = arguments.plain or arguments.prompt is not None or arguments.list is not None
    if lines or sys.stdin is None or sys.stdout is None:
        return False
    return sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def chat(arguments: argparse.Namespace) -> int:
    """Runs the app, or a chat without a screen; returns its exit code.

    Raises EdgeSpecError for what can be reported before the app is shown.
    """
    if not wants_screen(arguments):
        from edgespec_tui.plain.command import plain_chat

        return plain_chat(arguments, opening)
    typed = TypedAhead()  # before anything that takes time
    try:
        return _on_screen(arguments, typed)
    finally:
        typed.taken()


def _on_screen(arguments: argparse.Namespace, typed: TypedAhead) -> int:
    beginning = begin(arguments)
    endpoint = AttachedEndpoint(
        Begun(opening(arguments)), wanted=WantedEngine(n_ctx=arguments.ctx, flags=engine_flags(arguments))
    )
    typed.ask_background()
    from edgespec_tui.app import ChatApp  # Textual takes 0.25 s: wrong flags are reported before
    from edgespec_tui.key_bindings import known_to_app
    from edgespec_tui.screens.model_shelf import Shelf

    known = known_to_app()
    beginning = begin(arguments, known=known)
    notices = [*filter(None, [arguments.notice, offer()]), *beginning.complaints]
    toolbox = Toolbox(())
    try:
        toolbox = open_toolbox(arguments, beginning.settings)
    except SettingError as error:
        if arguments.tools is not None:
            raise
        notices.append(str(error))
    sessions = open_sessions(arguments, on_notice=notices.append)
    try:
        app = ChatApp(
            endpoint,
            sessions=sessions,
            settings=beginning.settings,
            first=first_conversation(arguments, sessions, beginning),
            options=beginning.options,
            notices=notices,
            shelf=Shelf(open_store(), look=best_found, recommended=recommended_here),
            typed=typed,
            known=known,
            toolbox=toolbox,
        )
        code = app.run()
    finally:
        unwritten = sessions.close()
        for notice in notices:  # what the app did not get to show
            sys.stderr.write(f"edgespec: {notice}\n")
    saves = not (arguments.no_save or app.chat.conversation.read_only)
    _tell_end(app.fault, app.unsent, unwritten, saves=saves)
    return 1 if app.fault else code or 0


def _tell_end(
    fault: str | None,
    unsent: QuestionText,
    unwritten: Sequence[Conversation],
    *,
    saves: bool,
) -> None:
    """Prints on the restored terminal what people should know at the end."""

    def tell(sentence: str) -> None:
        sys.stderr.write(f"edgespec: {sentence}\n")

    if fault:
        kept = "This chat is saved." if saves and not unwritten else "This chat is not saved."
        tell(f"{fault} {kept}")
    if unsent.draft() and not saves:
        tell(f"this was not asked, and is not saved:\n{unsent.folded()}")
    elif unsent.draft() and not unwritten:
        tell("what you had written is saved with the chat: `edgespec chat -c` shows it again.")
    rescue(unwritten, tell)


def opening(arguments: argparse.Namespace) -> Opening:
    """Returns how to reach the engine that the flags name. Raises SettingError.

    A named pair is in target and draft by now; without one, whichever runs is attached to.
    """
    if arguments.endpoint:
        if arguments.target or arguments.draft or arguments.grow or arguments.pair:
            raise SettingError(
                "--endpoint brings its own model: leave out --pair, --target, --draft and --grow"
            )
        model = arguments.model or read(settings_path())[0].model
        return connecting(arguments.endpoint, api_key(arguments), model)
    if arguments.model:
        raise SettingError("--model names a model of --endpoint: here, --pair or --target does")
    target, draft = arguments.target, arguments.draft
    for file in filter(None, (target, draft)):
        if not Path(file).exists():
            raise SettingError(f"there is no file {file}: check the path")
    return partial(
        attach,
        WantedEngine(
            target=Path(target) if target else None,
            draft=Path(draft) if draft else None,
            n_ctx=arguments.ctx,
            flags=engine_flags(arguments),
            template=arguments.template,
        ),
    )
