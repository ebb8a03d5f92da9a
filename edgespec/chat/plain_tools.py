"""Tools for templates that take a schema to be a list of parameters, each with one type and a description.

Some templates fail on `"type": ["string", "null"]`, on a parameter without a type or without a description;
agents send all of these. Only the prompt is made from what is returned here: calls follow the whole schema.
"""

from collections.abc import Mapping, Sequence
from typing import Any

NAMES = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}
OTHER = "string"  # the type of what may be anything


def plain_tools(tools: Sequence[Any]) -> list[Any]:
    """Returns tools whose parameters have one type and a description each, at any depth."""
    return [_plain_tool(tool) for tool in tools]


def _plain_tool(tool: Any) -> Any:
    if not isinstance(tool, Mapping):
        return tool
    if isinstance(tool.get("function"), Mapping):
        return {**tool, "function": _plain_tool(tool["function"])}
    parameters = tool.get("parameters")
    return {"description": "", **tool, "parameters": _plain(parameters if parameters else {"properties": {}})}


def _plain(schema: Any) -> Any:
    if not isinstance(schema, Mapping):
        return {"type": OTHER, "description": ""}
    found = {"description": "", **schema, "type": _type(schema)}
    if isinstance(properties := schema.get("properties"), Mapping):
        found["properties"] = {name: _plain(of) for name, of in properties.items()}
    if found["type"] == "array":
        found["items"] = _plain(schema.get("items"))
    return found


def _type(schema: Mapping[str, Any]) -> str:
    """Returns the first type that a schema allows."""
    named = schema.get("type")
    if isinstance(named, str) and named != "null":
        return named
    if isinstance(named, list):
        return next((name for name in named if isinstance(name, str) and name != "null"), OTHER)
    for ways in ("anyOf", "oneOf", "allOf"):
        if isinstance(schema.get(ways), list) and (first := next(iter(schema[ways]), None)):
            return _type(first) if isinstance(first, Mapping) else OTHER
    if "properties" in schema:
        return "object"
    value = schema["const"] if "const" in schema else next(iter(schema.get("enum") or ()), None)
    return NAMES.get(type(value), OTHER)
