"""A conversation as clients send it -> the prompt, and the reader of the answer.

Messages get the shape that the model's template renders (`traits.py`, `arrangements.py`, `drawing.py`), so
every model can be asked for a tool call; whether it makes one is another matter. Every message reaches the
prompt, or the conversation is refused with the one that does not (`completeness.py`).
"""

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgespec.chat.arrangements import ARRANGEMENTS
from edgespec.chat.completeness import first_complete, shape_of
from edgespec.chat.drawing import Drawing, Message, text_of
from edgespec.chat.families.family import Family
from edgespec.chat.families.reader import Parser
from edgespec.chat.traits import traits_of, variables_for
from edgespec.errors import TemplateError, TemplateOverrunError


@dataclass(frozen=True, slots=True)
class Composed:
    """A prompt, and how to read what follows it."""

    text: str
    family: Family
    opened: bool  # it ends within the reasoning
    tools: Mapping[str, Mapping[str, Any]]  # name -> schema of the arguments; empty if nothing may be called
    normalized: tuple[str, ...] = ()  # lines of the system prompt that were left out or moved

    @property
    def shown(self) -> tuple[str, ...]:
        """The control tokens that must appear in the text."""
        return self.family.shown(tools=bool(self.tools))

    @property
    def stops(self) -> tuple[str, ...]:
        """Texts at which a turn ends."""
        return self.family.stops if self.tools else ()

    def parser(self, *, governed: bool = True) -> Parser:
        """Returns a parser for one answer. governed: a grammar keeps its calls to their form."""
        return self.family.parser(self.tools, opened=self.opened, governed=governed)


def compose(
    template: str,
    messages: Sequence[Message],
    *,
    bos: str = "",
    eos: str = "",
    tools: Sequence[Mapping[str, Any]] = (),
    documents: Sequence[Mapping[str, Any]] | None = None,
    variables: Mapping[str, Any] | None = None,
    add_generation_prompt: bool = True,
    go_on: bool = False,
    now: datetime.datetime | None = None,
) -> Composed:
    """Returns the prompt of a conversation. tools: as OpenAI describes them ({"type": "function", ...}).

    go_on: the last message is the beginning of an answer to continue. Raises TemplateError.
    """
    turns = [_plain(message, traits_of(template).joint) for message in messages]
    begun = turns.pop() if go_on else None
    turns = turns or [{"role": "user", "content": ""}]  # no template renders nothing
    asks = add_generation_prompt or go_on
    first = first_complete(template, tuple(shape_of(turn) for turn in turns), bool(tools), asks)
    refused: TemplateError | None = None
    for arrangement in ARRANGEMENTS[first:]:
        drawn = Drawing(template, arrangement, tools)
        values = {**variables_for(template, tools, now), **(variables or {})}
        try:
            text = drawn.text(
                turns, values, add_generation_prompt=asks, bos=bos, eos=eos, documents=documents, now=now
            )
        except TemplateOverrunError:
            raise
        except TemplateError as error:
            refused = refused or error
            continue
        opened = drawn.family.opened(text)
        if begun is not None:
            beginning, opened = _begun(begun, drawn.family, opened)
            text += beginning
        schemas = {str(tool["function"]["name"]): tool["function"].get("parameters") or {} for tool in tools}
        return Composed(text, drawn.family, opened, schemas)
    assert refused
    raise refused


def _plain(message: Message, joint: str) -> dict[str, Any]:
    """Returns a message whose content is one text, without fields that say nothing."""
    known = {key: value for key, value in message.items() if value is not None}
    return {**known, "content": text_of(message.get("content"), joint)}


def _begun(message: Mapping[str, Any], family: Family, opened: bool) -> tuple[str, bool]:
    """Returns the beginning of an answer to continue, and whether it ends within the reasoning.

    opened: the prompt does so already.
    """
    content, thought = text_of(message.get("content")), str(message.get("reasoning_content") or "")
    if not family.thoughts or not (opened or thought):
        return content, False
    opening, closing = family.thoughts[0]
    begun = ("" if opened else opening) + thought
    return (f"{begun}{closing}\n\n{content}", False) if content else (begun, True)
