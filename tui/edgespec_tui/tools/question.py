"""A question that a server asks the user in the middle of a call: what it wants to know, field by field."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from edgespec.errors import SettingError

MOST_FIELDS = 20
Value = str | int | float | bool


@dataclass(frozen=True, slots=True)
class Field:
    """One thing that a server wants to know."""

    name: str
    about: str = ""
    type: str = "string"
    choices: tuple[str, ...] = ()
    required: bool = False

    @classmethod
    def all_of(cls, schema: Mapping[str, Any]) -> Iterator["Field"]:
        """Yields the fields of a form; what is not understood is a text."""
        listed, needed = schema.get("properties"), schema.get("required")
        properties = listed if isinstance(listed, dict) else {}
        required = needed if isinstance(needed, list) else []
        for name, one in list(properties.items())[:MOST_FIELDS]:
            about = one if isinstance(one, dict) else {}
            choices = about.get("enum")
            listed = tuple(map(str, choices)) if isinstance(choices, list) else ()
            words = str(about.get("description") or about.get("title") or "")
            yield cls(name, words, str(about.get("type") or "string"), listed, name in required)

    @property
    def wants(self) -> str:
        """What may be answered, in words."""
        kinds = {"boolean": "yes or no", "integer": "a whole number", "number": "a number"}
        kind = ", ".join(self.choices) or kinds.get(self.type, "")
        return " · ".join(filter(None, (self.about, kind, "" if self.required else "may be empty")))

    def value(self, text: str) -> Value | None:
        """Returns what was answered; None for an empty answer to what may be empty. Raises SettingError."""
        text = text.strip()
        if not text and not self.required:
            return None
        try:
            if self.choices and text not in self.choices:
                raise ValueError
            if self.type == "boolean":
                return {"yes": True, "y": True, "true": True, "no": False, "n": False, "false": False}[
                    text.lower()
                ]
            if self.type in ("integer", "number"):
                number = int(text) if self.type == "integer" else float(text)
                if not math.isfinite(number):  # JSON has no such number
                    raise ValueError
                return number
        except (ValueError, KeyError):
            raise SettingError(f"{self.name} is {text!r}: it must be {self.wants}") from None
        return text


@dataclass(frozen=True, slots=True)
class Asked:
    """What a server asks."""

    server: str
    message: str
    fields: tuple[Field, ...] = ()
