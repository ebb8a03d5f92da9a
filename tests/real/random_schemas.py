"""JSON schemas drawn at random, of what people write: objects, enums, numbers in ranges, patterns, choices.

Every text that fits one is short: strings and arrays have bounds, and numbers few digits.
"""

from __future__ import annotations

from typing import Any

import numpy as np

NAMES = ("name", "age", "tags", "id", "is_open", "when", "size", "notes", "kind", "x y", "Größe", 'a"b', "π")
WORDS = ("red", "green", "blue", "yes", "no", "", "a b", 'say "hi"', "日本", "\\", "None")
PATTERNS = ("^[a-z]{1,5}$", "^[A-Z]{2}-[0-9]{3}$", "^(yes|no|maybe)$", "^#[0-9a-f]{6}$")
FORMATS = ("date", "uuid", "ipv4")  # a time may have any number of digits
DEEPEST = 3
Schema = dict[str, Any]


def random_schema(rng: np.random.Generator) -> Schema:
    """Returns a schema whose top is an object, as OpenAI wants it."""
    schema = _object(rng, 0)
    if rng.random() < 0.2:
        schema["$defs"] = {"thing": _value(rng, DEEPEST - 1)}
        schema["properties"]["of_defs"] = {"$ref": "#/$defs/thing"}
    return schema


def _value(rng: np.random.Generator, depth: int) -> Schema:
    kinds = [_string, _string, _integer, _number, _boolean, _enum, _const]
    if depth < DEEPEST:
        kinds += [_object, _object, _array, _array, _any_of, _nullable]
    return kinds[rng.integers(len(kinds))](rng, depth)


def _object(rng: np.random.Generator, depth: int) -> Schema:
    names = rng.permutation(NAMES)[: rng.integers(0 if depth else 1, 4)].tolist()
    required = [name for name in names if rng.random() < 0.7]
    schema: Schema = {"type": "object", "properties": {name: _value(rng, depth + 1) for name in names}}
    if required or rng.random() < 0.5:
        schema["required"] = required
    schema["additionalProperties"] = False
    if rng.random() < 0.15 and 0 < depth < DEEPEST - 1:  # not at the top, which may get one more
        schema |= {"required": names}  # llguidance counts properties only where all are required
        schema["additionalProperties"] = {"type": "boolean"}
        schema["maxProperties"] = len(names) + 1
    return schema


def _array(rng: np.random.Generator, depth: int) -> Schema:
    if rng.random() < 0.2:
        return {
            "type": "array", "prefixItems": [_value(rng, depth + 1), _value(rng, depth + 1)],
            "items": False, "minItems": 2,
        }  # fmt: skip
    least = int(rng.integers(0, 2))
    return {"type": "array", "items": _value(rng, depth + 1), "minItems": least, "maxItems": least + 2}


def _string(rng: np.random.Generator, depth: int) -> Schema:
    kind = rng.random()
    if kind < 0.25:
        return {"type": "string", "pattern": PATTERNS[rng.integers(len(PATTERNS))]}
    if kind < 0.4:
        return {"type": "string", "format": FORMATS[rng.integers(len(FORMATS))]}
    return {"type": "string", "minLength": int(rng.integers(0, 3)), "maxLength": int(rng.integers(3, 12))}


def _integer(rng: np.random.Generator, depth: int) -> Schema:
    low = int(rng.integers(-50, 50))
    schema: Schema = {"type": "integer", "minimum": low, "maximum": low + int(rng.integers(0, 500))}
    if rng.random() < 0.2:
        schema = {"type": "integer", "exclusiveMinimum": low, "exclusiveMaximum": low + 9}
    return schema


def _number(rng: np.random.Generator, depth: int) -> Schema:
    return {"type": "number", "minimum": 0, "maximum": int(rng.integers(1, 9)), "multipleOf": 0.25}


def _boolean(rng: np.random.Generator, depth: int) -> Schema:
    return {"type": "boolean"}


def _enum(rng: np.random.Generator, depth: int) -> Schema:
    some: list[Any] = [*rng.permutation(WORDS)[:3].tolist(), None, 7, -1.5, True, ["a"], {"k": 0}]
    return {"enum": [some[i] for i in rng.permutation(len(some))[: rng.integers(1, 5)]]}


def _const(rng: np.random.Generator, depth: int) -> Schema:
    return {"const": WORDS[rng.integers(len(WORDS))]}


def _any_of(rng: np.random.Generator, depth: int) -> Schema:
    return {"anyOf": [_value(rng, depth + 1) for _ in range(rng.integers(2, 4))]}


def _nullable(rng: np.random.Generator, depth: int) -> Schema:
    return {"type": ["string", "null"], "maxLength": 6}
