"""What slash commands do."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Protocol

from textual.screen import ModalScreen

from edgespec.errors import SettingError
from edgespec_tui.endpoint.endpoint import Message
from edgespec_tui.screens.bench import DEFAULT_PROMPTS, PROMPTS, BenchScreen
from edgespec_tui.screens.chat import ChatScreen
from edgespec_tui.screens.race import drawn
from edgespec_tui.screens.race_screen import RaceScreen
from edgespec_tui.settings.values import from_text, told
from edgespec_tui.widgets.attached_files import read_file
from edgespec_tui.widgets.panel import MeasuredSpeedUp, odds_against
from edgespec_tui.widgets.question import Insert, QuestionText
from edgespec_tui.widgets.slash_commands import parsed


class AppDeeds(Protocol):
    """What commands need of the app."""

    async def action_new(self) -> None: ...

    def action_help(self) -> None: ...

    def action_models(self) -> None: ...

    def action_sessions(self) -> None: ...

    def action_settings(self) -> None: ...

    def action_quit_now(self) -> None: ...

    async def export(self, screen: ChatScreen, name: str) -> None: ...

    def push_screen(
        self, screen: ModalScreen[MeasuredSpeedUp | None], callback: Callable[[MeasuredSpeedUp | None], None]
    ) -> object: ...


class ChatCommands:
    """Runs the commands of a chat."""

    def __init__(self, app: AppDeeds) -> None:
        self._app = app

    async def run(self, screen: ChatScreen, line: str) -> bool:
        """Runs a line that is a command; returns False for one that is a question. Raises EdgeSpecError."""
        found = parsed(line)
        if found is not None:
            await self._do(screen, *found)
        return found is not None

    async def _do(self, screen: ChatScreen, name: str, rest: str) -> None:
        app = self._app
        if name == "/help":
            app.action_help()
        elif name == "/model":
            app.action_models()
        elif name == "/system":
            self._system(screen, rest)
        elif name == "/prompts":
            self._prompts(screen, rest)
        elif name == "/editor":
            screen.action_editor()
        elif name == "/continue":
            await screen.action_go_on()
        elif name == "/set":
            self._set(screen, rest)
        elif name == "/read":
            read = read_file(rest)
            screen.prompt.put_before(QuestionText(read, (Insert(0, len(read), ""),)))
        elif name in ("/new", "/clear"):
            await app.action_new()
        elif name == "/rename":
            self._rename(screen, rest)
        elif name == "/sessions":
            app.action_sessions()
        elif name == "/export":
            await app.export(screen, rest)
        elif name == "/race":
            await self.race(screen, rest)
        elif name == "/demo":
            await self.demo(screen)
        elif name == "/bench":
            await self.bench(screen, rest)
        elif name == "/speculation":
            self._speculation(screen, rest)
        elif name == "/tint":
            await screen.action_tint()
        elif name == "/settings":
            app.action_settings()
        elif name in ("/quit", "/exit"):
            app.action_quit_now()
        else:
            raise AssertionError(name)

    def _system(self, screen: ChatScreen, text: str) -> None:
        if not text:
            screen.tell(f"The system prompt: {screen.conversation.system or 'there is none'}")
            return
        screen.conversation.system = "" if text in ("none", "default") else text
        screen.context.keep(screen.conversation)
        screen.tell("The system prompt is set." if screen.conversation.system else "No system prompt.")

    def _prompts(self, screen: ChatScreen, text: str) -> None:
        prompts, talk = screen.context.prompts, screen.conversation
        word, _, name = text.partition(" ")
        if not text:
            names = ", ".join(prompts.names())
            screen.tell(
                f"Saved: {names}." if names else "None saved yet: /prompts save NAME saves this chat's."
            )
        elif word == "save":
            screen.tell(f"Saved as {prompts.save(name.strip(), talk.system)}.")
        elif word == "delete":
            prompts.delete(name.strip())
            screen.tell(f"Deleted {name.strip()}.")
        else:
            talk.system = prompts.text(text)
            screen.context.keep(talk)
            screen.tell(f"The system prompt is {text}.")

    def _set(self, screen: ChatScreen, text: str) -> None:
        talk = screen.conversation
        if not text:
            values = {**talk.sampling, "seed": talk.seed, "max_tokens": talk.max_tokens}
            set_ = [f"{name} {told(value)}" for name, value in values.items() if value is not None]
            screen.tell("Set here: " + (", ".join(set_) or "nothing; the model's own settings apply") + ".")
            return
        name, value = from_text(text)
        if name == "seed":
            talk.seed = None if value is None else int(value)
        elif name == "max_tokens":
            talk.max_tokens = None if value is None else int(value)
        elif value is None:
            talk.sampling.pop(name, None)
        else:
            talk.sampling[name] = value
        screen.context.keep(talk)
        screen.tell(
            f"{name} is {told(value)}, in this chat." if value is not None else f"{name} is the model's own."
        )

    def _rename(self, screen: ChatScreen, title: str) -> None:
        if not title:
            raise SettingError("/rename needs a title: /rename TITLE")
        screen.conversation.title = " ".join(title.split())
        screen.context.keep(screen.conversation)
        screen.refresh_state()

    def _speculation(self, screen: ChatScreen, text: str) -> None:
        if text not in ("on", "off"):
            raise SettingError(f"/speculation takes on or off, not {text!r}")
        if screen.speculation != (text == "on"):
            screen.action_speculation()

    async def race(self, screen: ChatScreen, text: str) -> None:
        """Races a question, plain against speculative; without one, the last. Raises EdgeSpecError."""
        info = screen.context.engine.info
        if info is None or screen.context.engine.state != "ready":
            raise SettingError("there is no engine to race yet: wait until the model is loaded")
        if not info.speculates:
            raise SettingError(f"{info.where} reports no speculation data: there is nothing to race")
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
        self._app.push_screen(shown, screen.take_measured)

    async def demo(self, screen: ChatScreen) -> None:
        """Shows what speculation is for, on the embedded pair, whatever answers here."""
        from edgespec_tui.screens.demo import IN_CHAT  # most chats show none
        from edgespec_tui.screens.demo_screen import DemoScreen

        await screen.stop_and_wait()
        self._app.push_screen(DemoScreen(next_step=IN_CHAT), lambda _: None)

    async def bench(self, screen: ChatScreen, text: str) -> None:
        """Races several prompts. Raises EdgeSpecError."""
        info = screen.context.engine.info
        if info is None or screen.context.engine.state != "ready":
            raise SettingError("there is no engine to measure yet: wait until the model is loaded")
        if not info.speculates:
            raise SettingError(f"{info.where} reports no speculation data: there is nothing to compare")
        if text and not (text.isdecimal() and 1 <= int(text) <= len(PROMPTS)):
            raise SettingError(f"/bench takes a number from 1 to {len(PROMPTS)}, not {text!r}")
        await screen.stop_and_wait()
        prompts = PROMPTS[: int(text or DEFAULT_PROMPTS)]
        bench = BenchScreen(screen.context.endpoint, screen.options(), prompts, rng=random.Random())
        self._app.push_screen(bench, screen.take_measured)
