"""A conversation as clients send it -> the prompt, and the reader of the answer.

Messages get the shape that the model's template renders (`traits.py`, `arrangements.py`). What a template
does not support is described in words: tools and calls, in its family's format, and system messages
within the user's. So every model can be asked for a tool call; whether it makes one is another matter.
Every message reaches the prompt, or the conversation is refused with the one that does not.
"""

import datetime
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from contextvars import Context
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from edgespec.chat.arrangements import (
    ARRANGEMENTS,
    Arrangement,
    in_turn,
    one_system_first,
    one_user_at_a_time,
    systems_within_users,
)
from edgespec.chat.families.family import Family
from edgespec.chat.families.json_text import as_object
from edgespec.chat.families.known import DEEPSEEK_R1, DEEPSEEK_V3, GRANITE, HERMES, LFM, family_of
from edgespec.chat.families.reader import Parser
from edgespec.chat.template import render
from edgespec.chat.traits import ID, KEY, TOOL, Traits, tool_for, traits_of, variables_for
from edgespec.errors import TemplateError, TemplateOverrunError

Message = Mapping[str, Any]
EXAMPLES = {
    DEEPSEEK_R1: (
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME\n```json\n{ARGUMENTS}\n```"
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    ),
    DEEPSEEK_V3: (
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{ARGUMENTS}<｜tool▁call▁end｜>"
        "<｜tool▁calls▁end｜>"
    ),
    HERMES: '<tool_call>\n{"name": NAME, "arguments": {ARGUMENTS}}\n</tool_call>',
}


@dataclass(frozen=True, slots=True)
class Composed:
    """A prompt, and how to read what follows it."""

    text: str
    family: Family
    opened: bool  # it ends within the reasoning
    tools: Mapping[str, Mapping[str, Any]]  # name -> schema of the arguments; empty if nothing may be called

    @property
    def shown(self) -> tuple[str, ...]:
        """The control tokens that must appear in the text."""
        return self.family.shown(tools=bool(self.tools))

    @property
    def stops(self) -> tuple[str, ...]:
        """Texts at which a turn ends."""
        return self.family.stops if self.tools else ()

    def parser(self) -> Parser:
        """Returns a parser for one answer."""
        return self.family.parser(self.tools, opened=self.opened)


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
    said = [_plain(message, traits_of(template).joint) for message in messages]
    begun = said.pop() if go_on else None
    said = said or [{"role": "user", "content": ""}]  # no template renders nothing
    asks = add_generation_prompt or go_on
    first = _first_complete(template, tuple(_shape(turn) for turn in said), bool(tools), asks)
    refused: TemplateError | None = None
    for arrangement in ARRANGEMENTS[first:]:
        drawn = _Drawing(template, arrangement, tools)
        values = {**variables_for(template, tools, now), **(variables or {})}
        more = {"bos": bos, "eos": eos, "documents": documents, "now": now}
        try:
            text = drawn.text(said, values, add_generation_prompt=asks, **more)
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


class _Drawing:
    """One way to give a conversation to its template."""

    def __init__(self, template: str, arrangement: Arrangement, tools: Sequence[Mapping[str, Any]]) -> None:
        traits, family = traits_of(template), family_of(template)
        if tools and not family.calls and not family.whole:  # a format that we do not know: ours, in words
            family, traits = (
                replace(HERMES, thoughts=family.thoughts),
                replace(traits, tools=False, calls=False),
            )
        if arrangement.in_words:
            traits = replace(traits, calls=False, results=False)
        self.family = family
        self._template, self._arrangement, self._tools, self._traits = template, arrangement, tools, traits

    def text(
        self,
        said: Sequence[dict[str, Any]],
        variables: Mapping[str, Any],
        *,
        add_generation_prompt: bool,
        **more: Any,
    ) -> str:
        """Returns the prompt. Raises TemplateError."""
        template, traits, given = self._template, self._traits, list(self._tools)
        turns = self._arrangement.of(one_system_first(list(said)))
        turns = [_shaped(turn, template, traits, self.family) for turn in turns]
        if given and not traits.tools:
            turns = _with_system(turns, _instructions(given, self.family))
            given = []
        if not traits.system:
            turns = systems_within_users(turns)
        if self._arrangement.in_words:
            turns = in_turn(turns)
        elif not traits.results:
            turns = one_user_at_a_time(turns)
        if traits.parts:
            for turn in turns:
                turn["content"] = [{"type": "text", "text": text_of(turn.get("content"))}]
        return render(
            template,
            turns,
            tools=given or ([] if traits.empty_tools else None),
            add_generation_prompt=add_generation_prompt,
            variables=variables,
            **more,
        )


# -- whether each message reaches the prompt

Shape = tuple[str, bool, int, bool]  # of a message: role, whether it has text, how many calls, and thoughts


def _shape(turn: Mapping[str, Any]) -> Shape:
    thinks = bool(turn.get("reasoning_content"))
    return str(turn["role"]), bool(turn["content"].strip()), len(turn.get("tool_calls") or ()), thinks


def _first_complete(template: str, shapes: tuple[Shape, ...], tools: bool, asks: bool) -> int:
    """Returns the first arrangement in which every message reaches the prompt; raises TemplateError."""
    return Context().run(_tried_shapes, template, shapes, tools, asks)  # whoever asks first may give up


