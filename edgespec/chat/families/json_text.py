"""JSON that a model or a client wrote, read into what every reader of JSON takes, and written again.

Python reads more than JSON is: NaN, numbers without an end, halves of characters, any depth. What it makes of
them no answer can carry, and what nests deep no writer can write.
"""

import json
import math
import re
from typing import Any, NoReturn

DEEPEST = 100  # levels of objects and lists
HALF = re.compile("[\ud800-\udfff]")  # of a character


def value_of(text: str) -> Any:
    """Returns the value of JSON text; raises ValueError if it is none, or cannot be written again."""
    try:
        return checked(json.loads(text, parse_constant=_no_number))
    except RecursionError:
        raise ValueError("it nests too deep") from None


def checked(value: Any, depth: int = 0) -> Any:
    """Returns a value that JSON can say, halves of characters replaced; raises ValueError for others."""
    if depth > DEEPEST:
        raise ValueError("it nests too deep")
    match value:
        case str():
            return HALF.sub("\ufffd", value)
        case float() if not math.isfinite(value):
            raise ValueError("its number has no end")
        case dict():
            return {checked(str(key)): checked(item, depth + 1) for key, item in value.items()}
        case list() | tuple():
            return [checked(item, depth + 1) for item in value]
        case None | bool() | int() | float():
            return value
    raise ValueError(f"{type(value).__name__} is nothing that JSON says")


def as_json(value: object) -> str:
    """Returns JSON in the format of arguments; raises ValueError for what it cannot say."""
    return json.dumps(checked(value), ensure_ascii=False)


def is_json(text: str) -> bool:
    """Returns whether a text is JSON, also if its numbers are larger than Python's, or it nests deep."""
    try:
        json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError):
        return False
    return True


def as_object(arguments: str) -> dict[str, Any]:
    """Returns arguments as an object; malformed text of a model is kept under a name."""
    try:
        value = value_of(arguments) if arguments.strip() else {}
    except ValueError:
        return {"arguments": checked(arguments)}
    return value if isinstance(value, dict) else {"arguments": value}


def _no_number(spelt: str) -> NoReturn:
    raise ValueError(f"{spelt} is no number")
