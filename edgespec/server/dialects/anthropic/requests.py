"""Requests of Anthropic's clients, as pydantic models, and the conversation they stand for."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StrictBool, StrictStr

from edgespec.server.dialects.translation import Translated, called, content_of, function, picture, text
from edgespec.server.refusal import Refusal
from edgespec.server.requests.fields import Fields, Listed, StopList, Whole
from edgespec.server.requests.generation import SharedFields
from edgespec.server.requests.messages import unreadable
from edgespec.server.requests.tools import Name


class Source(Fields):
    """Where a picture is."""

    type: StrictStr
    media_type: StrictStr | None = None
    data: StrictStr | None = None
    url: StrictStr | None = None


class Block(Fields):
    """A part of a message of any type; the type decides which fields count."""

    type: StrictStr
    text: StrictStr | None = None
    thinking: StrictStr | None = None
    id: StrictStr | None = None
    name: StrictStr | None = None
    input: dict[str, Any] | None = None
    tool_use_id: StrictStr | None = None
    content: StrictStr | Listed[Block] | None = None
    source: Source | StrictStr | None = None
    title: StrictStr | None = None
    tool_name: StrictStr | None = None

    def as_text(self) -> str:
        """Returns what it says: a found page with its title and address, the name of a tool."""
        if self.type != "search_result":
            return self.text or self.tool_name or ""
        found = [block.text or "" for block in self.content or () if isinstance(block, Block)]
        address = self.source if isinstance(self.source, str) else ""
        return "\n".join(filter(None, [self.title, address, *found]))

    def as_part(self) -> dict[str, Any]:
        """Returns a picture as a part of OpenAI's message."""
        source = self.source if isinstance(self.source, Source) else Source(type="")
        url = source.url or f"data:{source.media_type or ''};base64,{source.data or ''}"
        return picture(url)


class MessageParam(Fields):
    """One turn."""

    role: Literal["user", "assistant", "system"]
    content: StrictStr | Listed[Block]


class ToolParam(Fields):
    """A tool. One without a schema is run by the service itself, and ignored here."""

    name: Name
    description: StrictStr | None = None
    input_schema: dict[str, Any] | None = None


class ToolChoice(Fields):
    """Whether a tool has to be called."""

    type: Literal["auto", "any", "tool", "none"]
    name: StrictStr | None = None
    disable_parallel_tool_use: StrictBool | None = None


class Thinking(Fields):
    """Whether to think before answering."""

    type: Literal["enabled", "disabled", "adaptive"]


class OutputFormat(Fields):
    type: Literal["json_schema"]
    schema_: Annotated[dict[str, Any], Field(alias="schema")]


class OutputConfig(Fields):
    """How much effort, and which form."""

    effort: StrictStr | None = None
    format: OutputFormat | None = None


class CountRequest(Translated):
    """POST /v1/messages/count_tokens; /v1/messages shares these fields."""

    model: StrictStr | None = None
    messages: Annotated[Listed[MessageParam], Field(min_length=1)]
    system: StrictStr | Listed[Block] | None = None
    tools: Listed[ToolParam] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def fields(self) -> dict[str, Any]:
        system = [{"role": "system", "content": _system(self.system)}] if self.system else []
        choice, tools = self.tool_choice, [tool for tool in self.tools or () if tool.input_schema is not None]
        form = self.output_config.format if self.output_config else None
        thinking = self.thinking and self.thinking.type != "adaptive"
        variables = {"enable_thinking": self.thinking.type == "enabled"} if self.thinking and thinking else {}
        return {
            "messages": [*system, *(one for message in self.messages for one in _turns(message))],
            "tools": [function(tool.name, tool.description, tool.input_schema) for tool in tools],
            "tool_choice": _choice(choice),
            "reasoning_effort": self.output_config.effort if self.output_config else None,
            "json_schema": form.schema_ if form else None,
            "parallel_tool_calls": not (choice and choice.disable_parallel_tool_use),
            "chat_template_kwargs": {**variables, **(self.chat_template_kwargs or {})},
        }


class MessagesRequest(CountRequest, SharedFields):
    """POST /v1/messages."""

    max_tokens: Annotated[Whole, Field(ge=1)] | None = None
    stop_sequences: StopList = None
    seed: Whole | None = None

    def fields(self) -> dict[str, Any]:
        kept = self.shared("max_tokens", "seed")
        return {**super().fields(), **kept, "stop": self.stop_sequences or None}


def _system(system: str | list[Block] | None) -> str:
    texts = [system] if isinstance(system, str) else [block.text or "" for block in system or ()]
    return "".join(texts)


def _turns(message: MessageParam) -> list[dict[str, Any]]:
    """Returns the messages of one turn: tool results are messages of their own, before its text."""
    blocks = message.content
    if isinstance(blocks, str):
        return [{"role": message.role, "content": blocks}]
    results = [
        {"role": "tool", "tool_call_id": block.tool_use_id or "", "content": content_of(block.content, _part)}
        for block in blocks
        if block.type == "tool_result"
    ]
    uses = [block for block in blocks if block.type == "tool_use"]
    calls = [called(block.id or "", block.name, block.input or {}) for block in uses]
    thoughts = "".join(block.thinking or "" for block in blocks if block.type == "thinking")
    spoken = content_of([block for block in blocks if block.type not in APART], _part)
    turn: dict[str, Any] = {"role": message.role, "content": spoken}
    if calls:
        turn["tool_calls"] = calls
    if thoughts:
        turn["reasoning_content"] = thoughts
    return [*results, turn] if spoken or calls or thoughts or not results else results


APART = frozenset({"tool_result", "tool_use", "thinking", "redacted_thinking"})
WITH_TEXT = frozenset({"text", "search_result", "tool_reference"})
PICTURE = "image"


def _part(block: Block) -> dict[str, Any] | None:
    if block.type == PICTURE:
        return block.as_part()
    if block.type not in WITH_TEXT:
        raise unreadable(block.type)
    return text(words) if (words := block.as_text()) else None


def _choice(choice: ToolChoice | None) -> object:
    if choice is None or choice.type in ("auto", "none"):
        return choice and choice.type
    if choice.type == "any":
        return "required"
    if not choice.name:
        raise Refusal(400, "tool_choice.name is missing: name the tool", param="tool_choice")
    return {"type": "function", "function": {"name": choice.name}}
