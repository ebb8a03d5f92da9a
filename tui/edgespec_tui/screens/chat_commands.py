"""What slash commands do."""

import random
from pathlib import Path

from edgespec.client.answer import Info
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
from edgespec_tui.widgets.slash_commands import SlashCommand, parsed


class ChatCommands:
    """Runs the commands of a chat."""

    def __init__(self, screen: ConversationScreen) -> None:
        self._screen = screen

    async def run(self, line: str) -> bool:
        """Runs a line that is a command; returns False for one that is a question. Raises EdgeSpecError."""
        found = parsed(line)
        if found is not None:
            await self._do(*found)
        return found is not None

    async def _do(self, command: SlashCommand, rest: str) -> None:
        screen, name = self._screen, command.name
        if command.action:
            await screen.run_action(command.action)
        elif name in CHANGES:
            screen.tell(CHANGES[name](screen.conversation, rest, screen.context.prompts))
            screen.context.keep(screen.conversation)
            screen.refresh_state()
        elif name == "/read":
            read = read_file(rest)
            inserts = () if read.startswith(NAMED) else (Insert(0, len(read), ""),)
            screen.prompt.put_before(QuestionText(read, inserts))
        elif name == "/export":
            screen.tell(f"Written to {export(screen.conversation, rest, folder=Path())}.")
        elif name == "/race":
            await self.race(rest)
        elif name == "/speculation":
            if screen.speculation != on_or_off(rest):
                screen.action_speculation()
        else:
            raise AssertionError(name)

    def _speculating(self) -> Info:
        """Returns the engine, which is there and speculates. Raises SettingError."""
        engine = self._screen.context.engine
        if engine.info is None or engine.state != "ready":
            raise SettingError("there is no engine to race yet: wait until the model is loaded")
        if engine.is_foreign:
            raise SettingError(f"{engine.info.where} reports no speculation data: there is nothing to race")
        return engine.info

    async def race(self, text: str) -> None:
        """Races a question, plain against speculative; without one, the last. Raises EdgeSpecError."""
        info, screen = self._speculating(), self._screen
        talk = screen.conversation
        questions = [turn for turn in talk.path() if turn.role == "user"]
        if not text.strip() and not questions:
            raise SettingError("there is no question to race: write one, then press F5")
        await screen.stop_and_wait()
        if text.strip():
            messages = [*talk.messages(), Message("user", text)]
        else:
            text, messages = questions[-1].text, talk.messages(upto=questions[-1].id)
        race = drawn(screen.context.endpoint, messages, screen.options(), rng=random.Random())
        said = [turn.text for turn in talk.turns.values() if turn.role == "assistant"]
        why = odds_against(info.break_even)
        shown = RaceScreen(race, text, said=said, tinted=screen.transcript.tinted, why=why)
        screen.app.push_screen(shown, screen.take_measured)
