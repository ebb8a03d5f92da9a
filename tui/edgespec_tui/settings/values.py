"""The settings of an answer, as the settings file, `/set` and the flags name them."""

import difflib
from collections.abc import Iterable
from contextlib import suppress

from edgespec.errors import SettingError
from edgespec.sampling.settings import ANY, NUMBERS, Number

ANSWER = {**NUMBERS, "seed": Number(0, 0, 2**63 - 1), "max_tokens": Number(1, 1, ANY)}


def number_text(value: float) -> str:
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
        raise SettingError(f"{name} takes one value, or `default`: /set {name} VALUE")
    if words[1] in ("default", "none"):
        return name, None
    value: float | str = words[1]
    with suppress(ValueError):
        value = ANSWER[name].kind(words[1])
    if isinstance(value, str) or not ANSWER[name].holds(value):
        raise SettingError(f"{name} is {words[1]!r}: it must be {ANSWER[name].allowed}")
    return name, value


def meant(name: str, known: Iterable[str]) -> str:
    """Returns what an unknown name may have meant, as the end of a sentence."""
    known = list(known)
    close = difflib.get_close_matches(name, known, n=1)
    return f": did you mean {close[0]}?" if close else f": there are {', '.join(known)}"
