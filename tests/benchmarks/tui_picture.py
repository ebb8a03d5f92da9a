"""Draws the README's picture of the app: the demo, as it ends on this machine.

    python tests/benchmarks/tui_picture.py docs/chat.svg

Nothing in it is staged: figures, texts and tints are those of the run. Textual's own SVG, without its web
font, which many places that show a README do not load.
"""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path

from edgespec_tui.demo_app import DemoApp
from edgespec_tui.screens.demo import DemoScreen

FONT = re.compile(r"@font-face \{.*?\}", re.S)


async def draw(file: Path) -> None:
    """Runs the demo, and writes the picture."""
    app = DemoApp(screen := DemoScreen())
    async with app.run_test(size=(124, 28)) as pilot:
        await pilot.pause()
        while screen.running:
            await asyncio.sleep(0.2)
        await pilot.pause(0.5)
        svg = FONT.sub("", app.export_screenshot(title="edgespec demo"))
        svg = svg.replace("Fira Code", "ui-monospace, SFMono-Regular, Menlo, Consolas, DejaVu Sans Mono")
        file.write_text("\n".join(line.strip() for line in svg.splitlines() if line.strip()) + "\n")
    print("\n".join(screen.conclusion))


if __name__ == "__main__":
    asyncio.run(draw(Path(sys.argv[1])))
