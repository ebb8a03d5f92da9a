"""One server, connected, over the library `mcp`; the only module that imports it, when a server is needed.

Whatever goes wrong there, in the server or in the library on what the server sent, is a `ToolServerError`.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import mcp_types
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

from edgespec import __version__
from edgespec.errors import ToolServerError
from edgespec_tui.tools.question import Asked, Field
from edgespec_tui.tools.server_list import ToolServer
from edgespec_tui.tools.streams import LARGEST_MESSAGE, http_client, process_streams
from edgespec_tui.tools.values import Result, Tool

START_S = 60.0  # npx and uvx may download a server first
LIST_S = 20.0
MOST_LISTED = 500  # tools of one server
PAGES = 50
SHOWN = 200  # characters of an error
Answers = Mapping[str, str | int | float | bool]
Ask = Callable[[Asked], Awaitable[Answers | None]]
logging.getLogger("mcp").addHandler(logging.NullHandler())  # else its warnings go to the terminal


class Connection:
    """A server that is connected, or has been. One task enters and leaves the client, as it has to."""

    def __init__(self, server: ToolServer, *, log: Path, ask: Ask, call_s: float, end_s: float) -> None:
        """log: takes what the server writes to standard error. ask: puts a question of its to the user.

        end_s: how long it has to end when it is asked to.
        """
        self.server, self._log, self._ask, self._call_s, self._end_s = server, log, ask, call_s, end_s
        self._client: Client | None = None
        self._ready: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()
        self._limits: set[asyncio.Timeout] = set()  # of what it is asked now

    @property
    def lives(self) -> bool:
        """True until the server has ended, as far as that is known."""
        return self._client is not None and not self._closing.is_set()

    async def start(self) -> None:
        """Starts and greets the server. Raises ToolServerError."""
        self._ready = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._live())
        try:
            with self._explained("could not be started"):
                async with asyncio.timeout(START_S):
                    await asyncio.shield(self._ready)
        except BaseException:
            await self.close()
            raise

    async def _live(self) -> None:
        """Holds the client from its beginning to its end."""
        assert self._ready is not None
        try:
            async with self._new_client() as client:
                self._client = client
                if not self._ready.done():
                    self._ready.set_result(None)
                await self._closing.wait()
        except BaseException as error:
            if not self._ready.done():
                self._ready.set_exception(error)
                self._ready.exception()  # seen, even if nobody waits any more
            elif not isinstance(error, Exception):
                raise
        finally:
            self._client = None

    def _new_client(self) -> Client:
        way: Any = process_streams(self.server, self._log, self._closing, self._end_s)
        if url := self.server.url:
            asks = http_client(self.server)
            way = streamable_http_client(url, http_client=asks, max_sse_event_size=LARGEST_MESSAGE)
        about = mcp_types.Implementation(name="edgespec", version=__version__)
        return Client(way, mode="auto", client_info=about, elicitation_callback=self._elicited)

    async def close(self) -> None:
        """Ends the connection, and a server that was started for it."""
        self._closing.set()
        if self._task is not None:
            if self._client is None:  # it is still being started
                self._task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await self._task

    async def tools(self) -> list[Tool]:
        """Returns its tools; they are asked for anew when the server says so. Raises ToolServerError."""
        found: list[Tool] = []
        async for page in self._pages("tools"):
            found += [self._tool(one) for one in page.tools]
        return found[:MOST_LISTED]

    async def resources(self) -> list[tuple[str, str]]:
        """Returns name and address of each of its resources. Raises ToolServerError."""
        pages = [page async for page in self._pages("resources")]
        return [(one.name, str(one.uri)) for page in pages for one in page.resources][:MOST_LISTED]

    async def prompts(self) -> list[tuple[str, tuple[str, ...]]]:
        """Returns the name of each of its prompts, and what that needs to know. Raises ToolServerError."""
        pages = [page async for page in self._pages("prompts")]
        listed = [one for page in pages for one in page.prompts][:MOST_LISTED]
        return [(one.name, tuple(arg.name for arg in one.arguments or ())) for one in listed]

    async def _pages(self, kind: str) -> Any:
        """Yields the pages of a list; none if the server has no such list."""
        client, cursor = self._connected(), None
        if getattr(client.server_capabilities, kind) is None:
            return
        for _ in range(PAGES):
            with self._explained(f"did not list its {kind}"):
                async with asyncio.timeout(LIST_S):
                    page = await getattr(client, f"list_{kind}")(cursor=cursor)
            yield page
            cursor = page.next_cursor
            if not cursor:
                return

    def _tool(self, tool: mcp_types.Tool) -> Tool:
        hints = tool.annotations or mcp_types.ToolAnnotations()
        words = {
            "only reads": hints.read_only_hint,
            "may destroy": hints.destructive_hint and not hints.read_only_hint,
            "reaches the outside": hints.open_world_hint,
        }
        shown = tuple(word for word, holds in words.items() if holds)
        reads = hints.read_only_hint is True
        return Tool(self.server.name, tool.name, tool.description or "", tool.input_schema, reads, shown)

    async def call(self, name: str, arguments: Mapping[str, Any]) -> Result:
        """Calls a tool. Raises ToolServerError; the server is asked to give up a call that is cancelled."""
        client = self._connected()
        with self._explained(f"did not answer to {name}"):
            async with self._limited():
                result = await client.call_tool(name, dict(arguments))
        text = "\n".join(map(_in_words, result.content))
        if not text and result.structured_content is not None:
            text = json.dumps(result.structured_content, ensure_ascii=False)
        return Result(text, failed=result.is_error)

    async def read(self, address: str) -> str:
        """Returns the text of a resource. Raises ToolServerError."""
        client = self._connected()
        with self._explained(f"did not show {address}"):
            async with self._limited():
                result = await client.read_resource(address)
        return "\n".join(map(_resource_in_words, result.contents))

    async def prompt(self, name: str, arguments: Mapping[str, str]) -> str:
        """Returns the text of a prompt. Raises ToolServerError."""
        client = self._connected()
        with self._explained(f"did not give the prompt {name}"):
            async with self._limited():
                result = await client.get_prompt(name, dict(arguments))
        return "\n\n".join(_in_words(message.content) for message in result.messages)

    @asynccontextmanager
    async def _limited(self) -> AsyncIterator[None]:
        """Ends what takes too long; the time in which the user is asked does not count."""
        async with asyncio.timeout(self._call_s) as limit:
            self._limits.add(limit)
            try:
                yield
            finally:
                self._limits.discard(limit)

    def _connected(self) -> Client:
        if self._client is None:
            raise ToolServerError(f"the server {self.server.name} has ended: {self._log} may say why")
        return self._client

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        """Raises ToolServerError for whatever goes wrong."""
        who = f"the server {self.server.name} {what}"
        try:
            yield
        except TimeoutError:
            raise ToolServerError(f"{who} in time: {self._hint()}") from None
        except MCPError as error:
            if error.code in (mcp_types.CONNECTION_CLOSED, mcp_types.REQUEST_TIMEOUT):
                self._closing.set()
                raise ToolServerError(f"{who}: it has ended; {self._hint()}") from None
            raise ToolServerError(f"{who}: {error.message[:SHOWN]}") from None
        except OSError as error:
            raise ToolServerError(f"{who}: {error.strerror or error}; check {self.server.where!r}") from None
        except Exception as error:  # of a library that reads what a stranger wrote
            first = next(_leaves(error))
            raise ToolServerError(f"{who}: {str(first)[:SHOWN] or type(first).__name__}") from None

    def _hint(self) -> str:
        return f"look at {self.server.url}" if self.server.url else f"{self._log} has what it wrote"

    async def _elicited(
        self, context: object, params: mcp_types.ElicitRequestParams
    ) -> mcp_types.ElicitResult:
        """Asks the user what a server wants to know."""
        if isinstance(params, mcp_types.ElicitRequestURLParams):
            asked = Asked(self.server.name, f"{params.message}\n{params.url}")
        else:
            asked = Asked(self.server.name, params.message, tuple(Field.all_of(params.requested_schema)))
        for limit in self._limits:
            limit.reschedule(None)
        try:
            answers = await self._ask(asked)
        finally:
            for limit in self._limits:
                limit.reschedule(asyncio.get_running_loop().time() + self._call_s)
        if answers is None:
            return mcp_types.ElicitResult(action="decline")
        return mcp_types.ElicitResult(action="accept", content=dict(answers) or None)


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            yield from _leaves(one)
    else:
        yield error


def _in_words(block: Any) -> str:
    """Returns a part of a result as text; of what is none, what it is."""
    match block:
        case mcp_types.TextContent():
            return block.text
        case mcp_types.EmbeddedResource():
            return _resource_in_words(block.resource)
        case mcp_types.ResourceLink():
            return f"[resource {block.name}: {block.uri}]"
        case _:
            size = len(getattr(block, "data", "")) * 3 // 4
            return f"[{block.type}, {getattr(block, 'mime_type', '')}, {size:,} bytes: not shown]"


def _resource_in_words(resource: Any) -> str:
    text = getattr(resource, "text", None)
    return text if isinstance(text, str) else f"[{resource.uri}: no text, not shown]"
