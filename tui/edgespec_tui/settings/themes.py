"""Colours: a dark and a light theme of our own beside Textual's, and the tints of origins in each.

The tints differ by more than hue (lightness, and underline with NO_COLOR), and text on them keeps
its contrast.
"""

from __future__ import annotations

from textual.theme import Theme

DARK_TINTS = {
    "origin-model": "#1f5f4a",
    "origin-lookup": "#2b4f86",
    "origin-recycling": "#6b3f7a",
    "origin-target": "#8a8f98",
}
LIGHT_TINTS = {
    "origin-model": "#bfe8d4",
    "origin-lookup": "#c5dcfa",
    "origin-recycling": "#ecd2f3",
    "origin-target": "#6b7078",
}

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
        variables=DARK_TINTS,
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
        variables=LIGHT_TINTS,
    ),
)