@lru_cache(maxsize=256)
def _tried_shapes(template: str, shapes: tuple[Shape, ...], tools: bool, asks: bool) -> int:
    """Renders unmistakable words in the same shape, and looks for them.

    The texts themselves would not do: templates escape, trim and repeat them, and short ones are anywhere.
    """
    given = [tool_for(TOOL, KEY)] if tools else []
    turns, lost = [_marked(i, shape) for i, shape in enumerate(shapes)], None
    for number, arrangement in enumerate(ARRANGEMENTS):
        try:
            drawn = _Drawing(template, arrangement, given)
            text = drawn.text(turns, variables_for(template, given), add_generation_prompt=asks)
        except TemplateOverrunError:
            raise
        except TemplateError:
            continue
        missing = [i for i, turn in enumerate(turns) if any(mark not in text for mark in _marks(turn))]
        if not missing:
            return number
        lost = missing[0] if lost is None else lost
    if lost is None:
        return 0  # each is refused: the template says why when it is given the messages themselves
    role = shapes[lost][0]
    raise TemplateError(
        f"the chat template has no room for message {lost + 1} of these, the {role}'s: leave it out, "
        "send it elsewhere, or give another template with --chat-template-file"
    )


def _marked(i: int, shape: Shape) -> dict[str, Any]:
    role, has_text, n_calls, thinks = shape
    turn: dict[str, Any] = {"role": role, "content": f"zqm{i}qz" if has_text else ""}
    if role == "tool":
        turn.update(tool_call_id=ID, name=TOOL)
    if n_calls:
        values = [{KEY: f"zqm{i}c{n}qz"} for n in range(n_calls)]
        turn["tool_calls"] = [
            {"id": ID, "type": "function", "function": {"name": TOOL, "arguments": value}} for value in values
        ]
    return {**turn, "reasoning_content": f"zqr{i}qz"} if thinks else turn


def _marks(turn: Mapping[str, Any]) -> list[str]:
    calls = turn.get("tool_calls") or ()
    return [turn["content"], *(call["function"]["arguments"][KEY] for call in calls)]


# -- the shape of a message


def _plain(message: Message, joint: str) -> dict[str, Any]:
    """Returns a message whose content is one text, without fields that say nothing."""
    known = {key: value for key, value in message.items() if value is not None}
    return {**known, "content": text_of(message.get("content"), joint)}


def _shaped(turn: Message, template: str, traits: Traits, family: Family) -> dict[str, Any]:
    """Returns a message as the template takes it."""
    shaped = dict(turn)
    thought = shaped.get("reasoning_content")
    if thought and "reasoning_content" not in template and "thinking" in template:
        shaped["thinking"] = thought
    calls = shaped.get("tool_calls")
    if not calls:
        shaped.pop("tool_calls", None)
    elif traits.calls:
        shaped["tool_calls"] = [_call(call, traits) for call in calls]
        if not shaped["content"]:
            shaped.update({"content": None} if traits.bare == "none" else {})
            if traits.bare == "missing":
                del shaped["content"]
    else:
        shaped["content"] = "\n".join(filter(None, [shaped["content"], _written(calls, family)]))
        del shaped["tool_calls"]
    if traits.nine and "tool_call_id" in shaped:
        shaped["tool_call_id"] = nine(str(shaped["tool_call_id"]))
    if shaped["role"] == "tool" and not traits.results:
        shaped = {"role": "user", "content": f"<tool_response>\n{shaped['content']}\n</tool_response>"}
    return shaped


def text_of(content: object, joint: str = "") -> str:
    """Returns the text of a message's content: a string, or the texts of its parts."""
    if isinstance(content, list | tuple):
        parts = [part for part in content if isinstance(part, Mapping) and part.get("text")]
        text, beside = "", True  # no joint beside a medium, as in llama-server
        for part in parts:
            medium = part.get("type") == "media"
            text += ("" if beside or medium else joint) + str(part["text"])
            beside = medium
        return text
    return "" if content is None else str(content)


def _call(call: Mapping[str, Any], traits: Traits) -> dict[str, Any]:
    function = call["function"]
    arguments = function.get("arguments")
    if traits.as_text:
        arguments = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    else:
        arguments = _as_object(arguments)
    id = str(call.get("id") or "")
    return {
        "id": nine(id) if traits.nine else id,
        "type": "function",
        "function": {"name": function["name"], "arguments": arguments},
    }


def _as_object(arguments: object) -> object:
    return as_object(arguments) if isinstance(arguments, str) else arguments or {}


def nine(id: str) -> str:
    """Returns an id of nine letters and digits, the same for the same text."""
    return id if re.fullmatch("[a-zA-Z0-9]{9}", id) else hashlib.sha256(id.encode()).hexdigest()[:9]


# -- what a template does not know


def _with_system(messages: list[dict[str, Any]], text: str) -> list[dict[str, Any]]:
    """Returns the conversation with more in its system message."""
    if messages and messages[0]["role"] == "system":
        joined = f"{text_of(messages[0]['content'])}\n\n{text}".strip()
        return [{**messages[0], "content": joined}, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


def _instructions(tools: Sequence[Mapping[str, Any]], family: Family) -> str:
    described = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    example = EXAMPLES.get(family, EXAMPLES[HERMES])
    return f"You can call these tools:\n{described}\nTo call one, write exactly:\n{example}"


def _written(calls: Sequence[Mapping[str, Any]], family: Family) -> str:
    """Returns calls in the family's own format, for templates that leave them to the content."""
    pairs = [(call["function"]["name"], _as_object(call["function"].get("arguments"))) for call in calls]
    objects = [json.dumps({"name": name, "arguments": given}, ensure_ascii=False) for name, given in pairs]
    if family is GRANITE:
        return f"<|tool_call|>[{', '.join(objects)}]"
    if family is LFM:
        said = [_python(name, given) for name, given in pairs if isinstance(given, dict)]
        return f"<|tool_call_start|>[{', '.join(said)}]<|tool_call_end|>"
    return "\n".join(f"<tool_call>\n{text}\n</tool_call>" for text in objects)


def _python(name: str, arguments: Mapping[str, Any]) -> str:
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"


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
