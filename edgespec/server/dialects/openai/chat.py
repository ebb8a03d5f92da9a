"""Turns of the assistant -> OpenAI's chat completions: content, reasoning_content and tool_calls."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from edgespec.chat.families.deltas import CallArguments, CallBegun, Content, Delta, Reasoning
from edgespec.server.dialects.openai.answers import CompletionAnswer
from edgespec.server.generation import AnswerChoices, ChoiceRound
from edgespec.server.logprobs import for_chat
from edgespec.server.turns import TurnReader


@dataclass(slots=True)
class ChatAnswer(CompletionAnswer):
    """How one conversation is answered."""

    kind: ClassVar[str] = "chatcmpl"
    whole_object: ClassVar[str] = "chat.completion"
    chunk_object: ClassVar[str] = "chat.completion.chunk"
    nothing: ClassVar[dict[str, Any]] = {"delta": {}}
    scores: ClassVar[Callable[..., dict[str, Any]]] = staticmethod(for_chat)

    turns: list[TurnReader] = field(default_factory=list)  # who reads each choice
    prompt: str | None = None  # if it is to be shown
    functions: bool = False  # a call is reported in the format from before there were tools

    async def whole(self, generation: AnswerChoices) -> dict[str, Any]:
        answer = await CompletionAnswer.whole(self, generation)
        return answer if self.prompt is None else {**answer, "__verbose": {"prompt": self.prompt}}

    def _opening(self, index: int) -> dict[str, Any] | None:
        return {"delta": {"role": "assistant", "content": None}}

    def _parts(self, part: ChoiceRound) -> list[dict[str, Any]]:
        deltas = [_delta(delta) for delta in self.turns[part.index].feed(part.round)]
        return [{"delta": _in_older_words(delta) if self.functions else delta} for delta in deltas]

    def _hear(self, part: ChoiceRound) -> None:
        self.turns[part.index].feed(part.round)

    def _said(self, index: int, text: str) -> dict[str, Any]:
        del text  # the reader has it
        turn = self.turns[index].turn
        message: dict[str, Any] = {
            "role": "assistant",
            "content": turn.content or (None if turn.calls else ""),
        }
        if turn.reasoning:
            message["reasoning_content"] = turn.reasoning
        if turn.calls:
            message["tool_calls"] = [
                {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
                for c in turn.calls
            ]
        return {"message": _in_older_words(message) if self.functions else message}

    def _finish(self, index: int, finish: str | None) -> str | None:
        said = self.turns[index].finish(finish)
        return "function_call" if self.functions and said == "tool_calls" else said

    def _usage(self, generation: AnswerChoices) -> dict[str, Any]:
        thoughts = sum(turn.reasoning_tokens for turn in self.turns)
        return {**generation.usage(), "completion_tokens_details": {"reasoning_tokens": thoughts}}


def _in_older_words(said: dict[str, Any]) -> dict[str, Any]:
    """Returns a message, or a piece of one, with its call as `function_call`."""
    if not (calls := said.get("tool_calls")):
        return said
    rest = {name: value for name, value in said.items() if name != "tool_calls"}
    return {**rest, "function_call": calls[0]["function"]}


class FillAnswer(CompletionAnswer):
    """How a gap is filled in Mistral's `fim/completions`: text, in the format of a chat."""

    kind: ClassVar[str] = "fim"
    whole_object: ClassVar[str] = "chat.completion"
    chunk_object: ClassVar[str] = "chat.completion.chunk"
    nothing: ClassVar[dict[str, Any]] = {"delta": {}}
    scores: ClassVar[Callable[..., dict[str, Any]]] = staticmethod(for_chat)

    def _parts(self, part: ChoiceRound) -> list[dict[str, Any]]:
        return [{"delta": {"role": "assistant", "content": part.round.text}}] if part.round.text else []

    def _said(self, index: int, text: str) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": text, "tool_calls": None}}


def _delta(delta: Delta) -> dict[str, Any]:
    match delta:
        case Content(text):
            return {"content": text}
        case Reasoning(text):
            return {"reasoning_content": text}
        case CallBegun(index, name, id):
            called = {"name": name, "arguments": ""}
            return {"tool_calls": [{"index": index, "id": id, "type": "function", "function": called}]}
        case CallArguments(index, text):
            return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}
