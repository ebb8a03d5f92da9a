"""JSON bodies, read once, and refused with the field's name before any field is looked at.

What is read here, and validated after it, is everybody's time: parsing holds the interpreter as long as it
takes. So a large body is read by a process of its own (`body_child.py`), which ends with its request.
"""

import asyncio
import json
import os
import pickle
import signal
import subprocess
import sys
from asyncio.subprocess import Process
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import aclosing, suppress
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect

from edgespec.server.json_body import WrongBodyError, parsed
from edgespec.server.presence import unless_gone
from edgespec.server.refusal import GONE, Refusal, unavailable
from edgespec.system.isolate import PRIVATE

LARGE = 2**17  # bytes; smaller bodies are parsed in a few milliseconds
AT_ONCE = 2  # large bodies that are read at the same time
PER_S = 2**26  # bytes of large bodies that are taken in a second: who answers needs the cores, too
LONGEST_S = 30.0  # for one, on a machine that gives the child little time
TOO_LONG = f"reading the body took more than {LONGEST_S:.0f} s"
_Handler = Callable[[Request], Coroutine[Any, Any, Response]]
Route = tuple[str, Callable[..., Any], *tuple[str, ...]]  # methods, handler, paths
_Longest = tuple[int | None, list[str]]
_Ask = Callable[[Process, list[bytes]], Awaitable[bytes]]


def prepare(app: FastAPI, longest: Callable[[], _Longest], count: Callable[[int], None]) -> None:
    """Makes routes of this app read JSON bodies as `CheckedRoute` does.

    longest: returns how many characters a text may have, and the models for which that is not so. count:
    called when one large body more, or less, is being read.
    """
    app.router.route_class = CheckedRoute
    app.state.large_bodies = asyncio.Semaphore(AT_ONCE)
    app.state.longest, app.state.count_large_body = longest, count


class CheckedRoute(APIRoute):
    """A route that checks JSON bodies before their fields are read. What it does for a client ends when
    the client leaves."""

    def get_route_handler(self) -> _Handler:
        """Returns the handler of this route's requests."""
        inner = super().get_route_handler()

        async def checked(request: Request) -> Response:
            encoding = request.headers.get("content-encoding", "").lower()
            if encoding not in ("", "identity"):
                sentence = f"the body is compressed ({encoding}): send it as it is"
                raise Refusal(415, sentence, code="unsupported_encoding")
            request = _Read(request.scope, request.receive)
            try:
                if request.method == "POST" and await request.body():
                    await request.json()
            except ClientDisconnect:
                raise Refusal(GONE, "the client has left") from None
            finally:
                request.over()
            answer = await unless_gone(request, inner(request))
            return answer or Response(status_code=GONE)

        return checked


def checked_router(*routes: Route, prefix: str = "", shown: bool = True) -> APIRouter:
    """Returns checked routes. shown: each handler is documented, under its first path."""
    router, known = APIRouter(route_class=CheckedRoute, prefix=prefix), set[Callable[..., Any]]()
    for methods, handler, *paths in routes:
        for path in paths:
            first = shown and handler not in known
            known.add(handler)
            how = methods.split()
            router.add_api_route(path, handler, methods=how, response_model=None, include_in_schema=first)
    return router


class _Read(Request):
    """A request whose large body stays in pieces: to join 31 MB takes 25 ms of everybody's time."""

    _large = False

    def over(self) -> None:
        """Its body has been read, or never will be."""
        if self._large:
            self.app.state.count_large_body(-1)

    async def body(self) -> bytes:
        if not hasattr(self, "_body"):
            self._pieces, size = [], 0
            async with aclosing(self.stream()) as stream:
                async for piece in stream:
                    self._pieces.append(piece)
                    size += len(piece)
                    if size > LARGE:
                        if not self._large:
                            self._large = True
                            self.app.state.count_large_body(1)
                        await asyncio.sleep(len(piece) / PER_S)
            self._body = self._pieces[0] if self._large else b"".join(self._pieces)
        return self._body

    async def json(self) -> Any:
        if not hasattr(self, "_json"):
            body = await self.body()
            try:
                if self._large:
                    self._json = await self._read_apart(self._pieces)
                else:
                    self._json = parsed(body)
            except WrongBodyError as wrong:
                raise Refusal(400, wrong.sentence, param=wrong.param, code=wrong.code) from None
        return self._json

    async def _read_apart(self, body: list[bytes]) -> Any:
        async def read() -> tuple[Any]:
            async with self.app.state.large_bodies:
                return (await read_in_child(body, self.app.state.longest()),)

        found = await unless_gone(self, read())
        if found is None:
            raise ClientDisconnect
        return found[0]


async def read_in_child(body: list[bytes], longest: _Longest, *, ask: _Ask | None = None) -> Any:
    """Returns the value of a body; raises WrongBodyError. If it is cancelled, the child is killed.

    ask: what hands the body to the child and returns what that writes.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",
        "-m",
        "edgespec.server.body_child",
        json.dumps(longest),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={name: value for name, value in os.environ.items() if name not in PRIVATE},
        start_new_session=True,  # Ctrl+C is for the server
    )
    try:
        async with asyncio.timeout(LONGEST_S):
            answer = await (ask or _answer)(process, body)
            await process.wait()  # or `kill` might take its end from who waits for it
    except TimeoutError:
        raise Refusal(408, f"{TOO_LONG}: send less, or try again", code="body_too_slow") from None
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()  # reads what is left, without which some Pythons never tell its end
    if not answer and process.returncode == -signal.SIGXCPU:
        raise Refusal(408, f"{TOO_LONG} of the processor: send less", code="body_too_slow")
    if not answer:
        why = "the process that reads large bodies was ended from outside: try again"
        raise unavailable(why)
    value = pickle.loads(answer)
    if isinstance(value, WrongBodyError):
        raise value
    return value


async def _answer(process: Process, body: list[bytes]) -> bytes:
    """Hands the body over, piece by piece; returns what the child writes."""
    assert process.stdin and process.stdout
    with suppress(ConnectionError):  # it has ended: no answer comes
        for piece in body:
            process.stdin.write(piece)
            await process.stdin.drain()
            await asyncio.sleep(len(piece) / PER_S)
    process.stdin.close()
    return await process.stdout.read()
