"""What a tool's schema says of an argument: which types it may have, whatever its text looks like.

A schema is a stranger's value: what is none says nothing, and neither do references that lead nowhere.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

TYPES = frozenset({"string", "number", "integer", "boolean", "null", "array", "object"})
NUMBERS = frozenset({"number", "integer"})
SAID_BY = {  # words that mean something for one type alone, where no type is given
    "string": ("pattern", "minLength", "maxLength", "format", "contentEncoding", "contentMediaType"),
    "object": ("properties", "additionalProperties", "required", "patternProperties", "minProperties"),
    "array": ("items", "prefixItems", "minItems", "maxItems", "uniqueItems", "contains"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}
MOST_STEPS = 200  # schemas within schemas that are looked at for one argument


@dataclass(frozen=True, slots=True)
class ArgumentSchema:
    """A schema, and the one around it, in which its references lead somewhere."""

    here: object
    root: object

    def kinds(self) -> frozenset[str]:
        """Returns the types that a value may have; all of them if that is left open."""
        return _kinds(self.here, self.root, [MOST_STEPS])

    def values(self) -> list[Any]:
        """Returns the values that are listed for it, if it is one of a list."""
        return [value for schema in self.all() for value in _listed(schema)]

    def lengths(self, of: str) -> tuple[int, int | None]:
        """Returns the least and the greatest length that are asked for. of: "Length" or "Items"."""
        least = [n for one in self.all() if isinstance(n := one.get(f"min{of}"), int)]
        most = [n for one in self.all() if isinstance(n := one.get(f"max{of}"), int)]
        return max(least, default=0), min(most, default=None)

    def named(self, name: str) -> "ArgumentSchema":
        """Returns the schema of a property."""
        return self._first("properties", name)

    def item(self) -> "ArgumentSchema":
        """Returns the schema of the elements of a list."""
        found = (schema["items"] for schema in self.all() if "items" in schema)
        return ArgumentSchema(next(found, None), self.root)

    def has(self, name: str) -> bool:
        """Returns whether it names a property."""
        return self.named(name).here is not None

    def fits(self, value: object) -> bool:
        """Returns whether a value has the types, names and listed values that are asked for."""
        kinds = _kinds_of(value) & self.kinds()
        if not kinds or (kinds == {"integer"} and isinstance(value, float) and not value.is_integer()):
            return False
        if (listed := self.values()) and value is not None and value not in listed:
            return False
        if isinstance(value, list):
            return all(self.item().fits(one) for one in value)
        if not isinstance(value, dict):
            return True
        for one in self.all():
            must = one.get("required")
            if isinstance(must, list) and not all(name in value for name in must):
                return False
            if one.get("additionalProperties") is False and not all(self.has(name) for name in value):
                return False
        return all(self.named(name).fits(one) for name, one in value.items())

    def _first(self, group: str, name: str) -> "ArgumentSchema":
        groups = (schema.get(group) for schema in self.all())
        found = (group[name] for group in groups if isinstance(group, Mapping) and name in group)
        return ArgumentSchema(next(found, None), self.root)

    def all(self) -> Iterator[Mapping[str, Any]]:
        """Yields this schema and those that it is made of."""
        waiting, left = [self.here], MOST_STEPS
        while waiting and left:
            schema, left = _there(waiting.pop(0), self.root), left - 1
            if isinstance(schema, Mapping):
                yield schema
                waiting += [part for word in ("allOf", "anyOf", "oneOf") for part in _parts(schema, word)]


def _kinds(schema: object, root: object, left: list[int]) -> frozenset[str]:
    """Returns the types that a schema allows. left: how many may still be looked at; it is counted down."""
    schema = _there(schema, root)
    left[0] -= 1
    if not isinstance(schema, Mapping) or left[0] < 0:
        return TYPES
    kinds = _own_kinds(schema)
    for word in ("anyOf", "oneOf"):
        if parts := _parts(schema, word):
            kinds &= frozenset[str]().union(*(_kinds(part, root, left) for part in parts))
    for part in _parts(schema, "allOf"):
        kinds &= _kinds(part, root, left)
    if schema.get("nullable") is True:  # OpenAPI's word
        kinds |= {"null"}
    return kinds or TYPES


def _own_kinds(schema: Mapping[str, Any]) -> frozenset[str]:
    """Returns the types that a schema itself names, or shows by its other words."""
    kind = schema.get("type")
    named = frozenset(one for one in (kind if isinstance(kind, list) else [kind]) if isinstance(one, str))
    kinds = named & TYPES or TYPES
    if listed := _listed(schema):
        kinds &= frozenset(kind for value in listed for kind in _kinds_of(value))
    elif kinds == TYPES:
        shown = frozenset(kind for kind, words in SAID_BY.items() if not schema.keys().isdisjoint(words))
        kinds = shown | (NUMBERS if "number" in shown else frozenset()) or TYPES
    return kinds


def _listed(schema: Mapping[str, Any]) -> list[Any]:
    enum = schema.get("enum")
    return [*(enum if isinstance(enum, list) else ()), *([schema["const"]] if "const" in schema else ())]


def _kinds_of(value: object) -> frozenset[str]:
    if isinstance(value, bool) or value is None:
        return frozenset({"null" if value is None else "boolean"})
    if isinstance(value, int | float):
        return NUMBERS
    return frozenset(
        {"string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"}
    )


def _parts(schema: Mapping[str, Any], word: str) -> list[Any]:
    parts = schema.get(word)
    return parts if isinstance(parts, list) else []


def _there(schema: object, root: object) -> object:
    """Returns what a schema refers to within its root, or itself; None if it refers to nothing there."""
    seen = 0
    while isinstance(schema, Mapping) and isinstance(to := schema.get("$ref"), str):
        seen += 1
        if seen > MOST_STEPS or not to.startswith("#"):
            return None
        schema = root
        for step in to[1:].split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            schema = schema.get(name) if isinstance(schema, Mapping) else None
    return schema
