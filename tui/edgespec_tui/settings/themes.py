"""Colours: a dark and a light theme of our own besides Textual's, and the tints of origins in each.

The tints differ by more than hue (lightness, and underline with NO_COLOR), and text on them keeps
its contrast.
"""

from itertools import zip_longest

from textual.theme import Theme

from edgespec.core.values import FREE


def _tints(target: str, model: str, *free: str) -> dict[str, str]:
    """Returns a colour for each origin; free guessers after the last colour share it."""
    colours = zip_longest(FREE, free, fillvalue=free[-1])
    found = {"target": target, "grammar": target, "model": model, **dict(colours)}
    return {f"origin-{name}": colour for name, colour in found.items()}


DARK_TINTS = _tints("#8a8f98", "#1f5f4a", "#2b4f86", "#6b3f7a")
LIGHT_TINTS = _tints("#6b7078", "#bfe8d4", "#c5dcfa", "#ecd2f3")

DEFAULT_THEME, LIGHT_THEME = "edgespec-dark", "edgespec-light"
THEMES = (
    Theme(
        name="edgespec-dark",
        primary="#4fb69a",
        secondary="#6c9bd9",
        accent="#e0a458",
        foreground="#d6d9de",
        background="#14171b",
        surface="#1a1e23",
        panel="#22272e",
        success="#6fbf73",
        warning="#e0a458",
        error="#e06c6c",
        dark=True,
    ),
    Theme(
        name="edgespec-light",
        primary="#1f7a63",
        secondary="#2f62a8",
        accent="#a8650d",
        foreground="#23272d",
        background="#fbfbf9",
        surface="#f3f3f0",
        panel="#e9e9e4",
        success="#2f7d3a",
        warning="#a8650d",
        error="#b3343a",
        dark=False,
    ),
)
