"""Templates that fail on what agents' schemas have get plainer ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edgespec.chat.plain_tools import plain_tools
from edgespec.chat.template import render
from edgespec.errors import TemplateError

USER = [{"role": "user", "content": "Hi"}]
ASKING = """{%- macro kind(of) -%}
    {%- if of.type in ("string", "integer", "object", "array", "number", "boolean") -%} {{ of.type }}
    {%- else -%} {%- for one in of.type -%} {{ kind({"type": one}) }} {%- endfor -%} {%- endif -%}
{%- endmacro -%}
{%- for tool in tools -%}
    {%- for name, of in tool.function.parameters.properties.items() -%}
        {{ name + ": " + kind(of) + " " + of.description + ";" }}
    {%- endfor -%}
{%- endfor -%}"""
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "share": {"type": ["null", "number"], "description": "a part"},
        "way": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
        "unit": {"enum": ["m", "ft"]},
        "any": {},
        "type": {"type": "string"},
    },
}


def tools(schema: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": "walk", "parameters": schema}}]


def test_a_template_that_knows_no_types_in_a_list_gets_one_type_and_a_description() -> None:
    written = render(ASKING, USER, tools=tools(SCHEMA))
    assert written == "share: number a part;way: integer ;unit: string ;any: string ;type: string ;"


def test_a_template_that_takes_schemas_as_they_are_gets_them_as_they_are() -> None:
    assert "anyOf" in render("{{ tools | tojson }}", USER, tools=tools(SCHEMA))


def test_a_template_that_refuses_the_messages_is_reported_with_its_own_reason() -> None:
    with pytest.raises(TemplateError, match="no system message"):
        render("{{ raise_exception('no system message') }}", USER, tools=tools(SCHEMA))


@pytest.mark.parametrize(
    "schema", [None, [], "x", {"properties": []}, {"properties": {"a": 1}}, {"enum": []}]
)
def test_what_is_no_schema_stays_harmless(schema: Any) -> None:
    assert plain_tools([{"name": "walk", "parameters": schema}, "x"])[1] == "x"


@pytest.mark.parametrize(
    "name", ["CohereForAI-c4ai-command-r-plus-tool_use", "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use"]
)
def test_published_templates_take_what_agents_send(test_data: Path, name: str) -> None:
    template = (test_data / "templates" / f"{name}.jinja").read_text(encoding="utf-8")
    assert "walk" in render(template, USER, tools=tools(SCHEMA))
