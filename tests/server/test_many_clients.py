"""Many clients on few slots: some vanish, some read slowly, and each of the others gets its own answer."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import random
from typing import Any, Literal

import psutil
import pytest
from real.embedded import LOGITS_DIFFER_AT_MOST, held_out_prompts
from served import Served, post, served, until

Manner = Literal["stays", "slow", "leaves", "silent"]
Asks = Callable[[str], Mapping[str, Any]]


def turns(content: str) -> Mapping[str, Any]:
    return {"messages": [{"role": "user", "content": content}]}


def prompt(content: str) -> Mapping[str, Any]:
    return {"prompt": content}


def texts(parts: Sequence[Any], name: str = "text") -> str:
    return "".join(part.get(name) or "" for part in parts)


@dataclass(frozen=True, slots=True)
class Way:
    """A route, and where the text is in what it returns."""

    path: str
    asks: Asks
    whole: Callable[[Any], str]
    piece: Callable[[Any], str]  # of a stream
    length: str = "max_tokens"


WAYS = (
    Way("/v1/chat/completions", turns, lambda a: a["choices"][0]["message"]["content"],
        lambda e: texts([choice["delta"] for choice in e["choices"]], "content")),
    Way("/api/chat", lambda c: {"model": "embedded", **turns(c)}, lambda a: a["message"]["content"],
        lambda e: e["message"]["content"], "num_predict"),
    Way("/v1/messages", turns, lambda a: texts(a["content"]),
        lambda e: e["delta"]["text"] if e["type"] == "content_block_delta" else ""),
    Way("/completion", prompt, lambda a: a["content"], lambda e: e["content"], "n_predict"),
    Way("/v1/responses", lambda c: {"input": c},
        lambda a: "".join(texts(one["content"]) for one in a["output"]),
        lambda e: e["delta"] if e["type"] == "response.output_text.delta" else "", "max_output_tokens"),
    Way("/v1/completions", prompt, lambda a: a["choices"][0]["text"], lambda e: texts(e["choices"])),
    Way("/api/generate", lambda c: {"model": "embedded", **prompt(c)}, lambda a: a["response"],
        lambda e: e["response"], "num_predict"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Client:
    """One request, and how it is read."""

    way: Way
    content: str
    stream: bool
    manner: Manner
    n_tokens: int

    @property
    def stays(self) -> bool:
        return self.manner in ("stays", "slow")

    async def ask(self, port: int) -> str | None:
        """Returns the answer's text; None if it did not stay for it."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        try:
            writer.write(self._request())
            if self.manner == "silent":  # leaves before the first byte, or about then
                await asyncio.sleep(random() / 10)
                return None
            if self.manner == "leaves":  # in mid-answer
                await reader.readexactly(500)
                return None
            got = b""
            while part := await reader.read(512 if self.manner == "slow" else 65536):
                got += part
                await asyncio.sleep(0.01 if self.manner == "slow" else 0)
            head, _, body = got.partition(b"\r\n\r\n")
            assert b" 200 " in head.splitlines()[0], got
            return self._text(body)
        finally:
            (writer.transport.abort if self.n_tokens % 2 else writer.close)()

    def _request(self) -> bytes:
        settings: dict[str, Any] = {"temperature": 0, self.way.length: self.n_tokens}
        if self.way.path.startswith("/api/"):
            settings = {"options": settings}
        asked = {**self.way.asks(self.content), **settings, "stream": self.stream}
        return post(self.way.path, asked).replace(b"HTTP/1.1", b"HTTP/1.0")  # it ends with its connection

    def _text(self, body: bytes) -> str:
        if not self.stream:
            return self.way.whole(json.loads(body))
        lines = (line.removeprefix(b"data: ") for line in body.splitlines())
        return "".join(self.way.piece(json.loads(line)) for line in lines if line.startswith(b"{"))

    def sure_text(self, server: Served) -> str:
        """Returns the beginning of what it is told alone, up to where two tokens are nearly as likely."""
        text = self.content
        if self.way.asks is not prompt:
            text = server.ask("/apply-template", turns(text)).json["prompt"]
        asked = {"prompt": text, "n_predict": self.n_tokens, "temperature": 0, "n_probs": 2}
        sure = ""
        for token in server.ask("/completion", asked).json["completion_probabilities"]:
            best, second = (other["logprob"] for other in token["top_logprobs"])
            if best - second < 2 * LOGITS_DIFFER_AT_MOST:
                break
            sure += token["token"]
        return sure


def clients(n: int, n_tokens: int) -> list[Client]:
    """Returns clients of all ways; of three, one vanishes, and one reads slowly."""
    made = []
    for i, asked in enumerate(held_out_prompts(n)):
        vanishes: Manner = "leaves" if i % 2 else "silent"
        manner: Manner = (vanishes, "slow", "stays")[i % 3]  # type: ignore[assignment]
        content = asked["messages"][0]["content"] if "messages" in asked else asked["prompt"]
        stream = manner == "leaves" or i % 5 > 0
        made.append(Client(WAYS[i % len(WAYS)], content[:80], stream, manner, n_tokens + i % 2))
    return made


def together(server: Served, asked: Sequence[Client]) -> list[str]:
    """Returns what those are told that stay; behind it, nobody has a slot."""

    async def ask() -> list[str | None]:
        return await asyncio.gather(*(client.ask(server.port) for client in asked))

    answer = asyncio.run(ask())
    assert [text is not None for text in answer] == [client.stays for client in asked]
    until(lambda: not server.metric("edgespec_requests_running"))
    assert not any(slot["is_processing"] for slot in server.ask("/slots").json)
    began = time.monotonic()
    assert server.chat(max_tokens=2).status == 200 and time.monotonic() - began < 10
    return [text for text in answer if text is not None]


def test_clients_that_vanish_leave_the_others_their_answers(dialects: Served) -> None:
    asked = clients(6, 8)
    for answer, client in zip(together(dialects, asked), (c for c in asked if c.stays), strict=True):
        assert answer.startswith(client.sure_text(dialects))


@pytest.mark.slow
@pytest.mark.parametrize("flags", [("--slots", "4"), ("--reproducible",)], ids=lambda flags: flags[0])
def test_of_fifty_clients_nothing_is_left(tmp_path: Path, flags: Sequence[str]) -> None:
    """A third of them vanish. Each of the others is told what it is told alone; bit for bit, if that is
    promised, and else up to where two tokens are nearly as likely."""
    with served(tmp_path, *flags, "--cache-ram", "8", "--ctx", "512") as server:
        asked = clients(50, 60)
        staying = [client for client in asked if client.stays]
        sure = [client.sure_text(server) for client in staying]
        alone = [asyncio.run(client.ask(server.port)) for client in staying]
        processes = [psutil.Process(server.process.pid), server.worker]
        held: list[list[int]] = []
        for turn in range(8):
            told = together(server, asked)
            if "--reproducible" in flags:
                assert told == alone
            assert all(map(str.startswith, told, sure))
            assert sum(map(str.__eq__, told, alone)) > len(told) / 2
            if turn in (3, 7):
                held.append([process.memory_info().rss for process in processes])
                held[-1] += [process.num_threads() for process in processes]
                held[-1] += [process.num_fds() for process in processes if os.name == "posix"]
        assert all(b - a < 4 * 2**20 for a, b in zip(held[0][:2], held[1][:2], strict=True)), held
        assert all(b <= a + 2 for a, b in zip(held[0][2:], held[1][2:], strict=True)), held
