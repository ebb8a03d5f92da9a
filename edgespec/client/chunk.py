"""One event of a streamed answer, read from whatever a server sent: any bytes are a `Chunk` or one error."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from edgespec.client.answer import Reading
from edgespec.client.connection import complaint, kind_of
from edgespec.core.values import Round
from edgespec.errors import EndpointError
from edgespec.system.odd_text import as_text

LARGEST_COUNT = 2**53  # of tokens: a larger number is none


@dataclass(frozen=True, slots=True)
class Chunk:
    """What an event says; "", () or an empty mapping where it says nothing."""

    text: str = ""
    reasoning: str = ""
    calls: tuple[Mapping[str, Any], ...] = ()
    finish: str = ""
    model: str = ""
    usage: Mapping[str, Any] = field(default_factory=dict)
    timings: Mapping[str, Any] = field(default_factory=dict)
    ours: Mapping[str, Any] = field(default_factory=dict)  # what a server of ours says of the round
    reading: Reading | None = None

    def round(self) -> Round:
        """Returns the round, as far as the server reports it."""
        ours = self.ours
        notice = ours.get("notice")
        return Round(
            tokens=tuple(token for token in listed(ours, "tokens") if isinstance(token, int)),
            text=self.text,
            drafted=whole(ours, "drafted") or 0,
            accepted=whole(ours, "accepted") or 0,
            sources=texts(ours, "sources"),
            gain=number(ours, "gain") or 1.0,
            notice=notice if isinstance(notice, str) else "",
        )


def object_of(data: bytes, where: str) -> dict[str, Any]:
    """Returns the JSON object of an event. Raises EndpointError, or the error that it stands for."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        raise EndpointError(f"{where} sent something other than JSON: {data[:60]!r}") from None
    if not isinstance(found, dict):
        raise EndpointError(f"{where} sent {kind_of(found)} where an event of a stream is an object")
    if found.get("error"):
        raise complaint(data, 0)
    return found


def chunk_of(data: bytes, where: str) -> Chunk:
    """Returns what an event says. where: the server, for errors.

    Figures that are none are left out; text that cannot be read is an EndpointError that names the field.
    """
    found = object_of(data, where)
    if "choices" not in found and ("detail" in found or "message" in found):
        raise complaint(data, 0)
    choice = _choice(found, where)
    delta = _delta(choice, where)
    text, thought = _content(delta.get("content"), where)
    thoughts = [thought, *(_text(delta, name, where) for name in ("reasoning_content", "reasoning"))]
    calls = delta.get("tool_calls") or ()
    if not isinstance(calls, list | tuple) or not all(isinstance(call, dict) for call in calls):
        raise _odd(where, "tool_calls", calls, "a list of objects")
    model = found.get("model")
    return Chunk(
        text=as_text(text),
        reasoning=as_text(next(filter(None, thoughts), "")),
        calls=tuple(calls),
        finish=as_text(_text(choice, "finish_reason", where)),
        model=as_text(model) if isinstance(model, str) else "",
        usage=mapped(found, "usage"),
        timings=mapped(found, "timings"),
        ours=mapped(found, "edgespec"),
        reading=_reading(found.get("prompt_progress")),
    )


def _choice(found: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """Returns the first choice; an empty one if there is none."""
    choices = found.get("choices")
    if choices is None:
        return {}
    if not isinstance(choices, list):
        raise _odd(where, "choices", choices, "a list")
    if choices and not isinstance(choices[0], dict):
        raise _odd(where, "a choice", choices[0], "an object")
    return choices[0] if choices else {}


def _delta(choice: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """Returns what is new in a choice."""
    delta = choice.get("delta")
    if delta is None:
        for name in ("message", "text"):
            if choice.get(name):
                raise EndpointError(
                    f"{where} sent {name!r} in its stream where a chat has 'delta': it cannot stream a chat"
                )
        return {}
    if not isinstance(delta, dict):
        raise _odd(where, "delta", delta, "an object")
    return delta


def _content(content: object, where: str) -> tuple[str, str]:
    """Returns the text and the reasoning of a delta's content, which some servers send in parts."""
    if content is None or isinstance(content, str):
        return content or "", ""
    parts = content if isinstance(content, list) else ()
    found = {"text": "", "thinking": ""}
    for part in parts:
        kind = part.get("type") if isinstance(part, dict) else None
        if not isinstance(kind, str) or kind not in found:
            raise _odd(where, "a part of content", part, "a text or reasoning")
        value = part.get(kind)
        inner = value if isinstance(value, list) else [part]
        pieces = [one.get("text", one.get(kind)) if isinstance(one, dict) else None for one in inner]
        if not all(isinstance(piece, str) for piece in pieces):
            raise _odd(where, f"the {kind} of content", value, "a text")
        found[kind] += "".join(map(str, pieces))
    if not isinstance(content, list):
        raise _odd(where, "content", content, "a text")
    return found["text"], found["thinking"]


def _text(found: Mapping[str, Any], name: str, where: str) -> str:
    value = found.get(name)
    if value is not None and not isinstance(value, str):
        raise _odd(where, name, value, "a text")
    return value or ""


def _odd(where: str, name: str, value: object, wanted: str) -> EndpointError:
    return EndpointError(
        f"{where} sent {kind_of(value)} as {name}, which is {wanted} in OpenAI's format: it has another"
    )


def _reading(progress: object) -> Reading | None:
    """Returns llama-server's `prompt_progress`; None if it is none."""
    if not isinstance(progress, dict):
        return None
    figures = [whole(progress, name) for name in ("total", "processed", "cache")]
    ms = number(progress, "time_ms")
    if ms is None or any(n is None for n in figures):
        return None
    total, done, cached = (n or 0 for n in figures)
    return Reading(total, done, cached, ms / 1000)


def mapped(found: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Returns a value that is an object, else an empty one."""
    value = found.get(name)
    return value if isinstance(value, dict) else {}


def listed(found: Mapping[str, Any], name: str) -> Sequence[Any]:
    """Returns a value that is a list, else an empty one."""
    value = found.get(name)
    return value if isinstance(value, list) else ()


def texts(found: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """Returns the texts of a value that is a list of them."""
    return tuple(as_text(one) for one in listed(found, name) if isinstance(one, str))


def whole(found: Mapping[str, Any], name: str) -> int | None:
    """Returns a value that is a count, else None."""
    value = found.get(name)
    counts = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < LARGEST_COUNT
    return value if counts else None


def number(found: Mapping[str, Any], name: str) -> float | None:
    """Returns a value that is a finite number of at least 0, else None."""
    value = found.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value < LARGEST_COUNT and math.isfinite(value) else None
