"""Answers in pieces: their events, how they are sent, and signs of life before the first of them.

A stream may begin before its model is loaded; signs keep clients and proxies waiting.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.types import Message, Receive, Scope, Send

from edgespec.server.generation import AnswerChoices
from edgespec.server.presence import unless_gone
from edgespec.server.refusal import Refusal, fault, invalid

NEWLINE = "\n"  # as OpenAI and llama-server end lines: some clients look for "\n\n" alone
PING_S = 15
SIGN_S = 3.0  # before the first sign, and between two
_log = logging.getLogger(__name__)


def event(data: object, name: str | None = None) -> ServerSentEvent:
    """Returns an event that carries JSON."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    whole = text.encode("utf-8", "backslashreplace").decode()  # JSON's way of writing half a character
    return ServerSentEvent(whole, event=name, sep=NEWLINE)


def done() -> ServerSentEvent:
    """Returns the last event of a stream."""
    return ServerSentEvent("[DONE]", sep=NEWLINE)


class Answerer(Protocol):
    """Writes a generation in a dialect's format. `stream` and `whole` raise Refusal, also in the middle."""

    def stream(self, generation: AnswerChoices) -> AsyncIterator[ServerSentEvent | bytes]: ...

    def failed(self, refusal: Refusal, generation: AnswerChoices) -> ServerSentEvent | bytes:
        """Returns the last event of a stream that has failed."""

    async def whole(self, generation: AnswerChoices) -> object: ...


async def to_its_end(
    answerer: Answerer, generation: AnswerChoices, request_id: str
) -> AsyncIterator[ServerSentEvent | bytes]:
    """Yields the events of a stream; whatever ends it too soon is its last event."""
    try:
        async for one in answerer.stream(generation):
            yield one
    except Refusal as refusal:
        yield answerer.failed(refusal, generation)
    except Exception as error:
        _log.exception("a fault of EdgeSpec's own in the stream of %s", request_id)
        generation.failed = "internal_error"
        yield answerer.failed(fault(error, request_id), generation)


class EventStream(EventSourceResponse):
    """A stream that closes its generation at the end, even if it was never started."""

    kind = "text/event-stream"

    @staticmethod
    def failed(error: bytes) -> bytes:
        """Returns the last event of a stream that failed before its answer had begun. error: JSON."""
        return b"data: %b\n\n" % error

    @staticmethod
    def sign(model: str, progress: float | None = None) -> bytes:
        """Returns what a client takes for a sign of life, and nothing else. progress: of loading."""
        state = f"{model} is at work" if progress is None else f"loading {model}, {progress:.0%}"
        return f": {state}\n\n".encode("ascii", "backslashreplace")

    def __init__(
        self,
        events: AsyncIterator[ServerSentEvent | bytes],
        generation: AnswerChoices,
        send_s: float,
        model: str,
        ping_s: float = PING_S,
    ) -> None:
        def sign() -> Any:  # bytes, which the library sends as they are
            return self.sign(model)

        super().__init__(
            events,
            ping=ping_s,
            ping_message_factory=sign,
            sep=NEWLINE,
            send_timeout=send_s,
            media_type=self.kind,
        )
        self._generation = generation

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        except TimeoutError:  # the client does not read
            pass
        finally:
            self._generation.close()


class EarlyStream(Response):
    """The answer of a request whose answer is still being prepared; `working` gives it."""

    def __init__(
        self,
        working: asyncio.Task[object],
        kind: type[EventStream],
        sign: Callable[[], bytes],
        sign_s: float = SIGN_S,
    ) -> None:
        """kind: of the stream that is prepared. sign: returns what its client takes for one."""
        super().__init__(media_type=kind.kind)
        self._working, self._kind, self._sign, self._sign_s = working, kind, sign, sign_s
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def go_on(message: Message) -> None:
            if message["type"] != "http.response.start":
                await send(message)

        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        try:
            if await unless_gone(Request(scope, receive), self._wait(send)) is None:
                return
            answer = self._working.result()
            whole = answer if isinstance(answer, Response) else JSONResponse(answer)
            await whole(scope, receive, go_on)
        except RequestValidationError as error:
            await send(self._failed(invalid(None, error.errors()[0]["msg"]), scope))
        except Refusal as refusal:
            await send(self._failed(refusal, scope))
        except Exception as error:
            id = scope["state"]["request_id"]
            _log.exception("a fault of EdgeSpec's own before the stream of %s", id)
            await send(self._failed(fault(error, id), scope))
        finally:
            self._working.cancel()

    async def _wait(self, send: Send) -> bool:
        """Sends signs until the answer is there."""
        while True:
            await send({"type": "http.response.body", "body": self._sign(), "more_body": True})
            if (await asyncio.wait((self._working,), timeout=self._sign_s))[0]:
                return True

    def _failed(self, refusal: Refusal, scope: Scope) -> Message:
        text = json.dumps(refusal.shaped(scope["path"], scope["state"])).encode()
        return {"type": "http.response.body", "body": self._kind.failed(text)}


async def at_once_or_early(
    working: asyncio.Task[object],
    kind: type[EventStream],
    sign: Callable[[], bytes],
    sign_s: float = SIGN_S,
) -> object:
    """Returns the answer if it comes soon, or else a stream that begins before it. Raises what it raises."""
    try:
        if (await asyncio.wait((working,), timeout=sign_s))[0]:
            return working.result()
        return EarlyStream(working, kind, sign, sign_s)
    except BaseException:
        working.cancel()
        raise
