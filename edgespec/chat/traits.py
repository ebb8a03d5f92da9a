"""What a chat template can do, found by trying: which shapes of messages it renders completely.

Templates differ in what they take: arguments of calls as objects or as text, content that may be None or
must be "", system messages or none, tools or none. Only their code tells. So this renders
small conversations with unmistakable words, and looks where the words went.
"""

import datetime
import json
import re
from collections.abc import Mapping, Sequence
from contextvars import Context
from dataclasses import dataclass
from functools import lru_cache
from threading import Lock
from typing import Any, Literal

from edgespec.chat.template import names_wanted, render
from edgespec.errors import TemplateError, TemplateOverrunError

USER, SYSTEM, TOOL, KEY, VALUE, RESULT = (
    f"zq{word}qz" for word in ("user", "sys", "tool", "key", "val", "res")
)
ID = "zqcall001"  # nine letters and digits, as some templates insist
Absent = Literal["none", "empty", "missing"]
_TRYING = Lock()


@dataclass(frozen=True, slots=True)
class Traits:
    """What a template renders."""

    parts: bool  # content must be a list of parts
    joint: str  # what it puts between several texts; a line end if it takes one text only
    system: bool
    tools: bool
    calls: bool
    several_calls: bool
    results: bool
    as_text: bool  # arguments are JSON text, not objects
    bare: Absent  # how to write the content of a message that only calls
    nine: bool  # ids of calls have nine letters and digits
    empty_tools: bool  # no tools are an empty list, not None


def traits_of(template: str) -> Traits:
    """Tries a template out. Raises TemplateError if it is broken or renders no message at all.

    One that overruns is not tried again: requests that come together would each wait for all those before.
    """
    with _TRYING:
        found = _tried(template)
    if isinstance(found, TemplateOverrunError):
        raise found.with_traceback(None)
    return found


@lru_cache(maxsize=16)
def _tried(template: str) -> Traits | TemplateOverrunError:
    try:
        return Context().run(_found, template)  # whoever asks first may give up: all others need it
    except TemplateOverrunError as error:
        return error


def _found(template: str) -> Traits:
    words = _rendered(template, [_user(USER)])
    empty_tools = not words and bool(words := _rendered(template, [_user(USER)], tools=[]))
    parts = USER not in words and USER in _rendered(template, [_user([USER])])
    if not words and not parts:
        render(template, [_user(USER)])  # raises, with the reason
    joint = _joint(_rendered(template, [_user([USER, SYSTEM])], tools=[] if empty_tools else None))
    tool = tool_for(TOOL, KEY)
    described = _rendered(template, [_user(USER)], tools=[tool])
    system = _rendered(
        template, [{"role": "system", "content": SYSTEM}, _user(USER)], tools=[] if empty_tools else None
    )
    calls, several, as_text, bare = _calls(template, tool)
    results = _rendered(template, [_user(USER), _calling(as_text, bare, 1), _result(RESULT)], tools=[tool])
    return Traits(
        parts=parts,
        joint=joint,
        system=SYSTEM in system,
        tools=TOOL in described,
        calls=calls,
        several_calls=several,
        results=RESULT in results,
        as_text=as_text,
        bare=bare,
        empty_tools=empty_tools,
        nine=re.search(r"length\s*!=\s*9", template) is not None,
    )


def _calls(template: str, tool: Mapping[str, Any]) -> tuple[bool, bool, bool, Absent]:
    """Returns whether calls are rendered, several too, and in which shape they must be given."""
    bares: tuple[Absent, ...] = ("none", "empty", "missing")
    shapes = [(as_text, bare) for as_text in (False, True) for bare in bares]
    nothing: list[dict[str, Any]] = []
    result = [_result(RESULT)]
    for ends in ([nothing, result], [result], [nothing]):  # the best shape works for all of them
        for as_text, bare in shapes:
            rendered = [_says_call(template, tool, as_text, bare, 1, end) for end in ends]
            if all(rendered):
                several = all(_says_call(template, tool, as_text, bare, 2, end) for end in ends)
                return True, several, as_text, bare
    return False, False, False, "empty"


def _says_call(
    template: str, tool: Mapping[str, Any], as_text: bool, bare: Absent, n: int, end: list[dict[str, Any]]
) -> bool:
    rendered = _rendered(template, [_user(USER), _calling(as_text, bare, n), *end], tools=[tool])
    behind = rendered.rpartition(USER)[2]
    whole = behind.count(TOOL) >= n and behind.count(KEY) >= n and behind.count(VALUE) >= n
    quoted = '\\"' + KEY in behind or "{'" in behind  # JSON in JSON, and Python's way of writing an object
    return whole and not quoted and "None" not in behind


def tool_for(name: str, key: str) -> dict[str, Any]:
    """Returns a tool with one argument, as clients describe it."""
    schema = {
        "type": "object",
        "properties": {key: {"type": "string", "description": "an argument"}},
        "required": [key],
    }
    function = {"name": name, "description": "a tool", "parameters": schema}
    return {"type": "function", "function": function}


def _joint(rendered: str) -> str:
    """Returns what comes between two words that were given as parts of one message."""
    between = rendered.partition(USER)[2].partition(SYSTEM)
    return between[0] if between[1] and not between[0].strip() else "\n"


def _user(content: str | Sequence[str]) -> dict[str, Any]:
    """Returns a message; several texts are its parts."""
    if isinstance(content, str):
        return {"role": "user", "content": content}
    return {"role": "user", "content": [{"type": "text", "text": text} for text in content]}


def _result(content: str) -> dict[str, Any]:
    return {"role": "tool", "name": TOOL, "tool_call_id": ID, "content": content}


def _calling(as_text: bool, bare: Absent, n: int) -> dict[str, Any]:
    arguments: object = f'{{"{KEY}": "{VALUE}"}}' if as_text else {KEY: VALUE}
    call = {"id": ID, "type": "function", "function": {"name": TOOL, "arguments": arguments}}
    message: dict[str, Any] = {"role": "assistant", "tool_calls": [call] * n}
    if bare != "missing":
        message["content"] = None if bare == "none" else ""
    return message


def _rendered(
    template: str,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None = None,
) -> str:
    """Returns the text of messages; "" if the template refuses them."""
    try:
        return render(template, messages, tools=tools, variables=variables_for(template, tools))
    except TemplateOverrunError:
        raise
    except TemplateError:
        return ""


def variables_for(
    template: str, tools: Sequence[Mapping[str, Any]] | None, now: datetime.datetime | None = None
) -> dict[str, Any]:
    """Returns what some templates expect under names of their own."""
    wanted = names_wanted(template)
    described = [tool.get("function", tool) for tool in tools or ()]
    when = now or datetime.datetime.now(datetime.UTC)
    known: dict[str, Any] = {
        "enable_thinking": True,
        "functions": json.dumps(described, ensure_ascii=False, indent=2),
        "date_string": when.strftime("%d %b %Y"),
        "datetime": when.strftime("%b %d %Y %H:%M:%S GMT"),
    }
    if tools:
        known["xml_tools"] = list(tools)
    return {name: value for name, value in known.items() if name in wanted}
