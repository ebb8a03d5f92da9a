"""What slash commands do."""

import random
from pathlib import Path

from edgespec.errors import SettingError
from edgespec_tui.endpoint.endpoint import Message
from edgespec_tui.screens.conversation_screen import ConversationScreen
from edgespec_tui.screens.race import drawn
from edgespec_tui.screens.race_screen import RaceScreen
from edgespec_tui.sessions.export import export
from edgespec_tui.settings.chat_changes import CHANGES, on_or_off
from edgespec_tui.widgets.attached_files import NAMED, read_file
from edgespec_tui.widgets.panel import odds_against
from edgespec_tui.widgets.question import Insert, QuestionText
from edgespec_tui.widgets.slash_commands import parsed


async def run(screen: ConversationScreen, line: str) -> bool:
    """Runs a line that is a command; returns False for one that is a question. Raises EdgeSpecError."""
    if (found := parsed(line)) is None:
        return False
    command, rest = found
    if command.action:
        await screen.run_action(command.action)
    elif command.name in CHANGES:
        screen.tell(CHANGES[command.name](screen.conversation, rest, screen.context.prompts))
        screen.context.keep(screen.conversation)
        screen.refresh_state()
    elif command.name == "/read":
        read = read_file(rest)
        inserts = () if read.startswith(NAMED) else (Insert(0, len(read), ""),)
        screen.prompt.put_before(QuestionText(read, inserts))
    elif command.name == "/export":
        screen.tell(f"Written to {export(screen.conversation, rest, folder=Path())}.")
    elif command.name == "/race":
        await race(screen, rest)
    else:
        assert command.name == "/speculation"
        if screen.speculation != on_or_off(rest):
            screen.action_speculation()
    return True


async def race(screen: ConversationScreen, text: str) -> None:
    """Races a question, plain against speculative; without one, the last. Raises EdgeSpecError."""
    engine, talk = screen.context.engine, screen.conversation
    if engine.info is None or engine.state != "ready":
        raise SettingError("there is no engine to race yet: wait until the model is loaded")
    if engine.is_foreign:
        raise SettingError(f"{engine.info.where} reports no speculation data: there is nothing to race")
    questions = [turn for turn in talk.path() if turn.role == "user"]
    if not text.strip() and not questions:
        raise SettingError("there is no question to race: write one, then press F5")
    await screen.answers.stop()
    if text.strip():
        messages = [*talk.messages(), Message("user", text)]
    else:
        text, messages = questions[-1].text, talk.messages(upto=questions[-1].id)
    drawn_race = drawn(engine.endpoint, messages, screen.options(), rng=random.Random())
    said = [turn.text for turn in talk.turns.values() if turn.role == "assistant"]
    why = odds_against(engine.info.break_even)
    shown = RaceScreen(drawn_race, text, said=said, tinted=screen.transcript.tinted, why=why)
    screen.app.push_screen(shown, screen.take_measured)
