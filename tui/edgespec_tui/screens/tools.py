"""The servers and their tools: on and off for this chat; and the form for what a server asks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from edgespec.errors import SettingError
from edgespec_tui.sessions.conversation import Conversation
from edgespec_tui.terminal.shown_text import Content
from edgespec_tui.tools.offer import is_on
from edgespec_tui.tools.question import Asked, Value
from edgespec_tui.tools.toolbox import Toolbox
from edgespec_tui.tools.values import Tool
from edgespec_tui.widgets.key_line import KeyLine

HOW = "Enter turns a server or a tool off or on in this chat. Each call asks you first."
NONE = "There are no servers of tools yet: `edgespec mcp add --help` says how to add one."


class ToolsScreen(ModalScreen[None]):
    """Lists servers and tools. Starts the servers that are on, to know what they have."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "dismiss", "Back", id="tools.leave"),
        Binding("enter,space", "turn", "On or off", id="tools.turn"),
        Binding("r", "renew", "Start again", id="tools.renew"),
    ]

    def __init__(self, toolbox: Toolbox, talk: Conversation) -> None:
        """talk: the chat in which tools are on or off."""
        super().__init__()
        self._toolbox, self._talk = toolbox, talk
        self._tools: list[Tool] | None = None  # None: not known yet
        self._rows: list[str | Tool] = []  # servers by their names, each before its tools

    def compose(self) -> ComposeResult:
        with Vertical(id="tools"):
            yield OptionList(id="tools-list")
            yield Static(HOW if self._toolbox.servers else NONE, id="tools-note", markup=False)
            yield KeyLine(show_command_palette=False)

    def on_mount(self) -> None:
        self._fill()
        self._ask()

    def _ask(self) -> None:
        self._tools = None
        self.run_worker(self._load(), exclusive=True)

    async def _load(self) -> None:
        wanted = [one.name for one in self._toolbox.servers if one.name not in self._talk.tools_off]
        self._tools = await self._toolbox.tools(wanted)
        self._fill()

    def _fill(self) -> None:
        options = self.query_one(OptionList)
        marked = options.highlighted or 0
        options.clear_options()
        self._rows = []
        for server in self._toolbox.servers:
            tools = [tool for tool in self._tools or () if tool.server == server.name]
            self._rows += [server.name, *tools]
        options.add_options([Option(self._line(row)) for row in self._rows])
        options.highlighted = min(marked, len(self._rows) - 1) if self._rows else None

    def _line(self, row: str | Tool) -> Content:
        off = self._talk.tools_off
        if isinstance(row, str):
            fault = self._toolbox.fault_of(row)
            starting = "starting ..." if self._tools is None else ""
            state = "off" if row in off else fault or starting or "on"
            return Content.assemble((f"{row}  ", "bold"), (state, "$text-warning" if fault else "dim"))
        mark = "on   " if is_on(row, off) else "off  "
        hints = f"  [{', '.join(row.hints)}]" if row.hints else ""
        about = " ".join(row.description.split())[:120]
        return Content.assemble("  ", (mark, "dim"), row.name, (hints, "$text 60%"), f"  {about}")

    def _marked(self) -> str | Tool | None:
        at = self.query_one(OptionList).highlighted
        return None if at is None else self._rows[at]

    @on(OptionList.OptionSelected)
    def action_turn(self) -> None:
        """Turns what is marked off or on."""
        marked, off = self._marked(), self._talk.tools_off
        if isinstance(marked, Tool) and marked.server not in off:
            off.symmetric_difference_update({marked.title})
        elif isinstance(marked, str):
            off.symmetric_difference_update({marked})
            if marked not in off:
                self._ask()
        self._fill()

    def action_renew(self) -> None:
        """Starts a server again that could not be used."""
        if (marked := self._marked()) is not None:
            self._toolbox.renew(marked if isinstance(marked, str) else marked.server)
            self._ask()
            self._fill()


class AskedScreen(ModalScreen[Mapping[str, Value] | None]):
    """Shows what a server asks in the middle of a call; ends with the answers, or None."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", "Do not answer", id="asked.leave"),
        Binding("ctrl+s", "send", "Send", id="asked.send", priority=True),
    ]

    def __init__(self, asked: Asked) -> None:
        super().__init__()
        self._asked = asked

    def compose(self) -> ComposeResult:
        with Vertical(id="asked"):
            yield Static(Content.assemble((self._asked.server, "bold"), f" asks: {self._asked.message}"))
            for number, field in enumerate(self._asked.fields):
                yield Static(Content(f"{field.name}  {field.wants}"))
                yield Input(id=f"asked-{number}")
            yield Static("Ctrl+S sends this to the server; Esc sends nothing.", id="asked-note", markup=False)
            yield KeyLine(show_command_palette=False)

    @on(Input.Submitted)
    def action_send(self) -> None:
        """Sends the answers, if they are what is wanted."""
        answers: dict[str, Value] = {}
        for number, field in enumerate(self._asked.fields):
            try:
                value = field.value(self.query_one(f"#asked-{number}", Input).value)
            except SettingError as error:
                self.query_one("#asked-note", Static).update(Content(str(error)))
                return
            if value is not None:
                answers[field.name] = value
        self.dismiss(answers)
