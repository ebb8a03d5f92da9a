"""Metadata that llama.cpp is to read instead of what a model's file says, as its --override-kv has it."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from edgespec.errors import SettingError

LONGEST = 127  # bytes of a key or text that llama.cpp takes
_WORDS = {"true": True, "false": False}
_READ: dict[str, Callable[[str], bool | int | float | str]] = {
    "int": int,
    "float": float,
    "bool": _WORDS.__getitem__,
    "str": str,
}


class MetadataOverride(NamedTuple):
    """One value, under its whole key: `qwen3moe.expert_used_count`."""

    key: str
    value: bool | int | float | str


def parse_overrides(texts: Sequence[str]) -> tuple[MetadataOverride, ...]:
    """Reads KEY=TYPE:VALUE[,...], each. Raises SettingError."""
    return tuple(_parsed(part) for text in texts for part in text.split(","))


def _parsed(text: str) -> MetadataOverride:
    key, equals, typed = text.partition("=")
    kind, colon, value = typed.partition(":")
    try:
        if not (key and equals and colon) or max(len(part.encode()) for part in (key, value)) > LONGEST:
            raise ValueError
        read = _READ[kind](value)
        if kind == "int" and not -(2**63) <= int(read) < 2**63:
            raise ValueError
    except (ValueError, KeyError):
        raise SettingError(
            f"--override-kv {text!r} is not understood: write KEY=TYPE:VALUE with the type int, float, bool "
            f"or str, as in llama.expert_used_count=int:4, and at most {LONGEST} bytes of key and text"
        ) from None
    return MetadataOverride(key, read)
