"""The files of pictures and sounds in requests: sent with them, or fetched from hosts that were named for it.

A server that fetches what strangers name can be made to ask its own network. So each address of a named
host has to be a public one, the connection goes to the address that was checked, a redirect is checked as
the first address was, and bytes and time have limits.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import ipaddress
import socket
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING

from edgespec.core.attachment import LARGEST, Attachment, Mixed
from edgespec.core.sound import is_sound
from edgespec.protocol.media_marks import MARKER
from edgespec.server.refusal import Refusal, invalid

if TYPE_CHECKING:
    from httpx2 import AsyncClient, Response

USUAL = "<__media__>"
LONGEST_S = 20.0  # for all pictures of a request
REDIRECTS = 3
PORTS = {"http": 80, "https": 443}
REDIRECTED = (301, 302, 303, 307, 308)
TRANSLATED = [
    ipaddress.ip_network(net) for net in ("64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32")
]
_refused = partial(invalid, "messages")
_looking_up = ThreadPoolExecutor(4, "media")  # a slow name makes only others that name addresses wait


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


async def fetched(
    urls: Sequence[str],
    hosts: Collection[str],
    most: int,
    *,
    allowed: Callable[[str], bool] = is_public,
    longest_s: float = LONGEST_S,
) -> list[bytes]:
    """Returns the files at these addresses, one after another. Raises Refusal.

    most: bytes of all. allowed: whether a host may have this address. longest_s: for all.
    """
    from httpx2 import AsyncClient  # few servers fetch pictures

    files: list[bytes] = []
    head = {"Accept": "image/*", "Accept-Encoding": "identity", "User-Agent": "EdgeSpec"}
    client = AsyncClient(trust_env=False, headers=head, timeout=None)
    try:
        async with asyncio.timeout(longest_s), client:
            for url in urls:
                room = min(LARGEST["picture"], most - sum(map(len, files)))
                files.append(await _fetched(client, url, hosts, room, allowed))
        return files
    except TimeoutError:
        raise _refused(f"a picture was not fetched in {longest_s:.0f} s") from None


async def _fetched(
    client: AsyncClient, url: str, hosts: Collection[str], most: int, allowed: Callable[[str], bool]
) -> bytes:
    from httpx2 import URL, HTTPError, InvalidURL

    for _ in range(REDIRECTS + 1):
        try:
            target = URL(url)
        except InvalidURL:
            raise _refused("a picture's address cannot be read") from None
        host, port = target.host, target.port or PORTS.get(target.scheme)
        if port is None or host not in hosts:
            raise _refused(f"pictures are not fetched from {host[:100] or url[:40]!r}: send its bytes")
        try:
            address = await _address_of(host, port, allowed)
            asked = client.build_request(
                "GET",
                target.copy_with(host=address),
                headers={"Host": target.netloc.decode()},
                extensions={"sni_hostname": host},
            )
            answer = await client.send(asked, stream=True)
            async with aclosing(answer):
                if answer.status_code in REDIRECTED:
                    url = str(target.join(answer.headers.get("Location") or ""))
                    continue
                if answer.status_code != 200:
                    raise _refused(f"{host} answered {answer.status_code} for a picture")
                return await _body(answer, host, most)
        except (OSError, HTTPError) as error:
            why = str(error) or type(error).__name__
            raise _refused(f"no picture could be fetched from {host}: {why}") from None
    raise _refused(f"{host} redirects more than {REDIRECTS} times")


async def _address_of(host: str, port: int, allowed: Callable[[str], bool]) -> str:
    """Returns an address of a host, if all that it has are allowed. Raises OSError, Refusal."""
    look_up = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    found = await asyncio.get_running_loop().run_in_executor(_looking_up, look_up)
    addresses = [str(one[4][0]) for one in found]
    if not all(map(allowed, addresses)):
        raise _refused(f"{host} has an address that is not of the internet, so nothing is fetched from it")
    return addresses[0]


async def _body(answer: Response, host: str, most: int) -> bytes:
    found = bytearray()
    async for part in answer.aiter_raw():
        found += part
        if len(found) > most:
            raise _refused(f"a picture of {host} has more than {most / 2**20:.0f} MiB: it is not read")
    return bytes(found)
