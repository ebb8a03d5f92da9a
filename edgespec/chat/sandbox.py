"""Renders chat templates in Jinja's sandbox, as Transformers does: the child process that does so.

The sandbox keeps a template from reaching anything beyond its messages. It limits neither time nor memory
(`'a' * 10**10` is plain Python to it), so it runs in a process of its own, which `template.py` asks.
"""

import datetime
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.meta import find_undeclared_variables
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from edgespec.chat.generated import Generated
from edgespec.chat.plain_tools import plain_tools
from edgespec.errors import TemplateError
from edgespec.system.limited_child import answer_within


def rendered(template: str, values: Mapping[str, Any], now: datetime.datetime | None) -> str:
    """Returns a template's text. values: its variables. now: None is the time of asking.

    If it fails on the schemas of tools, it gets plainer ones.

    Raises TemplateError if it is broken or refuses, MemoryError if it takes more than there is.
    """
    when = now or datetime.datetime.now()
    try:
        return _text(template, values, when)
    except jinja2.TemplateSyntaxError as error:
        raise TemplateError(f"the chat template is broken in line {error.lineno}: {error.message}") from None
    except _REFUSALS as error:
        if values.get("tools"):
            with suppress(*_REFUSALS):
                return _text(template, {**values, "tools": plain_tools(values["tools"])}, when)
        raise TemplateError(f"the chat template refuses these messages: {error}") from None


def _text(template: str, values: Mapping[str, Any], when: datetime.datetime) -> str:
    return _compiled(template).render({**_given(values), "strftime_now": when.strftime})


def names_wanted(template: str) -> frozenset[str]:
    """Returns the names of the variables that a template reads; none if it is broken."""
    try:
        return frozenset(find_undeclared_variables(_environment().parse(template)))
    except (jinja2.TemplateSyntaxError, RecursionError):
        return frozenset()


class _Given(list[Any]):
    """A list from outside: templates may not change it."""


_Given.__name__, _Given.__qualname__, _Given.__module__ = "list", "list", "builtins"  # as errors name it


def _given(value: Any) -> Any:
    """Returns a value whose lists are marked as given, at any depth."""
    if isinstance(value, Generated):
        return Generated({key: _given(item) for key, item in value.items()}, value.text)
    if isinstance(value, Mapping):
        return {key: _given(item) for key, item in value.items()}
    return _Given(map(_given, value)) if isinstance(value, list | tuple) else value


class _Sandbox(ImmutableSandboxedEnvironment):
    """Lets a template change the lists it made itself, as some do (`append`), and nothing else."""

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        return (type(obj) is list and attr == "append") or super().is_safe_attribute(obj, attr, value)


@lru_cache(maxsize=8)
def _compiled(template: str) -> jinja2.Template:
    return _environment().from_string(template)


def _environment() -> jinja2.Environment:
    environment = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationBlock])
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    return environment


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)


_REFUSALS = (
    jinja2.TemplateError,
    TypeError,
    ValueError,
    AttributeError,
    LookupError,
    ArithmeticError,
    RecursionError,
)


class _GenerationBlock(Extension):
    """{% generation %}: marks the assistant's own text, for training; here it is plain text."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    if isinstance(value, Iterator):  # as `map` gives
        value = list(value)
    texts: dict[str, str] = {}
    text = json.dumps(
        _marked(value, texts), ensure_ascii=ensure_ascii, indent=indent, separators=separators,
        sort_keys=sort_keys,
    )  # fmt: skip
    for mark, generated in texts.items():
        text = text.replace(json.dumps(mark), generated, 1)
    return text


def _marked(value: Any, texts: dict[str, str]) -> Any:
    """Returns a value with marks in place of generated arguments, whose texts are added under their marks."""
    if isinstance(value, Generated):
        mark = f"\0{len(texts)}\0"
        texts[mark] = value.text
        return mark
    if isinstance(value, Mapping):
        return {key: _marked(item, texts) for key, item in value.items()}
    return [_marked(item, texts) for item in value] if isinstance(value, list | tuple) else value


def answer(asked: dict[str, Any]) -> str:
    """Returns a template's text, or the names that it reads. Raises TemplateError."""
    if asked["what"] == "names":
        return "\n".join(sorted(names_wanted(asked["template"])))
    return rendered(asked["template"], asked["values"], asked["now"])


if __name__ == "__main__":
    answer_within(answer, TemplateError)
