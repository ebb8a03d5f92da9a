"""One way to give a conversation to its chat template: messages in the shape that it renders, and the prompt.

What a template does not support is described in words: tools and calls, in its family's format.
"""

import datetime
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from edgespec.chat.arrangements import (
    Arrangement,
    in_turn,
    one_system_first,
    one_user_at_a_time,
    systems_within_users,
)
from edgespec.chat.families.family import Family
from edgespec.chat.families.json_text import as_object
from edgespec.chat.families.known import DEEPSEEK_R1, DEEPSEEK_V3, GRANITE, HERMES, LFM, family_of
from edgespec.chat.generated import Generated
from edgespec.chat.template import render
from edgespec.chat.traits import Traits, traits_of

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


class Drawing:
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
        messages: Sequence[dict[str, Any]],
        variables: Mapping[str, Any],
        *,
        add_generation_prompt: bool,
        bos: str = "",
        eos: str = "",
        documents: Sequence[Mapping[str, Any]] | None = None,
        now: datetime.datetime | None = None,
    ) -> str:
        """Returns the prompt. Raises TemplateError."""
        template, traits, given = self._template, self._traits, list(self._tools)
        turns = self._arrangement.of(one_system_first(list(messages)))
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
            bos=bos,
            eos=eos,
            documents=documents,
            variables=variables,
            now=now,
        )


# -- the shape of a message


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
        text, near_medium = "", True  # no joint next to a medium, as in llama-server
        for part in parts:
            medium = part.get("type") == "media"
            text += ("" if near_medium or medium else joint) + str(part["text"])
            near_medium = medium
        return text
    return "" if content is None else str(content)


def _call(call: Mapping[str, Any], traits: Traits) -> dict[str, Any]:
    function = call["function"]
    arguments = function.get("arguments")
    if isinstance(arguments, Generated):
        arguments = arguments.text if traits.as_text else arguments
    elif traits.as_text:
        text = isinstance(arguments, str)
        arguments = arguments if text else json.dumps(arguments or {}, ensure_ascii=False)
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
        written = [_python(name, given) for name, given in pairs if isinstance(given, dict)]
        return f"<|tool_call_start|>[{', '.join(written)}]<|tool_call_end|>"
    return "\n".join(f"<tool_call>\n{text}\n</tool_call>" for text in objects)


def _python(name: str, arguments: Mapping[str, Any]) -> str:
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"
