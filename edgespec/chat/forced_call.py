"""A forced call: the prompt extends to where its family writes calls, and a schema governs the rest.

What follows is one JSON object, {"name": ..., "arguments": {...}}, of one of the tools. Families that write
calls differently get it as JSON too: what counts is that the name exists and the arguments fit.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from edgespec.chat.conversation import Composed
from edgespec.chat.families.call_form import NoForm, of_arguments
from edgespec.chat.families.family import Family
from edgespec.chat.families.json_calls import JsonCalls
from edgespec.chat.families.known import GRANITE, HERMES, LLAMA, MISTRAL_LIST, NEMOTRON
from edgespec.errors import GrammarError
from edgespec.grammar.grammar import Grammar, Triggers

OPENINGS: Mapping[Family, str] = {
    HERMES: "<tool_call>\n",
    MISTRAL_LIST: "[TOOL_CALLS][",
    GRANITE: "<|tool_call|>[",
    NEMOTRON: "<TOOLCALL>[",
}
FORCED = Family("forced", bare=JsonCalls())
FORMED = "formed"  # the family of answers that are a call or have a form


def forced(composed: Composed) -> tuple[Composed, dict[str, Any]]:
    """Returns the prompt of a turn that calls one of its tools, and the JSON schema of what must follow."""
    family = composed.family
    closed = family.thoughts[0][1] + "\n\n" if composed.opened else ""
    opening = next((text for known, text in OPENINGS.items() if known.name == family.name), "")
    text = composed.text + closed + opening
    return replace(composed, text=text, family=FORCED, opened=False), {"anyOf": _calls(composed)}


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
