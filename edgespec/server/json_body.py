"""The JSON of a request body: parsed, bounded, and without what no field may contain.

- Too many parts: each object becomes one of ours, and a list of millions takes minutes and gigabytes.
- Too long a text: no context could hold it, and whoever hands it on takes a core from those who answer.
- Half a character: JSON can spell one half of a pair of surrogates (`\\ud800`), which no text can contain
  and nothing downstream can encode. Clients that cut a text in the middle of a character send that.
- Depth: hundreds of nested levels crash every reader that recurses.
- Numbers without an end: `NaN` and `1e999` are no JSON, and no answer that repeats them would be.

It imports nothing of ours, because the process that reads large bodies (`body_child.py`) is started often.
"""

import json
import math
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

DEEPEST = 100  # levels of objects and arrays; a schema may have 64
MOST_GROUPS = 10_000  # objects and arrays: each takes a few microseconds of everybody's time
MOST_VALUES = 2**18  # all values together: the prompt of token ids is the longest list there is
STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
FILES = {"url", "image_url", "data", "images", "multimodal_data"}  # fields of pictures and sounds
HALF = re.compile("[\ud800-\udfff]")
MAYBE_HALF = re.compile(
    rb"\\u[dD][89a-fA-F]|\xed[\xa0-\xbf]|[\xd8-\xdf]\x00|\x00[\xd8-\xdf]"
)  # in some encoding
MAYBE_ENDLESS = re.compile(rb"NaN|Infinity|[eE]\+?\d{3}|\d{300}|\x00")  # the last: UTF-16 and UTF-32


@dataclass(slots=True)
class WrongBodyError(Exception):
    """A body that is not read: why, and which field is wrong."""

    sentence: str
    code: str = "invalid_value"
    param: str | None = None


def parsed(body: bytes, longest: int | None = None, elsewhere: Collection[str] = ()) -> Any:
    """Returns the value of a body; raises WrongBodyError if it is not JSON, or has what no field may.

    longest: characters of a text, unless the body names one of the models `elsewhere`.
    """
    if body.count(b",") >= MOST_VALUES > body.count(b'"') and b"\0" not in body:  # UTF-8, a list of numbers
        if STRING.sub(b"", body).count(b",") >= MOST_VALUES:  # a twentieth of the time that parsing takes
            raise too_many()
    try:
        value = json.loads(body, parse_constant=_endless)
    except json.JSONDecodeError as error:
        raise _not_json(f"{error.msg} at character {error.pos}") from None
    except UnicodeDecodeError:
        raise _not_json("it is not text in UTF-8") from None
    except ValueError:  # Python's limit of digits
        raise _not_json("a number has thousands of digits") from None
    except RecursionError:
        raise _too_deep() from None
    if body.count(b"{") + body.count(b"[") > DEEPEST or body.count(b",") >= MOST_VALUES:
        _check_size(value)
    if longest is not None and len(body) > longest and _model(value) not in elsewhere:
        _check_texts(value, longest)
    for maybe, is_wrong, why in (
        (MAYBE_HALF, _is_half, "holds half a character (a lone surrogate): send whole ones"),
        (MAYBE_ENDLESS, _is_endless, "is a number that is too large: it must be finite"),
    ):
        if maybe.search(body) and (path := next(_places(value, is_wrong), None)) is not None:
            raise _wrong(path, why)
    return value


def _model(value: Any) -> object:
    name = value.get("model") if isinstance(value, dict) else None
    return name if isinstance(name, str) else None


def _check_texts(value: Any, longest: int) -> None:
    """Raises WrongBodyError for a text of more characters."""
    long = _places(value, lambda part: isinstance(part, str) and len(part) > longest)
    path = next((path for path in long if not FILES & set(path[-2:])), None)
    if path is not None:
        fault = f"has more than {longest:,} characters: no context of this model holds that, so shorten it"
        raise _wrong(path, fault, "context_length_exceeded")


def n_characters(value: Any) -> int:
    """Returns how many characters all texts of a value have, the names of fields aside."""
    if isinstance(value, str):
        return len(value)
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return sum(map(n_characters, parts))


def too_many() -> WrongBodyError:
    """Returns the refusal of a body of too many parts."""
    sentence = f"the body has more than {MOST_GROUPS:,} objects and lists, or {MOST_VALUES:,} values in them"
    return WrongBodyError(f"{sentence}: send fewer messages, or shorter lists")


def _endless(spelt: str) -> NoReturn:
    raise _not_json(f"it has no number {spelt}")


def _not_json(why: str) -> WrongBodyError:
    return WrongBodyError(f"the body is not JSON: {why}", "invalid_json")


def _too_deep() -> WrongBodyError:
    return WrongBodyError(f"the body is nested more than {DEEPEST} levels deep: make it flatter")


def _check_size(value: Any) -> None:
    """Raises WrongBodyError for too many levels or parts; does not recurse."""
    level = [value]
    n_groups = n_values = 0
    for _ in range(DEEPEST + 1):
        level = [part for part in level if isinstance(part, dict | list)]
        if not level:
            return
        n_groups += len(level)
        n_values += sum(map(len, level))
        if n_groups > MOST_GROUPS or n_values > MOST_VALUES:
            raise too_many()
        level = [part for one in level for part in (one.values() if isinstance(one, dict) else one)]
    raise _too_deep()


def _wrong(path: tuple[str, ...], fault: str, code: str = "invalid_value") -> WrongBodyError:
    return WrongBodyError(f"{'.'.join(path) or 'the body'} {fault}", code, path[0] if path else None)


def _is_half(value: object) -> bool:
    return isinstance(value, str) and HALF.search(value) is not None


def _is_endless(value: object) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _places(value: Any, is_wrong: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yields the places of wrong values, names included. The value is no deeper than `DEEPEST`."""
    if is_wrong(value):
        yield path
    elif isinstance(value, dict):
        for key, item in value.items():
            if is_wrong(key):
                yield path
            yield from _places(item, is_wrong, (*path, key))
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield from _places(item, is_wrong, (*path, str(i)))
