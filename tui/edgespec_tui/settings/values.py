"""The allowed values of an answer's settings: one table for the settings file, `/set` and the command line.

The ranges are those that the engine accepts (`edgespec.sampling`, which the app may not import; a test holds
them together).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

from edgespec.errors import SettingError


@dataclass(frozen=True, slots=True)
class Ranged:
    """A number from `low` to `high`."""

    low: float
    high: float
    whole: bool = False

    @property
    def allowed(self) -> str:
        """Says what is allowed."""
        low, high = (f"{limit:,}" if self.whole else f"{limit:g}" for limit in (self.low, self.high))
        kind = "a whole number" if self.whole else "a number"
        return f"{kind} of {low} or more" if self.high >= 2**31 - 1 else f"{kind} from {low} to {high}"

    def holds(self, value: object) -> bool:
        """True where a value is allowed."""
        kinds = (int,) if self.whole else (int, float)
        return isinstance(value, kinds) and not isinstance(value, bool) and self.low <= value <= self.high


SAMPLING = {
    "temperature": Ranged(0, 100),
    "top_k": Ranged(0, 2**31 - 1, whole=True),
    "top_p": Ranged(0, 1),
    "min_p": Ranged(0, 1),
    "typical_p": Ranged(0, 1),
    "top_n_sigma": Ranged(0, 1000),
    "repeat_penalty": Ranged(0.01, 100),
    "frequency_penalty": Ranged(-100, 100),
    "presence_penalty": Ranged(-100, 100),
    "penalty_last_n": Ranged(-1, 2**31 - 1, whole=True),
}
ANSWER = {
    **SAMPLING,
    "seed": Ranged(0, 2**63 - 1, whole=True),
    "max_tokens": Ranged(1, 2**31 - 1, whole=True),
}


def told(value: float) -> str:
    """Returns a value as shown: a seed in full, 0.7 without further digits."""
    return str(value) if isinstance(value, int) else f"{value:.12g}"


def from_text(text: str) -> tuple[str, float | int | None]:
    """Returns the name and value of "NAME VALUE"; None removes a setting. Raises SettingError."""
    words = text.replace("=", " ").split()
    name = words[0].replace("-", "_") if words else ""
    fits = [known for known in ANSWER if name and known.startswith(name)]
    name = fits[0] if len(fits) == 1 else name
    if name not in ANSWER:
        raise SettingError(f"{name!r} is not a setting{meant(name, ANSWER)}")
    if len(words) != 2:
        raise SettingError(f"{name} takes one value, or `default`")
    if words[1] in ("default", "none"):
        return name, None
    ranged = ANSWER[name]
    value: float | int | str = words[1]
    try:
        value = int(words[1]) if ranged.whole else float(words[1])
    except ValueError:
        pass
    if not isinstance(value, int | float) or not ranged.holds(value):
        raise SettingError(f"{name} is {words[1]!r}: it must be {ranged.allowed}")
    return name, value


def meant(name: str, known: Iterable[str]) -> str:
    """Returns what an unknown name may have meant, as the end of a sentence."""
    known = list(known)
    close = difflib.get_close_matches(name, known, n=1)
    return f": did you mean {close[0]}?" if close else f": there are {', '.join(known)}"
