"""The form of a family's calls, as a Lark grammar: what a call to one of the tools looks like.

Each reader of calls writes the form that it reads, one tool at a time, with the rules here. What no form can
hold (a schema that mixes what only JSON tells apart) raises NoForm, and calls stay free.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from edgespec.chat.families.argument_schema import TYPES, ArgumentSchema
from edgespec.grammar.grammar import TOOL_ID

ANY = "/(?s:.)*/"
_DATE = "[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])"  # which every month has
_LEAP = "[0-9]{2}([2468][048]|[13579][26]|0[48])-02-29"
_DAYS = f"[0-9]{{4}}-(0[13-9]|1[0-2])-(29|30)|[0-9]{{4}}-(0[13578]|1[02])-31|{_LEAP}"
_TIME = "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
_LABEL = "[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
_BYTE = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
FORMATS = {  # of JSON schema: terminals
    "date": f"/{_DATE}|{_DAYS}/",
    "time": f"/{_TIME}/",
    "date-time": f"/({_DATE}|{_DAYS})T{_TIME}/",
    "uuid": "/[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}/",
    "email": f"/[a-zA-Z0-9!#$%&'*+=?^_{{|}}~-]+(\\.[a-zA-Z0-9!#$%&'*+=?^_{{|}}~-]+)*@{_LABEL}(\\.{_LABEL})+/",
    "hostname": f"/{_LABEL}(\\.{_LABEL})*/",
    "ipv4": f"/{_BYTE}(\\.{_BYTE}){{3}}/",
}

Tools = Mapping[str, Mapping[str, Any]]  # name -> JSON schema of the arguments


class NoForm(Exception):
    """These arguments have no form in this notation."""


class Rules:
    """The rules of one grammar, written one after another."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def text(self, start: Sequence[str]) -> str:
        """Returns the grammar of a choice between expressions."""
        return "\n".join([f"start: {' | '.join(start)}", *self._lines])

    def _name(self, prefix: str) -> str:
        return f"{prefix}{len(self._lines)}"

    def rule(self, expression: str) -> str:
        """Adds a rule, and returns its name."""
        name = self._name("r")
        self._lines.append(f"{name}: {expression}")
        return name

    def json(self, schema: object, root: object = None) -> str:
        """Returns the name of a rule for JSON that fits a schema. root: where its references lead."""
        if isinstance(schema, Mapping) and isinstance(root, Mapping):
            kept = {word: root[word] for word in ("$defs", "definitions") if word in root}
            schema = {**kept, **schema}
        return self.rule(f"%json {json.dumps(schema if isinstance(schema, Mapping | bool) else {})}")

    def in_order(self, parts: Sequence[tuple[str, bool]], between: str = "") -> str:
        """Returns an expression for parts in this order. parts: (expression, must be there).

        between: the text that separates two of them.
        """
        if not between:
            return " ".join(text if must else f"({text})?" for text, must in parts)
        behind, ways = "", [] if any(must for _, must in parts) else ['""']
        for i in reversed(range(len(parts))):
            text, must = parts[i]
            if not any(earlier for _, earlier in parts[:i]):
                ways.append(f"{text} {behind}".strip())
            one = f"{literal(between)} {text}"
            behind = self.rule(f"{one if must else f'({one})?'} {behind}".strip())
        return f"({' | '.join(reversed(ways))})"

    def string(self, schema: ArgumentSchema, end: str, *never: str) -> str:
        """Returns an expression for any text that fits a schema of strings, up to an end.

        never: what the text must not have in it, besides the end.
        """
        listed = schema.values()
        if listed:
            texts = [
                one for one in listed if isinstance(one, str) and not any(n in one for n in (end, *never))
            ]
            if not texts:
                raise NoForm
            return f"({' | '.join(literal(one) for one in texts)}) {literal(end)}"
        terminal = self._name("T")
        parts = [ANY, *(f"~/(?s:.)*{pattern(one)}(?s:.)*/" for one in never), *_limits(schema)]
        parts += formats_of(schema)
        self._lines.append(f"{terminal}: {' & '.join(parts)}")
        name = self._name("r")
        self._lines.append(f"{name}[suffix={literal(end)}]: {terminal}")
        return name


def literal(text: str) -> str:
    """Returns a text as Lark writes it."""
    return json.dumps(text, ensure_ascii=False)


def pattern(text: str) -> str:
    """Returns the regular expression of a text."""
    return "".join(c if c.isalnum() else f"\\u{{{ord(c):x}}}" for c in text)


def formats_of(schema: ArgumentSchema) -> list[str]:
    """Returns the terminals of the formats that a schema of strings names; others are not kept to."""
    if schema.kinds() != {"string"}:  # it may be another type's text
        return []
    named = (one.get("format") for one in schema.all())
    return [FORMATS[name] for name in named if isinstance(name, str) and name in FORMATS]


