"""Asks whether a call may be made: above the input, with what it would do.

It takes the keyboard only when nobody has typed for a moment, and not while something is written: what was
meant for the input must not allow a call.
"""

import asyncio
import time
from collections.abc import Callable
from typing import ClassVar, get_args

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.widgets import Static

from edgespec_tui.terminal.shown_text import Content
from edgespec_tui.tools.loop import Decision, Proposal
from edgespec_tui.tools.preview import preview

LOOK_S = 0.05
COLOURS = {"+": "$text-success", "-": "$text-error"}
KEYS = {"once": "y", "always": "a", "no": "n"}
DOES = {"once": "allow it", "always": "allow this tool in this chat", "no": "do not allow it"}


class ApprovalBar(Vertical, can_focus=True):
    """Shows one call at a time, and waits for the user's word."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "decide('once')", "Allow", id="approval.once"),
        Binding("a", "decide('always')", "Allow in this chat", id="approval.always"),
        Binding("n", "decide('no')", "Do not allow", id="approval.no"),
        Binding("up", "scroll(-1)", "Up", id="approval.up", show=False),
        Binding("down", "scroll(1)", "Down", id="approval.down", show=False),
    ]

    def __init__(self, guard_s: float) -> None:
        """guard_s: until a key counts, after it got the keyboard."""
        super().__init__(id="approval")
        self._guard_s = guard_s
        self._decided: asyncio.Future[Decision] | None = None
        self._keys_from = float("inf")

    def compose(self) -> ComposeResult:
        yield Static("", id="approval-what")
        with VerticalScroll(id="approval-lines", can_focus=False):
            yield Static("", id="approval-preview")
        yield Static("", id="approval-keys")

    async def ask(self, proposal: Proposal, *, may_take_keys: Callable[[], bool]) -> Decision:
        """Returns what the user decides. may_take_keys: nobody types, and nothing is written."""
        self._show(proposal)
        self._decided = asyncio.get_running_loop().create_future()
        taking = asyncio.create_task(self._take_keys(may_take_keys))
        try:
            return await self._decided
        finally:
            taking.cancel()
            self._decided, self.display, self._keys_from = None, False, float("inf")

    def _show(self, proposal: Proposal) -> None:
        tool = proposal.tool
        hints = f"   its server says: {', '.join(tool.hints)}" if tool.hints else ""
        what = Content.assemble("May it call ", (tool.title, "bold"), "?", (hints, "$text 60%"))
        self.query_one("#approval-what", Static).update(what)
        lines = [Content.styled(line, COLOURS.get(line[:1], "")) for line in preview(proposal)]
        self.query_one("#approval-preview", Static).update(Content("\n").join(lines))
        buttons = [
            Content.from_markup(f"[@click=screen.decide('{name}')][b]{KEYS[name]}[/b] {DOES[name]}[/]")
            for name in get_args(Decision)
        ]
        buttons.append(Content.from_markup("[@click=screen.stop][b]Esc[/b] stop the answer[/]"))
        self.query_one("#approval-keys", Static).update(Content("   ").join(buttons))
        self.query_one(VerticalScroll).scroll_home(animate=False)
        self.display = True

    async def _take_keys(self, may: Callable[[], bool]) -> None:
        while not may():
            await asyncio.sleep(LOOK_S)
        self.focus()

    def on_focus(self, _event: events.Focus) -> None:
        self._keys_from = time.monotonic() + self._guard_s

    def action_decide(self, decision: Decision) -> None:
        """Takes a key, unless it comes so soon that it was meant for the input."""
        if time.monotonic() >= self._keys_from:
            self.take(decision)

    def take(self, decision: Decision) -> None:
        """Takes a decision, if one is asked for."""
        if self._decided is not None and not self._decided.done():
            self._decided.set_result(decision)

    def action_scroll(self, step: int) -> None:
        """Scrolls what the call would do."""
        self.query_one(VerticalScroll).scroll_relative(y=step, animate=False)
