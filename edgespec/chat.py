"""Messages -> prompt text, with the model's own Jinja template, in a sandbox, as Transformers renders it."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
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
    now: datetime.datetime | None = None,
) -> str:
    """Returns the prompt for the assistant's next turn.

    messages: {"role", "content", ...} in order. bos, eos: texts of those tokens. Raises TemplateError with
    the template's own complaint where it refuses the messages, or with the place where it is broken.
    """
    try:
        return _compiled(template).render(
            messages=list(messages),
            tools=tools,
            add_generation_prompt=True,
            bos_token=bos,
            eos_token=eos,
            strftime_now=(now or datetime.datetime.now()).strftime,
        )
    except jinja2.TemplateSyntaxError as error:
        raise TemplateError(f"the chat template is broken in line {error.lineno}: {error.message}") from None
    except _REFUSALS as error:
        raise TemplateError(f"the chat template refuses these messages: {error}") from None


@lru_cache(maxsize=4)
def _compiled(template: str) -> jinja2.Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationBlock]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    return environment.from_string(template)


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
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
