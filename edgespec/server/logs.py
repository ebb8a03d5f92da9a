"""What the server writes to the terminal: messages, faults and, if asked for, a line for each request.

Each request has an id, its client's own (x-request-id) or a random one; it is in the answer's headers, in its
line and beside a fault's traceback. A line has method, path, status, time and token counts: no headers,
no query and nobody's text, so that no key and no conversation can be in a log.
"""

import json
import logging
import re
import secrets
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edgespec.server.refusal import ErrorShape

LogFormat = Literal["quiet", "text", "json"]
REQUEST_ID = "x-request-id"
ANTHROPICS_ID = "request-id"
SENSIBLE_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
SHOWN_PATH = 200
NO_NEWS = (  # of uvicorn's messages, and asyncio's
    "Invalid HTTP request",
    "Exception in ASGI",
    "Unsupported upgrade request",
    "No supported WebSocket library",
    "socket.send() raised exception",  # a client left while events for it were written
)

_sentences = logging.getLogger("edgespec.server")
_requests = logging.getLogger("edgespec.requests")


def set_up(log: LogFormat) -> None:
    """Makes this process log to stderr: quiet and text as sentences, json as one object a line."""
    handler = logging.StreamHandler()
    handler.setFormatter(_AsJson() if log == "json" else logging.Formatter("edgespec: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    _sentences.setLevel(logging.INFO)
    _requests.setLevel(logging.WARNING if log == "quiet" else logging.INFO)
    for library in ("uvicorn.error", "asyncio"):
        logging.getLogger(library).addFilter(_is_news)


def _is_news(record: logging.LogRecord) -> bool:
    """False for client errors, which the client gets, and for faults, already logged with their id.

    An offer of HTTP/2, as Java's clients send with each request, is no news either: HTTP/1.1 answers it.
    """
    return not record.msg.startswith(NO_NEWS)


def say(sentence: str) -> None:
    """Prints a message for the person at the terminal."""
    _sentences.info(sentence)


@dataclass(slots=True)
class _Line:
    """What is logged of a request at its end, besides how it went over HTTP."""

    id: str
    figures: Callable[[], dict[str, Any]] = dict


_line: ContextVar[_Line | None] = ContextVar("_line", default=None)  # of the request that is answered now


def log_with(figures: Callable[[], dict[str, Any]]) -> None:
    """Has the line of the request that is answered now show figures, as they are at its end."""
    if line := _line.get():
        line.figures = figures


class _AsJson(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if line := _line.get():
            entry["request_id"] = line.id
        entry |= getattr(record, "figures", {})
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


class Logged:
    """The outermost layer: an id for every request, a line when it has ended, and faults with their id."""

    def __init__(self, app: ASGIApp, shapes: Mapping[str, ErrorShape]) -> None:
        """shapes: of errors, by the beginning of the path; elsewhere OpenAI's."""
        self._app, self._shapes = app, shapes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = Headers(scope=scope).get(REQUEST_ID, "")
        id = given if SENSIBLE_ID.fullmatch(given) else f"req_{secrets.token_hex(12)}"
        status, began = 0, time.monotonic()
        state: dict[str, Any] = {"request_id": id, "began": began, "shapes": self._shapes}

        async def numbered(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers[REQUEST_ID] = headers[ANTHROPICS_ID] = id
            await send(message)

        line = _Line(id)
        token = _line.set(line)
        try:
            await self._app({**scope, "state": state}, receive, numbered)
        except Exception:
            _sentences.exception("a fault of EdgeSpec's own while answering %s", id)
            raise
        finally:
            if _requests.isEnabledFor(logging.INFO):
                _tell(scope, status, time.monotonic() - began, line, state)
            _line.reset(token)


def _reuse(figures: dict[str, Any]) -> str:
    """Returns where cached tokens were, and who can change that others were evaluated again."""
    origin = f" from {figures['cached_from']}" if figures["cached_from"] else ""
    again = f", about {figures['again']} read again: {figures['cause']}" if "again" in figures else ""
    return f"{figures['cached_tokens']} cached{origin}{again}"


def _tell(scope: Scope, status: int, seconds: float, line: _Line, state: dict[str, Any]) -> None:
    path = scope["path"][:SHOWN_PATH].encode("ascii", "backslashreplace").decode()
    figures, tokens = line.figures(), ""
    if figures:
        tokens = (
            f", {figures['prompt_tokens']} tokens of prompt ({_reuse(figures)}), "
            f"{figures['tokens']} generated, {figures['accepted']} of {figures['drafted']} guesses accepted"
        )
    if code := state.get("refused") or figures.get("code"):  # perhaps in mid stream
        figures, tokens = {**figures, "code": code}, f", {code}"
    client = scope.get("client")
    entry = {
        "method": scope["method"],
        "path": path,
        "status": status,
        "seconds": round(seconds, 4),
        "client": client[0] if client else None,
        **figures,
    }
    words = f"{scope['method']} {path!r} {status or 'went away'} after {seconds:.3f} s{tokens} [{line.id}]"
    _requests.info(words, extra={"figures": entry})
