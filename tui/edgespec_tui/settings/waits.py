"""How long the app waits for what."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Waits:
    """Seconds."""

    silent_s: float = 10.0  # without a token: there is no speed
    long_s: float = 10.0  # an answer of this length: people look at something else
    regain_s: float = 2.0  # between two tries to get a chat that another window has
    quiet_s: float = 0.8  # without a key, before the keys are for a question in the middle of an answer
    guard_s: float = 0.3  # after it got the keyboard, until a key counts
    key_s: float = 0.5  # that a key waits for the one before it: some wait for an engine
