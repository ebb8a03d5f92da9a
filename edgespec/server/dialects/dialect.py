"""What a dialect is: the handlers of one API's requests, each under a lease of the pair that it names."""

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from functools import wraps
from typing import Any, ClassVar, Concatenate, ParamSpec, TypeVar, cast

from fastapi import APIRouter
from pydantic import BaseModel

from edgespec import __version__
from edgespec.server.answering import Answering
from edgespec.server.event_stream import EventStream, at_once_or_early
from edgespec.server.pair_session import PairSession, session_of
from edgespec.server.refusal import ErrorShape, unavailable

FINGERPRINT = f"build-edgespec-{__version__}"
_T = TypeVar("_T")
_P = ParamSpec("_P")


class Dialect:
    """The handlers of one API's requests, and their `routes`."""

    errors: ClassVar[Mapping[str, ErrorShape]] = {}  # by the beginning of a path, unless they are OpenAI's
    aliases: ClassVar[Mapping[str, str]] = {}  # of fields: their other names, and ours
    stream: ClassVar[type[EventStream]] = EventStream

    def __init__(self, answering: Answering) -> None:
        self.answering = answering

    def routes(self) -> APIRouter:
        """Returns the routes of this dialect."""
        raise NotImplementedError

    def streams(self, body: BaseModel) -> bool:
        """Returns whether a request asks for a stream."""
        return bool(getattr(body, "stream", None))


_D = TypeVar("_D", bound=Dialect)
_Handler = Callable[Concatenate[_D, PairSession, _P], Coroutine[Any, Any, _T]]
_Route = Callable[Concatenate[_D, _P], Coroutine[Any, Any, _T]]


def with_pair(handler: _Handler[_D, _P, _T]) -> _Route[_D, _P, _T]:
    """Loads the pair that the request names, or the current one, and keeps it until the handler has returned.

    What the handler submits keeps the pair loaded after that. Raises Refusal if it cannot be loaded, or not
    in time. If the client leaves while it waits, nothing is loaded for it.
    """

    @wraps(handler)
    async def under_a_lease(dialect: _D, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        server = dialect.answering
        bodies = [value for value in (*args, *kwargs.values()) if isinstance(value, BaseModel)]
        load = server.pairs.called(next((getattr(body, "model", None) for body in bodies), None))
        worker = server.engines.of(load)
        streams = worker.state != "ready" and any(map(dialect.streams, bodies))

        async def answered() -> _T:
            async with AsyncExitStack() as held:
                try:
                    async with asyncio.timeout(server.settings.request_s):
                        lease = server.engines.lease(load, waits=streams)
                        session = session_of(server, await held.enter_async_context(lease))
                except TimeoutError:
                    sentence = "the request waited too long for its model: try again in a moment"
                    raise unavailable(sentence) from None
                return await handler(dialect, session, *args, **kwargs)

        if not streams:
            return await answered()

        def sign() -> bytes:
            return dialect.stream.sign(server.pairs.name_of(worker.load), worker.loading[1])

        working: asyncio.Task[Any] = asyncio.ensure_future(answered())
        return cast(_T, await at_once_or_early(working, dialect.stream, sign))

    signature = inspect.signature(handler)  # a route's fields are read off it: the session is none
    fields = [field for name, field in signature.parameters.items() if name != "session"]
    under_a_lease.__signature__ = signature.replace(parameters=fields)  # type: ignore[attr-defined]
    return under_a_lease
