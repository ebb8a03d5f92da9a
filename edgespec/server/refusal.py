"""Refusals of requests, in the format of each dialect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from edgespec.engine.messages import Refused

ANTHROPIC_PATHS = ("/v1/messages", "/messages")
OLLAMA_PATHS = "/api/"
ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "request_too_large",
    415: "invalid_request_error",
    422: "invalid_request_error",
    429: "rate_limit_error",
    501: "invalid_request_error",
    503: "overloaded_error",
}
GONE = 499  # nginx's number for a client that closed its connection: nobody reads it
NEVER = 501  # what this server does not do
LONGEST = 1000  # characters of a sentence, which may quote what a client sent
SHOWN = 100  # characters of a wrong value that an error quotes
RETRY_S = 1  # when to come again if nothing better is known


@dataclass(slots=True)
class Refusal(Exception):
    """A request that is not answered: why, in one sentence, and the HTTP status."""

    status: int
    message: str
    type: str = "invalid_request_error"
    param: str | None = None  # the field that was wrong
    code: str | None = None  # for programs
    retry_s: int | None = None  # when it is worth trying again
    extra: Mapping[str, Any] | None = None

    def __str__(self) -> str:
        return self.message

    def body(self) -> dict[str, Any]:
        """Returns OpenAI's error object, with the status as llama-server has it."""
        message = self.message
        if len(message) > LONGEST:  # somebody's value is in the middle, and what to do at the end
            message = f"{message[: LONGEST // 2]} ... {message[-LONGEST // 2 :]}"
        shown = message.encode("utf-8", "backslashreplace").decode()
        error = {"message": shown, "type": self.type, "param": self.param, "code": self.code}
        return {"error": {**error, **(self.extra or {})}}

    def shaped(self, path: str, request_id: str) -> dict[str, Any]:
        """Returns the error in the format that clients of `path` read."""
        if path.startswith(OLLAMA_PATHS):
            return self.ollama()
        return self.anthropic(request_id) if path.startswith(ANTHROPIC_PATHS) else self.body()

    def ollama(self) -> dict[str, Any]:
        """Returns the error as Ollama has it: a sentence."""
        return {"error": self.body()["error"]["message"]}

    def anthropic(self, request_id: str) -> dict[str, Any]:
        """Returns Anthropic's error object; its sentence names the wrong field."""
        error = {
            "type": ANTHROPIC_TYPES.get(self.status, "api_error"),
            "message": self.body()["error"]["message"],
        }
        return {"type": "error", "error": error, "request_id": request_id}

    def headers(self) -> dict[str, str]:
        """Returns when to come again, or that it is no use: OpenAI's and Anthropic's clients retry a 501."""
        if self.retry_s is not None:
            return {"retry-after": str(self.retry_s)}
        return {"x-should-retry": "false"} if self.status == NEVER else {}


def quoted(value: object) -> str:
    """Returns a value as Python spells it, or its beginning; does not spell the rest."""
    text = ""
    for piece in _spelt(value):
        text += piece
        if len(text) > SHOWN:
            return text[:SHOWN] + "..."
    return text


def _spelt(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        for i, (key, item) in enumerate(value.items()):
            yield f"{', ' if i else '{'}{quoted(key)}: "
            yield from _spelt(item)
        yield "}" if value else "{}"
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield ", " if i else "["
            yield from _spelt(item)
        yield "]" if value else "[]"
    else:
        yield repr(value[: SHOWN + 1] if isinstance(value, str) else value)


def unavailable(message: str, retry_s: float = RETRY_S) -> Refusal:
    """The engine is not there: loading, restarting or ending."""
    return Refusal(
        503, message, type="unavailable_error", code="engine_unavailable", retry_s=max(1, round(retry_s))
    )


def closed(path: str, flag: str) -> Refusal:
    """A route that this server was started without."""
    sentence = f"{path} is closed here: the server was started with {flag}"
    return Refusal(501, sentence, type="not_supported_error", code="closed")


def from_worker(refused: Refused) -> Refusal:
    """Returns the HTTP error for a worker's refusal."""
    if refused.kind == "too_long":
        counts = {"n_prompt_tokens": refused.n_prompt, "n_ctx": refused.n_ctx}
        return Refusal(
            400,
            refused.message,
            type="exceed_context_size_error",
            param="messages",
            code="context_length_exceeded",
            extra=counts,
        )
    if refused.kind == "setting":
        return Refusal(400, refused.message, code="invalid_value")
    if refused.kind == "queue_full":
        return Refusal(429, refused.message, type="rate_limit_error", code="queue_full", retry_s=RETRY_S)
    if refused.kind == "draining":
        return unavailable(refused.message)
    code = "internal_error" if refused.kind == "fault" else "engine_error"
    return Refusal(500, refused.message, type="server_error", code=code)
