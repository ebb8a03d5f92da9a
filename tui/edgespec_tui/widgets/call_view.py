"""A call of an answer: a line, folded; what it was given and what came of it below."""

import json

from textual.widgets import Collapsible

from edgespec_tui.terminal.shown_text import Content
from edgespec_tui.tools.loop import as_arguments
from edgespec_tui.tools.values import Call
from edgespec_tui.widgets.block_rows import BlockRows
from edgespec_tui.widgets.markdown_blocks import lines_of

LONGEST = 60  # characters of a call in its line
OUTCOMES = {"asked": "waits", "refused": "not allowed", "stopped": "stopped"}


def in_one_line(call: Call) -> str:
    """Returns a call with its arguments in one line."""
    arguments = as_arguments(call.arguments)
    given = call.arguments if arguments is None else ", ".join(f"{k}={v!r}" for k, v in arguments.items())
    line = " ".join(f"{call.title}({given})".split())
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…"


def outcome_of(call: Call) -> str:
    """Returns what came of a call, in a few words."""
    took = f"{call.seconds:.1f} s"
    return OUTCOMES.get(call.outcome) or (f"failed after {took}" if call.outcome == "failed" else took)


def details_of(call: Call) -> str:
    """Returns what a call was given and what came of it, in full."""
    arguments = as_arguments(call.arguments)
    given = call.arguments if arguments is None else json.dumps(arguments, indent=2, ensure_ascii=False)
    kept = f"(the whole result: {call.kept})" if call.kept else ""
    return "\n".join(filter(None, (given, call.result, kept)))


class CallView(Collapsible):
    """Shows a call."""

    def __init__(self, call: Call) -> None:
        self._rows = BlockRows(lines_of(details_of(call)))
        super().__init__(self._rows, title=self._line(call), classes="call")  # type: ignore[arg-type]
        self.call = call

    @staticmethod
    def _line(call: Call) -> Content:
        """Returns the line of a call: content, because a text would be read as markup."""
        return Content(f"{in_one_line(call)} · {outcome_of(call)}")

    def show(self, call: Call) -> None:
        """Shows a call as it is now."""
        self.call = call
        self.title = self._line(call)  # type: ignore[assignment]
        self._rows.show(lines_of(details_of(call)))
