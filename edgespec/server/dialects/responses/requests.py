"""Requests of OpenAI's Responses API, and the conversation they stand for.

Tools that are not functions: "custom" ones take one text, and the model sees them as functions of one
argument; those of a namespace are functions with a family name. What only OpenAI can run (web search, images)
is ignored, because assistants send their whole list of tools.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, StrictBool, StrictStr

from edgespec.server.dialects.translation import Translated, called, content_of, function, picture, text
from edgespec.server.refusal import invalid, quoted, unsupported
from edgespec.server.requests.fields import Fields, Listed, Stops, Whole
from edgespec.server.requests.generation import Seed, SharedFields
from edgespec.server.requests.messages import unreadable

INPUT = "input"  # the one argument of a custom tool
ROLES = {"developer": "system"}
NOT_HERE = {
    "previous_response_id": "responses are not stored, so send the conversation",
    "conversation": "conversations are not stored, so send all of it as input",
    "prompt": "prompts are not stored, so send the text as instructions or input",
    "background": "responses are not stored, so none can be fetched later: leave it out, or stream",
}
TEXTS = frozenset({"input_text", "output_text", "text", "refusal", "summary_text", "reasoning_text"})


class ContentPart(Fields):
    """A part of a message or of an output."""

    type: StrictStr
    text: StrictStr | None = None
    refusal: StrictStr | None = None
    image_url: StrictStr | None = None


Content = StrictStr | Listed[ContentPart]


class InputItem(Fields):
    """An item of the conversation of any type; the type decides which fields count."""

    type: StrictStr = "message"
    role: StrictStr | None = None
    content: Content | None = None
    call_id: StrictStr | None = None
    name: StrictStr | None = None
    arguments: StrictStr | None = None
    input: StrictStr | None = None
    output: Content | None = None
    summary: Listed[ContentPart] | None = None


class ResponseTool(Fields):
    """A tool of any type."""

    type: StrictStr
    name: StrictStr | None = None
    description: StrictStr | None = None
    parameters: dict[str, Any] | None = None
    tools: Listed[ResponseTool] | None = None


class TextFormat(Fields):
    """The form of the answer."""

    type: Literal["text", "json_object", "json_schema"]
    name: StrictStr | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: StrictBool | None = None


class TextOptions(Fields):
    format: TextFormat | None = None


class ReasoningOptions(Fields):
    effort: StrictStr | None = None


@dataclass(frozen=True, slots=True)
class KnownTool:
    """A tool as the client named it. namespace: "" for none."""

    custom: bool
    namespace: str


class InputRequest(Translated):
    """POST /v1/responses/input_tokens; /v1/responses shares these fields."""

    model: StrictStr | None = None
    input: StrictStr | Listed[InputItem]
    instructions: StrictStr | None = None
    tools: Listed[ResponseTool] | None = None
    tool_choice: Literal["auto", "none", "required"] | dict[str, Any] | None = None
    parallel_tool_calls: StrictBool | None = None
    reasoning: ReasoningOptions | None = None
    text: TextOptions | None = None
    previous_response_id: StrictStr | None = None
    conversation: StrictStr | dict[str, Any] | None = None
    prompt: dict[str, Any] | None = None
    background: StrictBool | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def known_tools(self) -> dict[str, KnownTool]:
        """Returns the tools by name."""
        return {str(tool.name): KnownTool(tool.type == "custom", space) for tool, space in _flat(self.tools)}

    def fields(self) -> dict[str, Any]:
        for name, why in NOT_HERE.items():
            if getattr(self, name):
                raise unsupported(name, why)
        given = self.input
        items = [InputItem(role="user", content=given)] if isinstance(given, str) else given
        system = [{"role": "system", "content": self.instructions}] if self.instructions else []
        messages = [*system, *_messages(items)]
        if not messages:
            raise invalid("input", "input has no message: give at least one")
        return {
            "messages": messages,
            "tools": [_function(tool) for tool, _ in _flat(self.tools)],
            "tool_choice": _choice(self.tool_choice),
            "parallel_tool_calls": self.parallel_tool_calls,
            "reasoning_effort": self.reasoning.effort if self.reasoning else None,
            "response_format": _format(self.text.format if self.text else None),
            "chat_template_kwargs": self.chat_template_kwargs,
        }


class ResponsesRequest(InputRequest, SharedFields):
    """POST /v1/responses."""

    max_output_tokens: Annotated[Whole, Field(ge=1)] | None = None
    seed: Seed | None = None
    timings_per_token: StrictBool | None = None
    return_progress: StrictBool | None = None
    stop: Stops = None
    metadata: dict[str, Any] | None = None

    def fields(self) -> dict[str, Any]:
        kept = self.shared("seed", "stop", "timings_per_token", "return_progress")
        return {**super().fields(), **kept, "max_tokens": self.max_output_tokens}

    def echoed(self) -> dict[str, Any]:
        """Returns what a response repeats of its request."""
        tools = [tool.model_dump(exclude_none=True) for tool in self.tools or ()]
        return {
            "instructions": self.instructions,
            "max_output_tokens": self.max_output_tokens,
            "metadata": self.metadata or {},
            "parallel_tool_calls": self.parallel_tool_calls is not False,
            "previous_response_id": None,
            "reasoning": {"effort": self.reasoning.effort if self.reasoning else None, "summary": None},
            "store": False,
            "temperature": self.temperature,
            "text": {"format": {"type": "text"}} if not self.text else self.text.model_dump(by_alias=True),
            "tool_choice": self.tool_choice or "auto",
            "tools": tools,
            "top_p": self.top_p,
            "truncation": "disabled",
        }


def _flat(tools: Sequence[ResponseTool] | None, namespace: str = "") -> Iterator[tuple[ResponseTool, str]]:
    """Yields the tools that a model may call, and their namespaces."""
    for tool in tools or ():
        if tool.type == "namespace":
            yield from _flat(tool.tools, tool.name or "")
        elif tool.type in ("function", "custom") and tool.name:
            yield tool, namespace


def _function(tool: ResponseTool) -> dict[str, Any]:
    schema = tool.parameters
    if tool.type == "custom":
        schema = {"type": "object", "properties": {INPUT: {"type": "string"}}, "required": [INPUT]}
    return function(tool.name, tool.description, schema)


def _choice(choice: str | Mapping[str, Any] | None) -> object:
    if choice is None or isinstance(choice, str):
        return choice
    if choice.get("type") == "allowed_tools":
        tools = choice.get("tools")
        named = [one for one in (tools if isinstance(tools, list) else ()) if isinstance(one, dict)]
        allowed = [{"type": "function", "function": {"name": one.get("name")}} for one in named]
        return {"type": "allowed_tools", "allowed_tools": {"mode": choice.get("mode"), "tools": allowed}}
    if choice.get("name"):
        return {"type": "function", "function": {"name": choice["name"]}}
    return "auto"


def _format(format: TextFormat | None) -> dict[str, Any] | None:
    if format is None or format.type == "text":
        return None
    if format.type == "json_object":
        return {"type": "json_object"}
    named = {"name": format.name, "schema": format.schema_, "strict": format.strict}
    return {"type": "json_schema", "json_schema": named}


# -- items


def _messages(items: Sequence[InputItem]) -> list[dict[str, Any]]:
    """Returns the messages that items stand for: an assistant's text, reasoning and calls are one turn.

    Raises Refusal for an item that none of them can say: the model would not know what was left out.
    """
    messages: list[dict[str, Any]] = []
    for item in items:
        if item.type == "message":
            role = item.role or ""
            if role == "assistant":
                _open_turn(messages)["content"] += _text(item.content)
            else:
                messages.append({"role": ROLES.get(role, role), "content": content_of(item.content, _part)})
        elif item.type == "reasoning":
            turn, thought = _open_turn(messages), _text(item.content or item.summary)
            turn["reasoning_content"] = turn.get("reasoning_content", "") + thought
        elif item.type in ("function_call", "custom_tool_call"):
            _open_turn(messages).setdefault("tool_calls", []).append(_call(item))
        elif item.type in ("function_call_output", "custom_tool_call_output"):
            answer = {
                "role": "tool",
                "tool_call_id": item.call_id or "",
                "content": content_of(item.output, _part),
            }
            messages.append(answer)
        else:
            why = "items are not stored here: send the item itself (`store: false` makes clients do so)"
            if item.type != "item_reference":
                why = "no model here can read it: leave it out, or say it in a message"
            raise unsupported("input", f"an item of type {quoted(item.type)} is not supported, because {why}")
    return messages


def _open_turn(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the assistant's turn that the next item belongs to."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    return messages[-1]


def _call(item: InputItem) -> dict[str, Any]:
    custom = item.type == "custom_tool_call"
    arguments = {INPUT: item.input or ""} if custom else item.arguments or "{}"
    return called(item.call_id or "", item.name or "", arguments)


def _part(part: ContentPart) -> dict[str, Any]:
    if part.image_url:
        return picture(part.image_url)
    if part.type not in TEXTS:
        raise unreadable(part.type)
    return text(part.text or part.refusal or "")


def _text(content: Content | None) -> str:
    """Returns text alone, of the assistant, who sends no pictures. Raises Refusal."""
    parts = content_of(content, _part)
    if isinstance(parts, str):
        return parts
    if any("text" not in part for part in parts):
        raise unreadable("input_image")
    return "".join(part["text"] for part in parts)
