"""Messages -> prompt text, with the model's own Jinja template, in a sandbox, as Transformers renders it."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.meta import find_undeclared_variables
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from edgespec.errors import TemplateError

Message = Mapping[str, Any]


def render(
    template: str,
    messages: Sequence[Message],
    *,
    bos: str = "",
    eos: str = "",
    tools: Sequence[Mapping[str, Any]] | None = None,
    documents: Sequence[Mapping[str, Any]] | None = None,
    add_generation_prompt: bool = True,
    variables: Mapping[str, Any] | None = None,
    now: datetime.datetime | None = None,
) -> str:
    """Returns the prompt for the assistant's next turn (without add_generation_prompt: the turns alone).

    messages: {"role", "content", ...} in order. bos, eos: texts of those tokens. variables: what clients
    call `chat_template_kwargs`; the names above are not theirs to set. Raises TemplateError with
    the template's own complaint where it refuses the messages, or with the place where it is broken.
    """
    ours = {
        "messages": _given(messages),
        "tools": _given(tools),
        "documents": _given(documents),
        "add_generation_prompt": add_generation_prompt,
        "bos_token": bos,
        "eos_token": eos,
        "strftime_now": (now or datetime.datetime.now()).strftime,
    }
    try:
        return _compiled(template).render({**_given(variables or {}), **ours})
    except jinja2.TemplateSyntaxError as error:
        raise TemplateError(f"the chat template is broken in line {error.lineno}: {error.message}") from None
    except _REFUSALS as error:
        raise TemplateError(f"the chat template refuses these messages: {error}") from None


@lru_cache(maxsize=8)
def names_wanted(template: str) -> frozenset[str]:
    """Returns the names of the variables that a template looks at."""
    try:
        return frozenset(find_undeclared_variables(_environment().parse(template)))
    except jinja2.TemplateSyntaxError:
        return frozenset()


class _Given(list[Any]):
    """A list that came from outside: templates may not change it."""


def _given(value: Any) -> Any:
    """Returns a value whose lists are marked as given, however deep they lie."""
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
    """{% generation %}: marks the assistant's own words, for training; here it is plain text."""

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
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
