"""The footer: as many keys as have room, each of them whole."""

from rich.cells import cell_len
from textual.app import ComposeResult
from textual.widgets import Footer
from textual.widgets._footer import FooterKey

PALETTE_EXTRA = 4  # columns besides its words: what sets it off


class KeyLine(Footer):
    """Shows the keys of a screen, the first ones first. Textual's own cuts the last one in two."""

    _made_for: tuple[object, ...] = ()  # whether keys are known, the columns, each key and if it works now

    async def recompose(self) -> None:
        """Makes new keys where others are to be shown; Textual's own does whenever the focus changes."""
        if not self.is_attached:  # its screen has closed since this was asked for
            return
        bindings = self.screen.active_bindings.values()
        shown = ((key.binding, key.enabled) for key in bindings)
        wanted = (self._bindings_ready, self.app.size.width, *shown)
        if wanted != self._made_for:
            self._made_for = wanted
            await super().recompose()

    def compose(self) -> ComposeResult:
        keys = [key for key in super().compose() if isinstance(key, FooterKey)]
        room = self.app.size.width
        for key in sorted(keys, key=lambda key: not key.has_class("-command-palette")):  # never left out
            room -= cell_len(f"{key.key_display}{key.description}") + (2 if self.compact else 3)
            if key.has_class("-command-palette"):
                room -= PALETTE_EXTRA
            elif room < 0:
                keys.remove(key)
        yield from keys

    def on_resize(self) -> None:
        """Shows as many as have room now."""
        self.call_after_refresh(self.recompose)
