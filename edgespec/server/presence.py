"""Work for a client that may leave before it is done."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from fastapi import Request

_T = TypeVar("_T")


async def unless_gone(request: Request, work: Awaitable[_T]) -> _T | None:
    """Returns what `work` gives, or None if the client leaves first: then it is cancelled."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    working, watching = asyncio.ensure_future(work), asyncio.ensure_future(gone())
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)
