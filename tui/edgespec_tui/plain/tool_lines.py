"""Calls in a chat without a screen: a line for each, and approval by a letter."""

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from edgespec.errors import SettingError
from edgespec_tui.tools.loop import Decision, Proposal
from edgespec_tui.tools.preview import preview
from edgespec_tui.tools.question import Asked, Value
from edgespec_tui.tools.values import Call
from edgespec_tui.widgets.call_view import in_one_line, outcome_of

DECISIONS: dict[str, Decision] = {"y": "once", "yes": "once", "a": "always", "always": "always"}
MOST_LINES = 40  # of what a call would do


class ToolLines:
    """Asks somebody at a keyboard. ask: shows a sentence and returns the line that is typed."""

    def __init__(self, ask: Callable[[str], str], tell: Callable[[str], None]) -> None:
        self._ask, self._tell = ask, tell

    async def decide(self, proposal: Proposal) -> Decision:
        """Asks whether a call may be made; anything but a yes is a no, Ctrl+C stops the answer."""
        tool = proposal.tool
        hints = f" (its server says: {', '.join(tool.hints)})" if tool.hints else ""
        lines = preview(proposal)
        more = [f"[{len(lines) - MOST_LINES:,} more lines]"] if len(lines) > MOST_LINES else []
        self._tell("\n".join([f"May it call {tool.title}{hints}?", *lines[:MOST_LINES], *more]))
        answer = self._asked("y allows it, a allows this tool in this chat, anything else does not: ")
        if answer is None:
            raise asyncio.CancelledError
        return DECISIONS.get(answer.strip().lower(), "no")

    async def answer(self, asked: Asked) -> Mapping[str, Value] | None:
        """Asks what a server wants to know; None if the user does not say."""
        self._tell(f"The server {asked.server} asks: {asked.message}")
        if not asked.fields:
            return {} if (self._asked("y says yes: ") or "").strip().lower() == "y" else None
        answers: dict[str, Value] = {}
        for field in asked.fields:
            while True:
                text = self._asked(f"{field.name} ({field.wants or 'text'}; a single . answers nothing): ")
                if text is None or text.strip() == ".":
                    return None
                try:
                    value = field.value(text)
                except SettingError as error:
                    self._tell(str(error))
                    continue
                if value is not None:
                    answers[field.name] = value
                break
        return answers

    def _asked(self, sentence: str) -> str | None:
        """Returns the line that is typed; None after Ctrl+C, and at the end of the input."""
        try:
            with _interruptible():
                return self._ask(sentence)
        except (KeyboardInterrupt, EOFError):
            return None


@contextmanager
def _interruptible() -> Iterator[None]:
    """Lets Ctrl+C end a blocking read, which asyncio would put off until the next line."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def line_of(call: Call) -> str:
    """Returns a call and what came of it in one line."""
    return f"[{in_one_line(call)} · {outcome_of(call)}]"
