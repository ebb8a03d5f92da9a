"""Whether each message of a conversation reaches the prompt, and in which arrangement it does.

Many templates leave messages out without a word. Unmistakable words are rendered in the same shape, and
looked for. The texts themselves would not do: templates escape, trim and repeat them, and short ones are
anywhere.
"""

from collections.abc import Mapping
from contextvars import Context
from functools import lru_cache
from typing import Any

from edgespec.chat.arrangements import ARRANGEMENTS
from edgespec.chat.drawing import Drawing
from edgespec.chat.traits import ID, KEY, TOOL, tool_for, variables_for
from edgespec.errors import TemplateError, TemplateOverrunError

Shape = tuple[str, bool, int, bool]  # of a message: role, whether it has text, how many calls, and thoughts


def shape_of(turn: Mapping[str, Any]) -> Shape:
    """Returns the shape of a message."""
    thinks = bool(turn.get("reasoning_content"))
    return str(turn["role"]), bool(turn["content"].strip()), len(turn.get("tool_calls") or ()), thinks


def first_complete(template: str, shapes: tuple[Shape, ...], tools: bool, asks: bool) -> int:
    """Returns the first arrangement in which every message reaches the prompt; raises TemplateError."""
    return Context().run(_tried_shapes, template, shapes, tools, asks)  # whoever asks first may give up


@lru_cache(maxsize=256)
def _tried_shapes(template: str, shapes: tuple[Shape, ...], tools: bool, asks: bool) -> int:
    given = [tool_for(TOOL, KEY)] if tools else []
    turns, lost = [_marked(i, shape) for i, shape in enumerate(shapes)], None
    for number, arrangement in enumerate(ARRANGEMENTS):
        try:
            drawn = Drawing(template, arrangement, given)
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
