"""A hub on this machine, for tests: it speaks the real one's protocol, and fails on demand.

Two servers on loopback: the hub itself (the API, and /resolve/, which redirects) and the store that the
redirects lead to, on another port, as the real one's is on another host. The real client talks to them.
`Fault` says what goes wrong, where and how often; `hub.served` counts the bytes sent of each file.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal
from urllib.parse import parse_qs, unquote, urlsplit

CHUNK = 1 << 16
COMMIT = "c0ffee" + "0" * 34


@dataclass(frozen=True, slots=True)
class Content:
    """A file: its first bytes, and zeros up to its size."""

    head: bytes
    size: int

    def read(self, start: int, end: int) -> bytes:
        head = self.head[start:end]
        return head + bytes(end - start - len(head))


@dataclass(slots=True)
class Fault:
    """Something that goes wrong `times` times at `where`, for paths that hold `path`."""

    where: Literal["api", "resolve", "store"]
    path: str = ""
    status: int | None = None  # answered in place of the file
    headers: Mapping[str, str] = field(default_factory=dict)
    cut_after: int | None = None  # bytes of the answer, then the connection breaks
    extra: int = 0  # bytes more than there should be, or fewer
    flip: bool = False  # the first byte is another one
    ignore_range: bool = False
    pause_s: float = 0.0  # before each chunk
    reset: bool = False  # the connection is reset (in the store: behind the first chunk)
    page: bytes | None = None  # answered as a page, with 200
    times: int = 1_000_000


@dataclass(slots=True)
class Repo:
    files: dict[str, Content]
    gated: bool = False
    needs_token: str | None = None  # the only one that may read it
    private: bool = False
    licence: str = "apache-2.0"
    commit: str = COMMIT
    xet: bool = False  # the files are also offered by Xet
    xet_works: bool = False  # and there is a store that answers for it


class LocalHub:
    """The hub; use it in a `with`."""

    def __init__(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.faults: list[Fault] = []
        self.served: Counter[str] = Counter()  # file name -> bytes sent
        self.requests: list[tuple[str, str, str]] = []  # (where, method, path)
        self.tokens_at_store: list[str] = []
        self._lock = threading.Lock()
        self._servers = [_Server(self, where) for where in ("hub", "store")]

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._servers[0].server_port}"

    @property
    def store(self) -> str:
        return f"http://127.0.0.1:{self._servers[1].server_port}"

    def __enter__(self) -> LocalHub:
        for server in self._servers:
            threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for server in self._servers:
            server.shutdown()
            server.server_close()

    def add(self, repo: str, files: Mapping[str, bytes | Content], **about: Any) -> None:
        """Puts a repository up."""
        self.repos[repo] = Repo(
            {n: f if isinstance(f, Content) else Content(f, len(f)) for n, f in files.items()}, **about
        )

    def fault(self, where: str, path: str) -> Fault | None:
        """Returns what goes wrong this time, and counts it."""
        with self._lock:
            for fault in self.faults:
                if fault.where == where and fault.path in path and fault.times > 0:
                    fault.times -= 1
                    return fault
        return None

    def count(self, name: str, n: int) -> None:
        with self._lock:
            self.served[name] += n


def digest(content: Content) -> str:
    """Returns what stands for a file's SHA-256: the true one of files small enough to be read."""
    sha = hashlib.sha256(content.head)
    if content.size > 64 << 20:
        sha.update(str(content.size).encode())
    else:
        sha.update(bytes(content.size - len(content.head)))
    return sha.hexdigest()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, hub: LocalHub, where: str) -> None:
        super().__init__(("127.0.0.1", 0), _Hub if where == "hub" else _Store)
        self.hub = hub

    def handle_error(self, *_: object) -> None:
        """A client that went away is none of the test's business."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, *_: object) -> None:
        pass

    @property
    def hub(self) -> LocalHub:
        return self.server.hub

    def answer(self, status: int, headers: Mapping[str, str] | None = None, body: bytes = b"") -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def reset(self) -> None:
        """Ends the connection as a router does that has forgotten it: by RST."""
        self.close_connection = True
        self.wfile.flush()
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()

    def refuse(self, status: int, code: str | None = None, headers: Mapping[str, str] | None = None) -> None:
        named = {"X-Error-Code": code} if code else {}
        self.answer(status, {**named, **(headers or {})}, b"{}")


class _Hub(_Handler):
    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path, query = unquote(urlsplit(self.path).path), parse_qs(urlsplit(self.path).query)
        where: Literal["api", "resolve"] = "api" if path.startswith("/api/") else "resolve"
        self.hub.requests.append((where, self.command, path))
        fault = self.hub.fault(where, path)
        if fault and fault.status:
            return self.refuse(fault.status, headers=fault.headers)
        if fault and fault.reset:
            return self.reset()
        if fault and fault.page is not None:
            return self.answer(200, {"Content-Type": "text/html"}, fault.page)
        if path == "/api/xet-read-token":
            about = {"endpoint": self.hub.store, "accessToken": "xet", "exp": 4_000_000_000}
            headers = {
                "X-Xet-Cas-Url": self.hub.store, "X-Xet-Access-Token": "xet",
                "X-Xet-Token-Expiration": "4000000000", "Content-Type": "application/json",
            }  # fmt: skip
            return self.answer(200, headers, json.dumps({**about, "casUrl": self.hub.store}).encode())
        if path == "/api/models":
            return self._list(query)
        api = re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", path)
        resolve = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        if api:
            return self._info(api[1], api[2])
        if resolve:
            return self._resolve(*resolve.groups())
        return self.refuse(404)

    def _allowed(self, repo: Repo) -> bool:
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        return repo.needs_token is None or token == repo.needs_token

    def _list(self, query: dict[str, list[str]]) -> None:
        author, search = query.get("author", [""])[0], query.get("search", [""])[0]
        found = [
            {"id": name, "modelId": name, "sha": repo.commit, "private": repo.private, "tags": ["gguf"]}
            for name, repo in self.hub.repos.items()
            if name.startswith(f"{author}/") and search.lower() in name.lower()
        ]
        self.answer(200, {"Content-Type": "application/json"}, json.dumps(found).encode())

    def _info(self, name: str, revision: str | None) -> None:
        repo = self.hub.repos.get(name)
        if repo is None or (repo.private and not self._allowed(repo)):
            return self.refuse(401 if not self.headers.get("Authorization") else 404, "RepoNotFound")
        if revision not in (None, "main", repo.commit):
            return self.refuse(404, "RevisionNotFound")
        siblings = [
            {
                "rfilename": file,
                "size": content.size,
                "blobId": "0" * 40,
                "lfs": {"sha256": digest(content), "size": content.size, "pointerSize": 130},
            }
            for file, content in repo.files.items()
        ]
        about = {
            "id": name, "modelId": name, "sha": repo.commit, "private": repo.private, "tags": [],
            "gated": "manual" if repo.gated else False, "siblings": siblings, "downloads": 1, "likes": 1,
            "cardData": {"license": repo.licence},
        }  # fmt: skip
        self.answer(200, {"Content-Type": "application/json"}, json.dumps(about).encode())

    def _resolve(self, name: str, revision: str, file: str) -> None:
        repo = self.hub.repos.get(name)
        if repo is None or (repo.private and not self._allowed(repo)):
            return self.refuse(401 if not self.headers.get("Authorization") else 404, "RepoNotFound")
        if repo.gated and not self._allowed(repo):
            return self.refuse(403 if self.headers.get("Authorization") else 401, "GatedRepo")
        if revision not in ("main", repo.commit):
            return self.refuse(404, "RevisionNotFound")
        if file not in repo.files:
            return self.refuse(404, "EntryNotFound", {"X-Repo-Commit": repo.commit})
        content = repo.files[file]
        xet = {
            "X-Xet-Hash": digest(content),
            "X-Xet-Refresh-Route": f"{self.hub.endpoint}/api/xet-read-token",
        }
        return self.answer(
            302,
            {
                **(xet if repo.xet else {}),
                "Location": f"{self.hub.store}/{name}/{file}?signature=secret",
                "X-Repo-Commit": repo.commit,
                "X-Linked-Etag": f'"{digest(content)}"',
                "X-Linked-Size": str(content.size),
                "ETag": '"pointer"',
            },
        )


class _Store(_Handler):
    def do_GET(self) -> None:
        owner, name, file = (*unquote(urlsplit(self.path).path).lstrip("/").split("/", 2), "", "")[:3]
        if f"{owner}/{name}" not in self.hub.repos:  # what Xet asks
            self.hub.requests.append(("xet", self.command, self.path))
            return self._xet(*self.path.strip("/").split("/")[:3])
        self.hub.requests.append(("store", self.command, self.headers.get("Range", "all")))
        if "Authorization" in self.headers:
            self.hub.tokens_at_store.append(self.headers["Authorization"])
        content = self.hub.repos[f"{owner}/{name}"].files[file]
        fault = self.hub.fault("store", file) or Fault("store")
        if fault.status:
            return self.refuse(fault.status, headers=fault.headers)
        size = content.size + fault.extra
        start, end, status, headers = 0, size, 200, {"Accept-Ranges": "bytes"}
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if asked and not fault.ignore_range:
            start, end = int(asked[1]), min(int(asked[2]) + 1 if asked[2] else size, size)
            if start >= size:
                return self.refuse(416, headers={"Content-Range": f"bytes */{size}"})
            status, headers = 206, {"Content-Range": f"bytes {start}-{end - 1}/{size}"}
        self.send_response(status)
        for key, value in {"Content-Length": str(end - start), **headers}.items():
            self.send_header(key, value)
        self.end_headers()
        self._send(file, content, start, end, fault)

    def _xet(self, version: str = "", what: str = "", hash: str = "") -> None:
        """Answers as Xet's store does: where a file's chunks are (in one block), and the block."""
        known = {
            digest(content): content
            for repo in self.hub.repos.values()
            if repo.xet_works
            for content in repo.files.values()
        }
        if hash not in known or version != "v1":
            return self.refuse(404)
        content = known[hash]
        sizes = [min(CHUNK, content.size - at) for at in range(0, content.size, CHUNK)]
        if what == "reconstructions":
            every = {"start": 0, "end": len(sizes)}
            length = content.size + 8 * len(sizes)
            part = {"range": every, "url": f"{self.hub.store}/v1/block/{hash}"}
            part["url_range"] = {"start": 0, "end": length - 1}
            found = {
                "offset_into_first_range": 0,
                "terms": [{"hash": hash, "unpacked_length": content.size, "range": every}],
                "fetch_info": {hash: [part]},
            }
            return self.answer(200, {"Content-Type": "application/json"}, json.dumps(found).encode())
        block = b"".join(  # of each chunk: version, length, no compression, length
            b"\0" + size.to_bytes(3, "little") + b"\0" + size.to_bytes(3, "little")
            + content.read(i * CHUNK, i * CHUNK + size)
            for i, size in enumerate(sizes)
        )  # fmt: skip
        return self.answer(206, {"Content-Range": f"bytes 0-{len(block) - 1}/{len(block)}"}, block)

    def _send(self, file: str, content: Content, start: int, end: int, fault: Fault) -> None:
        at, stop = start, end if fault.cut_after is None else min(end, start + fault.cut_after)
        with contextlib.suppress(OSError):
            while at < stop:
                chunk = content.read(at, min(at + CHUNK, stop))
                if fault.flip and at == 0:
                    chunk = bytes([chunk[0] ^ 255]) + chunk[1:]
                time.sleep(fault.pause_s)
                self.hub.count(file, len(chunk))  # first: who has it all may look at once
                self.wfile.write(chunk)
                at += len(chunk)
                if fault.reset:
                    return self.reset()
            if at < end:
                self.wfile.flush()
                self.connection.shutdown(2)
                self.close_connection = True


@contextlib.contextmanager
def local_hub() -> Iterator[LocalHub]:
    """A hub that runs as long as the `with`."""
    with LocalHub() as hub:
        yield hub
