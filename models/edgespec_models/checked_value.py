"""Values from JSON that is not trusted: each has the type that is declared for it."""

import json
import sys
import types
from contextlib import suppress
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

_T = TypeVar("_T")


def checked(kind: type[_T], value: object) -> _T:
    """Returns a value of a type, from what JSON has for it; a dataclass takes the fields that it knows.

    Raises TypeError for anything else; a float is finite.
    """
    found: _T = _checked(kind, value)
    return found


def kept_value(kind: type[_T], path: Path) -> _T | None:
    """Returns the value in a file of JSON; None if there is none of the type."""
    with suppress(OSError, ValueError, TypeError, RecursionError):
        return checked(kind, json.loads(path.read_bytes()))
    return None


def _checked(kind: Any, value: Any) -> Any:
    origin, parts = get_origin(kind), get_args(kind)
    if is_dataclass(kind) and isinstance(value, dict):
        kinds = get_type_hints(kind)
        known = [field.name for field in fields(kind) if field.name in value]
        return kind(**{name: _checked(kinds[name], value[name]) for name in known})  # type: ignore[operator]
    if origin in (Union, types.UnionType):  # with None
        return None if value is None else _checked(parts[0], value)
    if origin in (tuple, set) and isinstance(value, list):
        return origin(_checked(parts[0], one) for one in value)
    if origin is dict and isinstance(value, dict):
        return {key: _checked(parts[1], one) for key, one in value.items()}
    if kind is float and type(value) in (int, float) and abs(value) <= sys.float_info.max:
        return float(value)
    if kind is Any or type(value) is kind is not float or origin is Literal and value in parts:
        return value
    raise TypeError(f"{value!r} is not of {kind}")
