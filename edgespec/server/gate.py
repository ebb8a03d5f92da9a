"""Who may ask: the checks before any route, as ASGI layers.

- Host: a web page can let a name of its own resolve to 127.0.0.1 (DNS rebinding) and then read the
  answers as its own. It cannot take an address as its name, so addresses, this machine's names and
  those allowed by a flag pass.
- Origin: a browser says which page asks. Pages that are not allowed are refused before they cost
  anything; programs send none. Browsers omit it if a page only embeds something of ours, such as a
  picture or a script; then Sec-Fetch-Site shows that another site's page asks. Links that people follow open.
- Key: compared in constant time with every key there is.
- Body: has a limit on size and time. The rest of a refused body is still read, or the answer would be lost;
  not if the client waits for leave to send it (`Expect: 100-continue`).
"""

import asyncio
import hmac
import ipaddress
import re
import socket
from collections.abc import MutableMapping, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import Any
from urllib.parse import unquote

from fastapi import HTTPException
from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edgespec.client.state_file import PROOF_PATH
from edgespec.server.front_page import FILES
from edgespec.server.own_calls import OWNER
from edgespec.server.refusal import Refusal
from edgespec.server.settings import PROGRAMS, ServerSettings

DRAIN_S = 5.0
LOCAL = "localhost"  # in place of an origin: pages that this machine serves, at any port
PAGES = {
    LOCAL: r"https?://(localhost|127\.0\.0\.1|\[::1\])(:\d+)?",
    PROGRAMS: r"(app|tauri|vscode-webview|vscode-file)://.*",
}
WHOLE_ADDRESS = re.compile(r"https?://([^/]*)(/.*)?", re.IGNORECASE)
# these tell a stranger nothing useful
OPEN_PATHS = frozenset(
    {"/", "/health", "/v1/health", PROOF_PATH, *(f"/edgespec/page/{file}" for file in FILES)}
)


def gated(app: ASGIApp, settings: ServerSettings, *, own_key: str) -> ASGIApp:
    """Returns the app behind its checks, the outermost first: Host and Origin, CORS, key, body.

    own_key: also opens, if keys are required; it is in the server's file. Unless pages are named, those that
    this machine serves may ask, and all where a key is required, which no page has by itself.
    """
    origins = settings.origins
    if not set(origins) - {PROGRAMS}:
        origins += ("*",) if settings.keys else (LOCAL,)
    keys = (*settings.keys, own_key) if settings.keys else ()
    app = _Key(_Body(app, settings.body_s, settings.max_body), keys)
    app = CORSMiddleware(
        app,
        allow_origins=origins,
        allow_methods=["GET", "POST", "DELETE", "OPTIONS"],
        allow_headers=["*"],
        allow_credentials=True,
        allow_private_network=True,
        allow_origin_regex=_pages(origins),
    )
    return _Drain(_Door(app, settings.hosts, origins))


def refused(refusal: Refusal, scope: MutableMapping[str, Any]) -> JSONResponse:
    """Returns a refusal as the client of this request reads it."""
    scope["state"]["refused"] = refusal.code  # for its line in the log
    return JSONResponse(refusal.shaped(scope["path"], scope["state"]), refusal.status, refusal.headers())


class _Drain:
    """Reads and discards what a refused client still sends, for a while: or the refusal is lost with it."""

    def __init__(self, app: ASGIApp, drain_s: float = DRAIN_S) -> None:
        self._app, self._drain_s = app, drain_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        chunked, length = "transfer-encoding" in headers, headers.get("content-length")
        whole = (length or "0") == "0" and not chunked
        twofold = chunked and length is not None  # a proxy may see another end of it: RFC 9112 6.1
        held_back = headers.get("expect", "").lower() == "100-continue"  # until something is read

        async def reading() -> Message:
            nonlocal whole, held_back
            held_back = False
            message = await receive()
            whole = whole or not message.get("more_body", False)
            return message

        async def answering(message: Message) -> None:
            nonlocal whole
            with suppress(TimeoutError):
                async with asyncio.timeout(self._drain_s):
                    while not (whole or held_back):
                        await reading()
            if (twofold or not whole) and message["type"] == "http.response.start":
                whole = True  # or the rest of the answer would wait as long again
                headers = [*message.get("headers", ()), (b"connection", b"close")]
                message = {**message, "headers": headers}
            await send(message)

        await self._app(scope, reading, answering)


