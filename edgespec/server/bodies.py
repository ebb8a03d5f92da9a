"""JSON bodies, read once. What no field may contain is refused here, with the field's name.

- Half a character: JSON can spell one half of a pair of surrogates (`\\ud800`), which no text can contain
  and nothing downstream can encode. Clients that cut a text in the middle of a character send that.
- Depth: hundreds of nested levels crash every reader that recurses.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect

from edgespec.server.refusal import GONE, Refusal

DEEPEST = 100  # levels of objects and arrays; a schema may have 64
HALF = re.compile("[\ud800-\udfff]")
MAYBE_HALF = re.compile(
    rb"\\u[dD][89a-fA-F]|\xed[\xa0-\xbf]|[\xd8-\xdf]\x00|\x00[\xd8-\xdf]"
)  # in some encoding
_Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class CheckedRoute(APIRoute):
    """A route that checks JSON bodies before their fields are read."""

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
            return await inner(request)

        return checked


class _Read(Request):
    async def json(self) -> Any:
        if not hasattr(self, "_json"):
            self._json = parsed(await self.body())
        return self._json


def parsed(body: bytes) -> Any:
    """Returns the value of a body; raises Refusal if it is not JSON, or has what no field may contain."""
    try:
        value = json.loads(body)
    except json.JSONDecodeError as error:
        sentence = f"the body is not JSON: {error.msg} at character {error.pos}"
        raise Refusal(400, sentence, code="invalid_json") from None
    except UnicodeDecodeError:
        raise Refusal(400, "the body is not JSON: it is not text in UTF-8", code="invalid_json") from None
    except ValueError:  # Python's limit of digits
        raise Refusal(
            400, "the body is not JSON: a number has thousands of digits", code="invalid_json"
        ) from None
    except RecursionError:
        raise _too_deep() from None
    if body.count(b"{") + body.count(b"[") > DEEPEST and _is_deeper(value, DEEPEST):
        raise _too_deep()
    if MAYBE_HALF.search(body) and (path := next(_halves(value, ()), None)) is not None:
        field = ".".join(path) or "the body"
        sentence = f"{field} holds half a character (a lone surrogate): send whole ones"
        raise Refusal(400, sentence, param=path[0] if path else None, code="invalid_value")
    return value


def _too_deep() -> Refusal:
    sentence = f"the body is nested more than {DEEPEST} levels deep: make it flatter"
    return Refusal(400, sentence, code="invalid_value")


def _is_deeper(value: Any, most: int) -> bool:
    """Returns whether there are more levels of objects and arrays; does not recurse."""
    level = [value]
    for _ in range(most + 1):
        level = [part for part in level if isinstance(part, dict | list)]
        if not level:
            return False
        level = [part for one in level for part in (one.values() if isinstance(one, dict) else one)]
    return True


def _halves(value: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yields the places of texts with half a character. The value is no deeper than `DEEPEST`."""
    if isinstance(value, str):
        if HALF.search(value):
            yield path
    elif isinstance(value, dict):
        for key, item in value.items():
            if HALF.search(key):
                yield path
            yield from _halves(item, (*path, key))
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield from _halves(item, (*path, str(i)))
