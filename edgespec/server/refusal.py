"""Refusals of requests, in the format of each dialect."""

import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from edgespec.protocol.messages import Refused

GONE = 499  # nginx's number for a client that closed its connection: nobody reads it
NEVER = 501  # what this server does not do
LONGEST = 1000  # characters of a sentence, which may quote what a client sent
SHOWN = 100  # characters of a wrong value that an error quotes
RETRY_S = 1  # when to come again if nothing better is known

TYPES = {  # by status, where it is not the usual one of a wrong request
    401: "authentication_error",
    429: "rate_limit_error",
    500: "server_error",
    501: "not_supported_error",
    503: "unavailable_error",
}

_short = reprlib.Repr()
_short.maxstring = _short.maxother = SHOWN
ErrorShape = Callable[["Refusal", str], dict[str, Any]]  # of a request's id


@dataclass(slots=True)
class Refusal(Exception):
    """A request that is not answered: why, in one sentence, and the HTTP status."""

    status: int
    message: str
    type: str = ""  # as the status says
    param: str | None = None  # the field that was wrong
    code: str | None = None  # for programs
    retry_s: int | None = None  # when it is worth trying again
    extra: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        self.type = self.type or TYPES.get(self.status, "invalid_request_error")

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

    def shaped(self, path: str, state: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the error in the format that clients of `path` read. state: of the request (`Logged`)."""
        shapes: Mapping[str, ErrorShape] = state["shapes"]
        shape = next((shapes[beginning] for beginning in shapes if path.startswith(beginning)), None)
        return shape(self, state["request_id"]) if shape else self.body()

    def headers(self) -> dict[str, str]:
        """Returns when to come again, or that it is no use: OpenAI's and Anthropic's clients retry a 501."""
        if self.retry_s is not None:
            return {"retry-after": str(self.retry_s)}
        return {"x-should-retry": "false"} if self.status == NEVER else {}


def quoted(value: object) -> str:
    """Returns a value as Python spells it, or its beginning; does not spell the rest."""
    text = _short.repr(value)
    return text if len(text) <= SHOWN else text[:SHOWN] + "..."


def invalid(param: str | None, sentence: str) -> Refusal:
    """A field with a wrong value."""
    return Refusal(400, sentence, param=param, code="invalid_value")


def missing(param: str, sentence: str) -> Refusal:
    """A field that has to be there."""
    return Refusal(400, sentence, param=param, code="missing_required_parameter")


def unsupported(param: str, sentence: str) -> Refusal:
    """A field that its API has and EdgeSpec does not support."""
    return Refusal(400, f"{param}: {sentence}", param=param, code="unsupported_parameter")


def unavailable(message: str, retry_s: float = RETRY_S) -> Refusal:
    """The engine is not there: loading, restarting or ending."""
    return Refusal(503, message, code="engine_unavailable", retry_s=max(1, round(retry_s)))


def closed(path: str, flag: str) -> Refusal:
    """A route that this server was started without."""
    return Refusal(501, f"{path} is closed here: the server was started with {flag}", code="closed")


def fault(error: Exception, request_id: str) -> Refusal:
    """A fault of ours."""
    sentence = f"a fault of EdgeSpec's own ({type(error).__name__}): its log has more under {request_id}"
    return Refusal(500, sentence, code="internal_error")


def from_worker(refused: Refused) -> Refusal:
    """Returns the HTTP error for a worker's refusal."""
    if refused.kind == "too_long":
        return Refusal(
            400,
            refused.message,
            type="exceed_context_size_error",
            param="messages",
            code="context_length_exceeded",
            extra={"n_prompt_tokens": refused.n_prompt, "n_ctx": refused.n_ctx},
        )
    if refused.kind == "setting":
        return invalid(None, refused.message)
    if refused.kind == "queue_full":
        return Refusal(429, refused.message, code="queue_full", retry_s=RETRY_S)
    if refused.kind == "draining":
        return unavailable(refused.message)
    return Refusal(500, refused.message, code="internal_error" if refused.kind == "fault" else "engine_error")