def lengths_of(schema: ArgumentSchema, of: str) -> tuple[int, int | None]:
    """Returns the least and the greatest length; raises NoForm where none is between them."""
    least, most = schema.lengths(of)
    if most is not None and least > most:
        raise NoForm
    return least, most


def _limits(schema: ArgumentSchema) -> Iterator[str]:
    """Yields what a schema says of the length of strings and of their pattern. Raises NoForm."""
    least, most = lengths_of(schema, "Length")
    if least or most is not None:
        yield f"/(?s:.){{{least},{'' if most is None else most}}}/"
    for one in schema.all():
        if isinstance(found := one.get("pattern"), str):
            yield _pattern(found)


def _pattern(regex: str) -> str:
    """Returns a JSON schema's pattern, which may match anywhere unless it is anchored. Raises NoForm."""
    inner = regex.removeprefix("^")
    before = "" if inner != regex else "(?s:.)*"
    after = "(?s:.)*"
    if inner.endswith("$") and not inner.endswith("\\$"):
        inner, after = inner[:-1], ""
    if (
        any(sign in inner for sign in ("^", "$", "(?", "\\b", "\\B"))
        or "|" in inner
        and not (before and after)
    ):
        raise NoForm
    return f"/{before}(?:{inner.replace('/', chr(92) + '/')}){after}/"


COMBINED = (
    "anyOf",
    "oneOf",
    "not",
    "if",
    "dependentRequired",
    "dependentSchemas",
    "minProperties",
    "patternProperties",
    "propertyNames",
)


def arguments(schema: ArgumentSchema) -> list[tuple[str, ArgumentSchema, bool]]:
    """Returns the properties that a schema of arguments names, and which must be there. Raises NoForm."""
    found: dict[str, ArgumentSchema] = {}
    required: set[str] = set()
    for one in schema.all():
        if any(word in one for word in COMBINED):
            raise NoForm
        properties, must = one.get("properties"), one.get("required")
        for name in properties if isinstance(properties, Mapping) else ():
            found.setdefault(name, schema.named(name))
        required |= {name for name in must if isinstance(name, str)} if isinstance(must, list) else set()
    for name in required - found.keys():
        found[name] = ArgumentSchema({}, schema.root)
    if not all(name and name.isprintable() and not set(name) & set("<>\"'`|=:{}[]") for name in found):
        raise NoForm
    return [(name, of, name in required) for name, of in found.items()]


def is_any(schema: ArgumentSchema) -> bool:
    """Returns whether every value fits a schema."""
    here = schema.here
    words = {"description", "title", "default", "examples", "$id", "$comment"}
    return here is None or here is True or (isinstance(here, Mapping) and set(here) <= words)


def is_text(schema: ArgumentSchema) -> bool:
    """Returns whether any text may stand for its value: it is read as a string. Raises NoForm for mixtures
    of strings that are limited with other types.
    """
    kinds = schema.kinds()
    if is_any(schema) or kinds == {"string"}:
        return True
    if "string" not in kinds:
        return False
    if schema.values():
        return all(isinstance(one, str) for one in schema.values())
    if kinds == TYPES or any(True for _ in _limits(schema)):
        raise NoForm
    return True


def ways_of(schema: ArgumentSchema) -> list[ArgumentSchema]:
    """Returns the schemas of which a value must fit one, and nothing else. Raises NoForm."""
    here = schema.here
    words = [word for word in ("anyOf", "oneOf") if isinstance(here, Mapping) and word in here]
    if len(words) != 1 or not isinstance(here, Mapping):
        raise NoForm
    if set(here) - {words[0], "description", "title", "default"}:
        raise NoForm
    return [ArgumentSchema(way, schema.root) for way in here[words[0]]]


def of_arguments(schema: Mapping[str, Any], number: int) -> dict[str, Any]:
    """Returns the schema of arguments: an object, even if it does not say so.

    It gets a name of its own, to which its references ("#/$defs/Point") lead, as they did before
    it was part of another; the draft it was written for would change how names are read.
    """
    id = schema.get("$id")
    based = _rebased(schema, id) if isinstance(id, str) and id else schema
    own = {name: value for name, value in based.items() if name != "$schema"}
    if own.get("type") is None:
        own["type"] = "object"
    return {**own, "$id": f"{TOOL_ID}{number}"}


def _rebased(value: Any, id: str) -> Any:
    """Returns a schema whose references to itself by its name (`$id`) are those to its beginning, "#"."""
    if isinstance(value, list):
        return [_rebased(one, id) for one in value]
    if not isinstance(value, Mapping):
        return value
    to = value.get("$ref")
    own = isinstance(to, str) and to.partition("#")[0] == id.rstrip("#")
    rebased = {name: _rebased(one, id) for name, one in value.items()}
    return {**rebased, "$ref": "#" + to.partition("#")[2]} if own and isinstance(to, str) else rebased
