"""A picture in half blocks: small enough to be kept with its question, and drawn by any terminal."""

import base64
import binascii
from collections.abc import Sequence
from functools import partial
from itertools import zip_longest
from pathlib import Path

from textual.color import Color
from textual.style import Style
from textual.widgets import Static

from edgespec_tui.endpoint.attached import in_thread
from edgespec_tui.endpoint.media import gone, is_picture
from edgespec_tui.terminal.shown_text import Content

WIDEST, HIGHEST = 32, 16  # pixels; two of them are a character
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "AVIF", "BMP")  # whatever a file is called
MOST_PIXELS = 64_000_000  # of a file, as the server reads it


def thumbnail_of(path: Path) -> str:
    """Returns a picture as a chat keeps it: its width and pixels. Empty if there is none."""
    if not is_picture(path):
        return ""
    from PIL import Image, ImageOps  # late: few questions have pictures

    try:
        with Image.open(path, formats=FORMATS) as image:
            if image.width * image.height > MOST_PIXELS:
                return ""
            image.draft("RGB", (4 * WIDEST, 4 * HIGHEST))
            small = ImageOps.exif_transpose(image).convert("RGB")
            small.thumbnail((WIDEST, HIGHEST))
    except Exception:  # readers of formats raise whatever there is; the server says what is wrong with it
        return ""
    return f"{small.width} {base64.b64encode(small.tobytes()).decode()}"


class Thumbnail(Static):
    """A picture of a question, and a line where its file is gone."""

    def __init__(self, kept: str, file: str, digest: str) -> None:
        super().__init__()
        self._file, self._digest, self._lines = file, digest, half_blocks(kept)
        self._show(self._lines)

    def _show(self, lines: Sequence[Content]) -> None:
        self.update(Content("\n").join(lines))
        self.display = bool(lines)

    async def on_mount(self) -> None:
        self.run_worker(self._look(), group="look")

    async def _look(self) -> None:
        """Says what is wrong with its file. To read a large one takes a while: nothing waits for it."""
        if lost := await in_thread(partial(lost_picture, self._file, self._digest)):
            self._show([*self._lines, Content.styled(lost, "$text-warning")])


def lost_picture(file: str, digest: str) -> str:
    """Returns why a picture is no longer sent; empty if it is."""
    if not gone((file,), (digest,)):
        return ""
    there = Path(file).is_file()
    return f"{Path(file).name} {'has changed and is no longer sent' if there else 'is no longer there'}"


def half_blocks(kept: str) -> list[Content]:
    """Returns the lines of a picture; none of what is no picture."""
    width, _, data = kept.partition(" ")
    try:
        wide, pixels = int(width), base64.b64decode(data)
    except (ValueError, binascii.Error):
        return []
    if not 0 < wide <= WIDEST or not pixels or len(pixels) % (3 * wide):
        return []
    colours = [Color(*pixels[at : at + 3]) for at in range(0, len(pixels), 3)]
    rows = [colours[at : at + wide] for at in range(0, len(colours), wide)]
    lines = []
    for above, below in zip_longest(rows[::2], rows[1::2]):
        lower: Sequence[Color | None] = below or [None] * wide
        lines.append(Content.assemble(*(("▀", Style(*pair)) for pair in zip(lower, above, strict=True))))
    return lines
