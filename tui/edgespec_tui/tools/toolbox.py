"""The servers of the user's list and their tools. A server is started when its tools are needed first."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgespec.errors import ToolServerError
from edgespec.system import config
from edgespec_tui.tools.loop import MOST_ROUNDS
from edgespec_tui.tools.question import Asked, Value
from edgespec_tui.tools.server_list import ToolServer
from edgespec_tui.tools.values import Result, Tool

if TYPE_CHECKING:
    from edgespec_tui.tools.connection import Connection

END_S = 1.0  # for a server to end once its input has
CALL_S = 120.0  # that a call may take
STARTS = 2  # of one server: a server that has ended is started once more
LONGEST_NAME = 64  # characters
ODD = re.compile(r"[^A-Za-z0-9_-]")
MISSING = "tools need the Python package mcp, which is not installed: pip install 'mcp>=2.3,<3'"


async def nobody(_asked: Asked) -> None:
    """Answers a server's question where there is nobody: not at all."""


Ask = Callable[[Asked], Awaitable[Mapping[str, Value] | None]]


@dataclass(slots=True)
class _Place:
    """A server of the list, and whether it runs."""

    server: ToolServer
    connection: Connection | None = None
    starts: int = 0
    fault: str = ""  # why its tools are not there
    reported: str = ""  # the fault that the user knows of
    starting: asyncio.Lock = field(default_factory=asyncio.Lock)


class Toolbox:
    """Owns the servers for as long as the app runs."""

    def __init__(
        self,
        servers: Sequence[ToolServer],
        *,
        call_s: float = CALL_S,
        end_s: float = END_S,
        most_rounds: int = MOST_ROUNDS,
    ) -> None:
        """call_s, end_s: how long a call may take, and the end of a server. most_rounds: of an answer."""
        self._places = {one.name: _Place(one) for one in servers if not one.disabled}
        self._call_s, self._end_s, self.most_rounds = call_s, end_s, most_rounds
        self.ask: Ask = nobody  # puts a server's question to the user

    @property
    def servers(self) -> list[ToolServer]:
        """The servers that are not disabled."""
        return [place.server for place in self._places.values()]

    def fault_of(self, server: str) -> str:
        """Returns why a server's tools are not there; "" if they are, or nobody has asked for them."""
        return self._places[server].fault

    def new_faults(self) -> list[str]:
        """Returns the faults that were not returned before."""
        found = [place for place in self._places.values() if place.fault not in ("", place.reported)]
        for place in found:
            place.reported = place.fault
        return [place.fault for place in found]

    async def tools(self, servers: Iterable[str] | None = None) -> list[Tool]:
        """Returns the tools of these servers, or all; `fault_of` says why a server's are missing."""
        places = [p for name, p in self._places.items() if servers is None or name in set(servers)]
        lists = await asyncio.gather(*map(self._tools_of, places))
        return [tool for listed in lists for tool in listed]

    async def _tools_of(self, place: _Place) -> list[Tool]:
        try:
            connection = await self._connected(place)
            return await connection.tools()
        except ToolServerError as error:
            place.fault = str(error)
            return []

    async def call(self, tool: Tool, arguments: Mapping[str, Any]) -> Result:
        """Calls a tool. Raises ToolServerError. A call that a server did not survive is not repeated."""
        connection = await self._connected(self._place(tool.server))
        return await connection.call(tool.name, arguments)

    async def prompts(self) -> list[tuple[str, str, tuple[str, ...]]]:
        """Returns (server, name, arguments) of each prompt of the servers that can be reached."""
        found = []
        for name, place in self._places.items():
            try:
                found += [(name, *one) for one in await (await self._connected(place)).prompts()]
            except ToolServerError as error:
                place.fault = str(error)
        return found

    async def resource(self, server: str, name: str) -> str:
        """Returns the text of a resource, by its name or address. Raises ToolServerError."""
        connection = await self._connected(self._place(server))
        addresses = dict(await connection.resources())
        return await connection.read(addresses.get(name, name))

    async def prompt(self, server: str, name: str, arguments: Mapping[str, str]) -> str:
        """Returns the text of a prompt. Raises ToolServerError."""
        return await (await self._connected(self._place(server))).prompt(name, arguments)

    def renew(self, server: str) -> None:
        """Lets a server that could not be used be started again."""
        place = self._place(server)
        place.starts, place.fault, place.reported = 0, "", ""

    def _place(self, server: str) -> _Place:
        if (place := self._places.get(server)) is None:
            known = ", ".join(self._places) or "none"
            raise ToolServerError(f"there is no server of tools {server!r}: there is {known}")
        return place

    async def _connected(self, place: _Place) -> Connection:
        """Returns a server that runs; starts it if it does not. Raises ToolServerError."""
        async with place.starting:
            if place.connection is not None and place.connection.lives:
                return place.connection
            if place.fault and place.starts:
                raise ToolServerError(place.fault)
            if place.starts >= STARTS:
                name = place.server.name
                place.fault = f"the server {name} has ended {place.starts} times: /tools can start it again"
                raise ToolServerError(place.fault)
            place.starts += 1
            if place.connection is not None:
                await place.connection.close()
            try:
                place.connection = connection = await self._new(place.server)
                await connection.start()
            except ToolServerError as error:
                place.fault = str(error)
                raise
            except asyncio.CancelledError:  # whoever needed it no longer does: it is not to blame
                place.starts -= 1
                raise
            return connection

    async def _new(self, server: ToolServer) -> Connection:
        try:
            module = await asyncio.to_thread(import_module, "edgespec_tui.tools.connection")
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in ("mcp", "mcp_types"):
                raise
            raise ToolServerError(MISSING) from None

        async def ask(asked: Asked) -> Mapping[str, Value] | None:
            return await self.ask(asked)

        log = log_of(server.name)
        waits = {"call_s": self._call_s, "end_s": self._end_s}
        made: Connection = module.Connection(server, log=log, ask=ask, **waits)
        return made

    async def close(self) -> None:
        """Ends all servers."""
        connections = [place.connection for place in self._places.values() if place.connection]
        await asyncio.gather(*(connection.close() for connection in connections))


def log_of(server: str) -> Path:
    """Returns the file that has what a server wrote to standard error."""
    return config.state_folder() / "tools" / f"{server}.log"


def named(tools: Iterable[Tool]) -> dict[str, Tool]:
    """Returns tools by the names that a model is given: a name that two of them have gets its server's."""
    ordered = list(tools)
    plain = [ODD.sub("_", tool.name)[:LONGEST_NAME] for tool in ordered]
    found: dict[str, Tool] = {}
    for tool, name in zip(ordered, plain, strict=True):
        if plain.count(name) > 1 or not name:
            name = ODD.sub("_", f"{tool.server}__{tool.name}")[:LONGEST_NAME]
        number = 1
        while name in found:
            number += 1
            name = f"{name[: LONGEST_NAME - 4]}_{number}"
        found[name] = tool
    return found
