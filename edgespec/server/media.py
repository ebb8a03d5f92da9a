"""The files of pictures and sounds in requests: sent with them, or fetched from hosts that were named for it.

A server that fetches what strangers name can be made to ask its own network. So each address of a named
host has to be a public one, the connection goes to the address that was checked, a redirect is checked as
the first address was, and bytes and time have limits.
"""

import asyncio
import base64
import binascii
import http.client
import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from functools import partial
from urllib.parse import SplitResult, quote, urljoin, urlsplit, urlunsplit

from edgespec.core.attachment import LARGEST, Attachment, Mixed
from edgespec.core.sound import is_sound
from edgespec.protocol.media_marks import MARKER
from edgespec.server.refusal import Refusal, invalid

USUAL = "<__media__>"
LONGEST_S = 20.0  # for all pictures of a request
REDIRECTS = 3
PORTS = {"http": 80, "https": 443}
SAFE = "/?&=%:+,;@!$'()*~"  # what an address may have as it is
REDIRECTED = (301, 302, 303, 307, 308)
TRANSLATED = [
    ipaddress.ip_network(net) for net in ("64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32")
]
_refused = partial(invalid, "messages")
_fetching = ThreadPoolExecutor(4, "media")  # whoever is slow here makes only others that name addresses wait


def marked(text: str, files: Sequence[str], param: str) -> str | Mixed:
    """Returns a text whose marks its client wrote, with what it sent for them, in base64. Raises Refusal."""
    texts = text.replace(USUAL, MARKER).split(MARKER)
    if len(texts) - 1 != len(files):
        sentence = f"{param} has {len(files)} files for {len(texts) - 1} marks ({USUAL}) in the prompt"
        raise invalid(param, f"{sentence}: send one for each")
    return Mixed(tuple(texts), tuple(from_base64(file, param) for file in files)) if files else text


def from_base64(data: str, param: str) -> Attachment:
    """Returns a file that was sent in base64. Raises Refusal."""
    try:
        file = base64.b64decode("".join(data.split()) if "\n" in data else data, validate=True)
    except (binascii.Error, ValueError):
        file = b""
    if not file:
        raise invalid(param, f"{param}: a file is not in base64, or empty")
    return attachment(file)


def attachment(file: bytes) -> Attachment:
    """Returns a file as what its content says it is."""
    return Attachment("sound" if is_sound(file) else "picture", file)


def from_url(url: str, param: str) -> Attachment:
    """Returns the file of a data URL. Raises Refusal for others."""
    head, comma, data = url.partition(",")
    if not head.lower().startswith("data:") or not comma:
        sentence = f"a picture is given as {url[:40]!r}: only data URLs are read here, so send its bytes"
        raise Refusal(400, f"{sentence} (data:image/png;base64,...)", param=param, code="unsupported_value")
    if not head.lower().endswith(";base64"):
        raise invalid(param, "a data URL is not in base64: write data:image/png;base64,...")
    return from_base64(data, param)


def is_public(address: str) -> bool:
    """Returns whether an address is one of the internet, not of this machine, its network or a translator."""
    found = ipaddress.ip_address(address.partition("%")[0])
    within = any(found in net for net in TRANSLATED if net.version == found.version)
    return found.is_global and not found.is_multicast and not within


def is_remote(url: str) -> bool:
    """Returns whether a picture is named by an address."""
    return url[:8].lower().startswith(("http://", "https://"))


async def fetched(urls: Sequence[str], hosts: Collection[str], most: int) -> list[bytes]:
    """Returns the files at these addresses, one after another. most: bytes of all. Raises Refusal."""
    loop, until, files = asyncio.get_running_loop(), time.monotonic() + LONGEST_S, list[bytes]()
    try:
        async with asyncio.timeout(LONGEST_S + 1):  # looking up a name has no limit of its own
            for url in urls:
                room = min(LARGEST["picture"], most - sum(map(len, files)))
                files.append(await loop.run_in_executor(_fetching, fetch, url, hosts, until, room))
        return files
    except TimeoutError:
        raise _refused(f"a picture was not fetched in {LONGEST_S:.0f} s") from None


def fetch(url: str, hosts: Collection[str], until: float, most: int) -> bytes:
    """Returns the file at an address. until: on the monotonic clock; most: bytes. Raises Refusal."""
    for _ in range(REDIRECTS + 1):
        try:
            target = urlsplit(url)
            port = target.port or PORTS.get(target.scheme, 0)
        except ValueError:
            raise _refused("a picture's address cannot be read") from None
        host = target.hostname or ""
        if target.scheme not in PORTS or host not in hosts:
            raise _refused(f"pictures are not fetched from {host[:100] or url[:40]!r}: send its bytes")
        try:
            found = _answer(target, host, port, until, most)
        except TimeoutError:
            raise _refused(f"{host} did not send a picture in {LONGEST_S:.0f} s") from None
        except (OSError, http.client.HTTPException) as error:
            why = str(error) or type(error).__name__
            raise _refused(f"no picture could be fetched from {host}: {why}") from None
        if isinstance(found, bytes):
            return found
        url = urljoin(url, found)
    raise _refused(f"{host} redirects more than {REDIRECTS} times")


def _answer(target: SplitResult, host: str, port: int, until: float, most: int) -> bytes | str:
    """Returns the file, or where its source says that it is."""
    addresses = [str(found[4][0]) for found in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    if not all(map(is_public, addresses)):
        raise _refused(f"{host} has an address that is not of the internet, so nothing is fetched from it")
    left = max(0.1, until - time.monotonic())
    connection = http.client.HTTPConnection(host, port)
    wire = connection.sock = socket.create_connection((addresses[0], port), left)

    def end() -> None:
        with suppress(OSError):  # of a connection that is over
            socket.socket.shutdown(wire, socket.SHUT_RDWR)  # SSLSocket's own is for one thread

    ends = threading.Timer(left, end)  # whatever is slow: the handshake, headers, the body
    ends.start()
    try:
        with closing(connection):
            if target.scheme == "https":
                how = ssl.create_default_context()
                wire = secure = how.wrap_socket(wire, False, False, server_hostname=host)
                connection.sock = secure
                secure.do_handshake()
            path = quote(urlunsplit(("", "", target.path or "/", target.query, "")), safe=SAFE)
            connection.request("GET", path, headers={"Accept": "image/*", "User-Agent": "EdgeSpec"})
            answer = connection.getresponse()
            if answer.status in REDIRECTED:
                return answer.headers.get("Location") or ""
            if answer.status != 200:
                raise _refused(f"{host} answered {answer.status} for a picture")
            return _body(answer, host, most)
    except (OSError, http.client.HTTPException):
        if time.monotonic() >= until:
            raise TimeoutError from None
        raise
    finally:
        ends.cancel()


def _body(answer: http.client.HTTPResponse, host: str, most: int) -> bytes:
    found = bytearray()
    while part := answer.read1(2**16):
        found += part
        if len(found) > most:
            raise _refused(f"a picture of {host} has more than {most / 2**20:.0f} MiB: it is not read")
    if answer.length:
        raise OSError("it ended too early")
    return bytes(found)
