"""The user's own commands: `!make test` runs in the shell, and what it writes goes with the next question."""

import asyncio
import codecs
from dataclasses import dataclass

from textual.widgets import Static

from edgespec.system.end_process import end_with_children
from edgespec_tui.terminal.shown_text import Content
from edgespec_tui.widgets.attached_files import fence_for
from edgespec_tui.widgets.question import Insert, QuestionText, count_of

ROWS = 6  # of its end that are shown while it runs
HALF = 6_000  # characters kept of the beginning and of the end
READ = 2**14  # bytes
EVERY_S = 0.1  # between two drawings


@dataclass(slots=True)
class Ran:
    """A command, and the beginning and the end of what it writes. code: None while it runs, or if stopped."""

    command: str
    code: int | None = None
    head: str = ""
    tail: str = ""
    left_out: int = 0  # characters between them

    def add(self, text: str) -> None:
        """Takes what it has written since."""
        room = HALF - len(self.head)
        self.head += text[:room]
        self.tail += text[max(0, room) :]
        surplus = max(0, len(self.tail) - HALF)
        self.left_out += surplus
        self.tail = self.tail[surplus:]

    def text(self) -> str:
        """Returns what is kept, and what is not in a line."""
        gap = f"\n[... {self.left_out:,} characters left out ...]\n" if self.left_out else ""
        return f"{self.head}{gap}{self.tail}"

    def question(self) -> QuestionText:
        """Returns it as a part of a question, folded."""
        text = self.text().rstrip()
        fence = fence_for(text)
        ended = "stopped" if self.code is None else f"exit code {self.code}"
        block = f"$ {self.command}\n{fence}\n{text}\n{fence}\n({ended})"
        return QuestionText(f"{block}\n", (Insert(0, len(block), f"[output: {count_of(text)}]"),))


class ShellOutput(Static):
    """Shows the end of what a command writes, while it runs."""

    def __init__(self) -> None:
        super().__init__("", id="shell")
        self._drawn = 0.0

    async def run(self, command: str) -> Ran:
        """Runs a command in the shell, without standard input; cancelling stops it and what it started.

        Raises OSError if there is no shell.
        """
        ran, decoder = Ran(command), codecs.getincrementaldecoder("utf-8")("replace")
        process = await asyncio.create_subprocess_shell(
            command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        assert process.stdout
        self._show(ran)
        try:
            while data := await process.stdout.read(READ):
                ran.add(decoder.decode(data))
                self._show(ran)
            ran.code = await process.wait()
        except asyncio.CancelledError:
            await end_with_children(process)
        finally:
            self.display = False
        return ran

    def _show(self, ran: Ran) -> None:
        """Draws the last rows, not more often than can be read."""
        now = asyncio.get_running_loop().time()
        if now - self._drawn < EVERY_S and self.display:
            return
        self._drawn, self.display = now, True
        lines = ran.text().rstrip().splitlines()[-ROWS:]
        head = Content.assemble("Esc stops it   ", (f"$ {ran.command}", "bold"))
        self.update(Content("\n").join([head, *map(Content, lines)]))
