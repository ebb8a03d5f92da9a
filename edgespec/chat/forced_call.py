"""A forced call: the prompt extends to where its family writes calls, and a schema governs the rest.

What follows is one JSON object, {"name": ..., "arguments": {...}}, of one of the tools. Families that write
calls differently get it as JSON too: what counts is that the name exists and the arguments fit.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from edgespec.chat.conversation import Composed
from edgespec.chat.families.family import Family
from edgespec.chat.families.json_calls import JsonCalls
from edgespec.chat.families.known import GRANITE, HERMES, LLAMA, MISTRAL_LIST, NEMOTRON

OPENINGS: Mapping[Family, str] = {
    HERMES: "<tool_call>\n",
    MISTRAL_LIST: "[TOOL_CALLS][",
    GRANITE: "<|tool_call|>[",
    NEMOTRON: "<TOOLCALL>[",
}
FORCED = Family("forced", bare=JsonCalls())


def forced(composed: Composed) -> tuple[Composed, dict[str, Any]]:
    """Returns the prompt of a turn that calls one of its tools, and the JSON schema of what must follow."""
    family = composed.family
    key = "parameters" if family is LLAMA else "arguments"
    closed = family.thoughts[0][1] + "\n\n" if composed.opened else ""
    opening = next((text for known, text in OPENINGS.items() if known.name == family.name), "")
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": name}, key: _object(schema, i)},
            "required": ["name", key],
            "additionalProperties": False,
        }
        for i, (name, schema) in enumerate(composed.tools.items())
    ]
    text = composed.text + closed + opening
    return replace(composed, text=text, family=FORCED, opened=False), {"anyOf": calls}


def _object(schema: Mapping[str, Any], number: int) -> dict[str, Any]:
    """Returns the schema of arguments: an object, even if it does not say so.

    It gets a name of its own, to which its references ("#/$defs/Point") lead, as they did before
    it was part of another; the draft it was written for would change how names are read.
    """
    own = {name: value for name, value in schema.items() if name != "$schema"}
    if own.get("type") is None:
        own["type"] = "object"
    return {**own, "$id": f"urn:edgespec:tool:{number}"}
