"""Draws the README's picture of the app: a real answer of the embedded pair.

    python tests/benchmarks/tui_picture.py docs/chat.svg ["a question" ...]

Nothing in it is staged but the question: figures and tints are those of the run. Textual's own SVG, without
its web font, which many places that show a README do not load.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from edgespec.client.attach import Wanted
from edgespec_tui.app import ChatApp
from edgespec_tui.endpoint.attached import AttachedEndpoint, attaching
from edgespec_tui.sessions.conversation import Conversation
from edgespec_tui.widgets.question import Question

QUESTIONS = ("How do I sort a list?", "Hello! Who are you, and what can you help me with?")
FONT = re.compile(r"@font-face \{.*?\}", re.S)


async def draw(file: Path, questions: Sequence[str]) -> None:
    """Asks, waits, and writes the picture."""
    endpoint = AttachedEndpoint(attaching(Wanted()))
    app = ChatApp(endpoint, first=Conversation(sampling={"temperature": 0.0}, max_tokens=160))
    async with app.run_test(size=(124, 26)) as pilot:
        while app.context.engine.state == "starting":
            await asyncio.sleep(0.2)
        for text in questions:
            await app.chat.asking.ask(Question(text))
            while app.chat.answering:
                await asyncio.sleep(0.2)
        await app.chat.action_again()  # what was said before is guessed from memory: something to tint
        while app.chat.answering:
            await asyncio.sleep(0.2)
        await app.chat.action_tint()
        await pilot.pause(0.5)
        svg = FONT.sub("", app.export_screenshot(title="edgespec chat"))
        svg = svg.replace("Fira Code", "ui-monospace, SFMono-Regular, Menlo, Consolas, DejaVu Sans Mono")
        file.write_text("\n".join(line.strip() for line in svg.splitlines() if line.strip()) + "\n")


if __name__ == "__main__":
    asyncio.run(draw(Path(sys.argv[1]), sys.argv[2:] or QUESTIONS))
