"""One event of a stream, as it goes over the wire."""

import json

from sse_starlette import ServerSentEvent

NEWLINE = "\n"  # as OpenAI and llama-server end lines: some clients look for "\n\n" alone


def event(data: object, name: str | None = None) -> ServerSentEvent:
    """Returns an event that carries JSON."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return ServerSentEvent(text, event=name, sep=NEWLINE)


def done() -> ServerSentEvent:
    """Returns the last event of a stream."""
    return ServerSentEvent("[DONE]", sep=NEWLINE)
