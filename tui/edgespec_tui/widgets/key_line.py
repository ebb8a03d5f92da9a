"""The footer: as many keys as have room, each of them whole."""

from __future__ import annotations

from rich.cells import cell_len
from textual.app import ComposeResult
from textual.widgets import Footer
from textual.widgets._footer import FooterKey

PALETTE_EXTRA = 4  # columns beside its words: what sets it off


class KeyLine(Footer):
    """Shows the keys of a screen, the first ones first. Textual's own cuts the last one in two."""

    _room = 0  # columns that it was made for

    def compose(self) -> ComposeResult:
        keys = [key for key in super().compose() if isinstance(key, FooterKey)]
        room = self._room = self.app.size.width
        for key in sorted(keys, key=lambda key: not key.has_class("-command-palette")):  # never left out
            room -= cell_len(f"{key.key_display}{key.description}") + (2 if self.compact else 3)
            if key.has_class("-command-palette"):
                room -= PALETTE_EXTRA
            elif room < 0:
                keys.remove(key)
        yield from keys

    def on_resize(self) -> None:
        """Shows as many as have room now. (New ones may resize it: then all is as it should be.)"""
        if self._room != self.app.size.width:
            self.call_after_refresh(self.recompose)
