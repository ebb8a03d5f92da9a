"""A turn that calls its tools: as it must, as it may where it otherwise has a form, or as it likes.

Calls are constrained in their family's own notation. Where that has no form for a schema, what must be a call
is one JSON object, {"name": ..., "arguments": {...}}: its name exists, and its arguments fit.
"""

from dataclasses import replace
from typing import Any

from edgespec.chat.conversation import Composed
from edgespec.chat.families.call_form import NoForm, of_arguments
from edgespec.chat.families.family import Family
from edgespec.chat.families.json_calls import JsonCalls
from edgespec.chat.families.known import LLAMA
from edgespec.errors import GrammarError
from edgespec.grammar.grammar import Grammar, Triggers, json_schema

FORMED = "formed"  # the family of answers that are a call or have a form


def forced(composed: Composed, *, several: bool) -> tuple[Composed, Grammar]:
    """Returns a turn that is a call of one of its tools, or several, and its grammar. Raises GrammarError."""
    closed = composed.family.thoughts[0][1] + "\n\n" if composed.opened else ""
    turn = replace(composed, text=composed.text + closed, opened=False)
    try:
        return turn, Grammar(
            "lark", composed.family.only_calls(composed.tools, several=several), lenient=True
        )
    except (NoForm, GrammarError):
        grammar = json_schema({"anyOf": _calls(composed)}, lenient=True)
        return replace(turn, family=Family("forced", bare=JsonCalls())), grammar


def called_or_formed(composed: Composed, form: object) -> tuple[Composed, dict[str, Any]]:
    """Returns a turn that may call one of its tools, and otherwise has a form; and the JSON schema of both.

    form: a JSON schema. A call is JSON as the form is, whatever the family.
    """
    own = form if isinstance(form, dict) else {} if form else {"not": {}}
    schema = {name: value for name, value in own.items() if name not in ("$schema", "x-guidance")}
    family = Family(FORMED, bare=JsonCalls(), thoughts=composed.family.thoughts)
    named = {**schema, "$id": "urn:edgespec:form"}
    return replace(composed, family=family), {"anyOf": [named, *_calls(composed)]}


def calls_form(composed: Composed) -> Grammar | None:
    """Returns the grammar of the calls of a turn that may have some; None if its family has no form for them.

    All else in the turn stays free.
    """
    family = composed.family
    try:
        text = family.form(composed.tools)
        triggers = Triggers(
            family.announcements, family.beginnings(composed.tools), family.thoughts, composed.opened
        )
        return Grammar("lark", text, lenient=True, triggers=triggers)
    except (NoForm, GrammarError):  # too long, for one
        return None


def _calls(composed: Composed) -> list[dict[str, Any]]:
    """Returns the JSON schema of a call for each tool."""
    key = "parameters" if composed.family is LLAMA else "arguments"
    return [
        {
            "type": "object",
            "properties": {"name": {"const": name}, key: of_arguments(schema, i)},
            "required": ["name", key],
            "additionalProperties": False,
        }
        for i, (name, schema) in enumerate(composed.tools.items())
    ]
