"""A conversation as clients send it -> the prompt, and the reader of the answer.

Messages get the shape that the model's template renders (`traits.py`). What a template does not
support is described in words: tools and calls, in its family's format, and system messages
within the user's. So every model can be asked for a tool call; whether it makes one is another matter.
"""

import datetime
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from edgespec.chat.families.family import Family
from edgespec.chat.families.json_text import as_object
from edgespec.chat.families.known import DEEPSEEK_R1, DEEPSEEK_V3, GRANITE, HERMES, LFM, family_of
from edgespec.chat.families.reader import Parser
from edgespec.chat.template import render
from edgespec.chat.traits import Traits, traits_of, variables_for
from edgespec.errors import TemplateError

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
    traits = traits_of(template)
    family = _family(template, bool(tools))
    given = list(tools)
    shaped = _one_system_first([_shaped(message, template, traits, family) for message in messages])
    if given and not traits.tools:
        shaped = _with_system(shaped, _instructions(given, family))
        given = []
    if not traits.system:
        shaped = _without_system(shaped)
    if not traits.results:
        shaped = _one_user_at_a_time(shaped)
    begun = shaped.pop() if go_on else None
    if traits.parts:
        for message in shaped:
            message["content"] = [{"type": "text", "text": text_of(message.get("content"))}]
    text = render(
        template,
        shaped,
        bos=bos,
        eos=eos,
        documents=documents,
        now=now,
        tools=given or ([] if traits.empty_tools else None),
        add_generation_prompt=add_generation_prompt or go_on,
        variables={**variables_for(template, tools, now), **(variables or {})},
    )
    if begun is not None:
        text += _begun(begun, family, family.opened(text))
    schemas = {str(tool["function"]["name"]): tool["function"].get("parameters") or {} for tool in tools}
    return Composed(text, family, family.opened(text), schemas)


def _family(template: str, tools: bool) -> Family:
    family = family_of(template)
    if tools and not family.calls and not family.whole:
        return replace(HERMES, thoughts=family.thoughts)
    return family


# -- the shape of a message


def _shaped(message: Message, template: str, traits: Traits, family: Family) -> dict[str, Any]:
    """Returns a message as the template takes it."""
    shaped = {key: value for key, value in message.items() if value is not None or key == "content"}
    shaped["content"] = text_of(shaped.get("content"), traits.joint)
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


def _one_system_first(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the conversation with one system message at its beginning: most templates read only one."""
    n = next((i for i, message in enumerate(messages) if message["role"] != "system"), len(messages))
    if n < 2:
        return messages
    joined = "\n\n".join(text_of(message["content"]) for message in messages[:n])
    return [{"role": "system", "content": joined}, *messages[n:]]


# -- what a template does not know


def _with_system(messages: list[dict[str, Any]], text: str) -> list[dict[str, Any]]:
    """Returns the conversation with more in its system message."""
    if messages and messages[0]["role"] == "system":
        joined = f"{text_of(messages[0]['content'])}\n\n{text}".strip()
        return [{**messages[0], "content": joined}, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


def _without_system(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the conversation with each system message moved into the user's next one."""
    found: list[dict[str, Any]] = []
    waiting: list[str] = []
    for message in messages:
        if message["role"] == "system":
            waiting.append(text_of(message["content"]))
        elif waiting and message["role"] == "user":
            found.append({**message, "content": "\n\n".join([*waiting, text_of(message["content"])])})
            waiting = []
        else:
            found.append(message)
    if waiting:
        found.append({"role": "user", "content": "\n\n".join(waiting)})
    if not found:
        raise TemplateError(
            "the chat template refuses these messages: it has no room for system messages alone"
        )
    return found


def _one_user_at_a_time(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the conversation with consecutive user messages merged, because roles must alternate."""
    found: list[dict[str, Any]] = []
    for message in messages:
        if found and message["role"] == found[-1]["role"] == "user":
            found[-1] = {**message, "content": f"{found[-1]['content']}\n{message['content']}"}
        else:
            found.append(message)
    return found


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


def _begun(message: Mapping[str, Any], family: Family, opened: bool) -> str:
    """Returns the beginning of an answer to continue, after a prompt that may end within the reasoning."""
    content, thought = text_of(message.get("content")), str(message.get("reasoning_content") or "")
    if not opened:
        return content
    if not content:
        return thought
    return f"{thought}{family.thoughts[0][1]}\n\n{content}"