class _Door:
    """Checks Host and Origin. A target may be a whole address, as proxies are sent; then its host counts."""

    def __init__(self, app: ASGIApp, hosts: frozenset[str], origins: Sequence[str]) -> None:
        self._app, self._origins = app, origins
        own = socket.gethostname().lower()
        self._hosts = {name.lower() for name in hosts} | {"localhost", own, f"{own}.local"}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        given = headers.get("host", LOCAL)  # monitors speak HTTP/1.0 without one, browsers never
        if whole := WHOLE_ADDRESS.fullmatch(scope["raw_path"].decode("ascii", "replace")):
            given, path = whole[1], whole[2] or "/"
            scope = {**scope, "path": unquote(path), "raw_path": path.encode()}
        host, origin = _name(given), headers.get("origin")
        if not (_is_address(host) or host in self._hosts or host.endswith(".localhost")):
            named, name = host or given, host or "NAME"
            sentence = f"Host {named!r} is not a name of this server: --allowed-host {name} allows it"
            await refused(Refusal(403, sentence, code="wrong_host"), scope)(scope, receive, send)
        elif origin and not self.may(origin, given):
            if scope["method"] == "OPTIONS" and "access-control-request-method" in headers:
                await Response()(scope, receive, send)  # allows nothing, which is what a browser checks
                return
            sentence = f"web pages of {origin!r} may not use this server: --cors-origin {origin} allows them"
            await refused(Refusal(403, sentence, code="wrong_origin"), scope)(scope, receive, send)
        elif not origin and self._embeds(headers, host):
            sentence = "web pages of other sites may not use this server: --cors-origin allows those you name"
            await refused(Refusal(403, sentence, code="wrong_origin"), scope)(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _embeds(self, headers: Headers, host: str) -> bool:
        """Returns whether another site's page asks a host, without an Origin."""
        site = headers.get("sec-fetch-site", "")
        if site not in ("cross-site", "same-site") or "*" in self._origins:
            return False
        follows = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
        return not (
            follows or (site == "same-site" and LOCAL in self._origins and self.may(f"http://{host}", ""))
        )

    def may(self, origin: str, host: str) -> bool:
        """Returns whether a page of this origin may ask."""
        named = "*" in self._origins or origin in self._origins or origin.partition("://")[2] == host
        return named or re.fullmatch(_pages(self._origins), origin) is not None


def _pages(origins: Sequence[str]) -> str:
    """Returns a regular expression of the origins that words stand for; without any, it matches none."""
    return "|".join(PAGES[word] for word in PAGES if word in origins) or r"(?!)"


def _name(host: str) -> str:
    """Returns a Host header without its port, in lower case; "" if it is none."""
    parts = re.fullmatch(r"(\[[^\[\]]*\]|[^\[\]:]*)(:\d*)?", host)
    return parts[1].strip("[]").lower().removesuffix(".") if parts else ""


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


class _Key:
    """Admits who has a key, if keys are required."""

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self._app, self._keys = app, [key.encode() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        key = self._opening(Headers(scope=scope)) if self._keys else b""
        if key is not None or scope["path"] in OPEN_PATHS:
            OWNER.set(sha256(key).hexdigest() if key else "")
            await self._app(scope, receive, send)
            return
        sentence = "the API key is missing or wrong: send it as 'Authorization: Bearer KEY' or x-api-key"
        await refused(Refusal(401, sentence, code="invalid_api_key"), scope)(scope, receive, send)

    def _opening(self, headers: Headers) -> bytes | None:
        """Returns the key that a request has, None without a right one."""
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        given = [headers.get("x-api-key", ""), headers.get("api-key", "")]
        given += [bearer.strip()] if scheme.lower() == "bearer" else []
        pairs = [(key, one.encode("latin-1")) for key in self._keys for one in given]
        right = [key for key, one in pairs if hmac.compare_digest(key, one)]  # all are compared
        return right[0] if right else None


class _Body:
    """Limits a body's size and time, and calls every body JSON, because `curl -d` does not."""

    def __init__(self, app: ASGIApp, seconds: float, most: int) -> None:
        self._app, self._seconds, self._most = app, seconds, most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        declared = Headers(scope=scope).get("content-length", "")
        if declared.isdecimal() and int(declared[:20]) > self._most:
            await refused(self._too_large(), scope)(scope, receive, send)
            return
        kept = [(name, value) for name, value in scope["headers"] if name != b"content-type"]
        scope = {**scope, "headers": [*kept, (b"content-type", b"application/json")]}
        until = asyncio.get_running_loop().time() + self._seconds
        whole, size = False, 0

        async def in_time() -> Message:
            nonlocal whole, size
            if whole:
                return await receive()
            try:
                async with asyncio.timeout_at(until):
                    message = await receive()
            except TimeoutError:
                raise HTTPException(408, f"the body did not arrive within {self._seconds:g} s") from None
            whole = not message.get("more_body", False)
            size += len(message.get("body", b""))
            if size > self._most:
                raise self._too_large()
            return message

        await self._app(scope, in_time, send)

    def _too_large(self) -> Refusal:
        sentence = f"the body is larger than {self._most / 2**20:g} MiB: --max-body allows more"
        return Refusal(413, sentence, code="too_large")
