"""Pictures named by addresses: fetched from the hosts that are named, and nowhere else."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from served import served
from tiny_projector import message, png, write_projector

from edgespec.core.attachment import Attachment
from edgespec.server import media as served_media
from edgespec.server.media import is_public
from edgespec.server.pair_session import fetch_pictures
from edgespec.server.refusal import Refusal
from edgespec.server.requests.chat import ChatRequest

MOST = 10_000


class Pictures(BaseHTTPRequestHandler):
    """A host that sends a picture, sends clients elsewhere, or is slow."""

    def do_GET(self) -> None:
        assert self.headers["Accept-Encoding"] == "identity", "what comes is counted, and never unpacked"
        moved = {"/moved": "/a.png?b=c d", "/away": "http://elsewhere.example/a.png", "/round": "/round"}
        if where := moved.get(self.path):
            self.send_response(302)
            self.send_header("Location", where)
            self.end_headers()
            return
        self.send_response(404 if self.path == "/none" else 200)
        body = png() if self.path.startswith("/a.png") else bytes(MOST + 1)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        try:
            for at in range(0, len(body), 100):
                self.wfile.write(body[at : at + 100])
                time.sleep(0.02 if self.path == "/slow" else 0)
                if self.path == "/cut":
                    break
        except OSError:
            pass

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def host() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Pictures) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://localhost:{server.server_port}"
        server.shutdown()
        thread.join()


def fetched(url: str, **how: Any) -> bytes:
    how = {"allowed": lambda _: True, **how}
    (file,) = asyncio.run(served_media.fetched([url], {"localhost"}, MOST, **how))
    return file


def test_only_the_internet_is_public() -> None:
    for address in ("127.0.0.1", "10.1.2.3", "192.168.0.1", "172.20.0.1", "169.254.169.254", "0.0.0.0"):
        assert not is_public(address) and not is_public(f"::ffff:{address}")
    for address in (
        "::1",
        "fe80::1%eth0",
        "fd00::1",
        "ff02::1",
        "224.0.0.1",
        "100.64.0.1",
        "::",
        "240.0.0.1",
    ):
        assert not is_public(address)
    for address in ("64:ff9b::a00:1", "2002:a00:1::", "2001:0:a00:1::"):  # others' ways to 10.0.0.1
        assert not is_public(address)
    assert is_public("1.1.1.1") and is_public("2606:4700::1111")


def test_a_named_host_is_asked(host: str) -> None:
    """Its redirects are followed to named hosts alone, and bytes and time have limits."""
    with pytest.raises(Refusal, match="localhost has an address that is not of the internet"):
        asyncio.run(served_media.fetched([f"{host}/a.png"], {"localhost"}, MOST))
    assert fetched(f"{host}/a.png") == fetched(f"{host.replace('localhost', 'LOCALHOST')}/moved") == png()
    for path, why in {
        "/away": "not fetched from 'elsewhere.example'",
        "/round": "redirects more than 3 times",
        "/none": "localhost answered 404",
        "/large": "more than 0 MiB",
        "/cut": "no picture could be fetched from localhost",
    }.items():
        with pytest.raises(Refusal, match=why):
            fetched(host + path)
    for url in ("http://127.0.0.1/a.png", "http://localhost.example/", "ftp://localhost/", "http://[::1/"):
        with pytest.raises(Refusal, match=r"not fetched from|cannot be read"):
            fetched(url)
    with pytest.raises(Refusal, match="no picture could be fetched from localhost"):
        fetched(host.replace("http", "https") + "/a.png")
    began = time.monotonic()
    with pytest.raises(Refusal, match="was not fetched in"):
        fetched(f"{host}/slow", longest_s=0.2)
    assert time.monotonic() - began < 1.5


def test_what_was_fetched_is_part_of_the_prompt(host: str) -> None:
    asked = message("What is it?", png(), png(32, 32))
    asked[0]["content"][0]["image_url"]["url"] = f"{host}/a.png"
    body, media = ChatRequest.model_validate({"messages": asked}), list[Attachment]()
    fetch = partial(served_media.fetched, allowed=lambda _: True)
    asyncio.run(fetch_pictures(body, frozenset({"localhost"}), 2**20, fetch=fetch))
    body.messages[0].for_template(("picture",), media)
    assert media == [Attachment("picture", png()), Attachment("picture", png(32, 32))]


@pytest.mark.slow
def test_a_server_fetches_only_what_it_was_reported_to(host: str, tmp_path: Path) -> None:
    """In a request, with a model that sees: its own machine is never asked, though its name was given."""
    projector = write_projector(tmp_path / "mmproj.gguf", "gemma3", 256)
    with served(tmp_path, "--mmproj", str(projector), "--media-url-hosts", "localhost, a.example") as server:
        for url, why in {
            f"{host}/a.png": "not of the internet",
            "https://b.example/a.png": "not fetched from 'b.example'",
        }.items():
            asked = message("What is it?", png())
            asked[0]["content"][0]["image_url"]["url"] = url
            refused = server.ask("/v1/chat/completions", {"messages": asked})
            assert refused.status == 400 and why in refused.error["message"]
