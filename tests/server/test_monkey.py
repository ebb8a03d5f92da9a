"""A monkey at the endpoint: odd, huge and half bodies on every route, beside a stream with measured gaps.

    EDGESPEC_MONKEY_SECONDS=600 pytest -m slow -s tests/server/test_monkey.py

runs for ten minutes; the default is a minute. The sample among the default tests asks whether everybody is
answered and nothing is left behind; only the slow one asks how long others were held up. It counts the rounds
without prompts that fit the context, which the engine reads meanwhile, and without other programs at work,
which take cores from the engine with or without bodies.
"""

from __future__ import annotations

import json
import math
import os
import random
import re
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from commands import posix
from served import Served, post, served, until

from edgespec.system.other_programs import BUSY_CORES, Others

SECONDS = float(os.environ.get("EDGESPEC_MONKEY_SECONDS", "60"))
HANDS = 3
GAP_S = 0.2  # the longest gap of a stream
ROUND_S = 10.0
KINDS = (
    b"0,",
    b"-1,",
    b"{},",
    b"[],",
    b'"",',
    b"70,",
    b"1e999,",
    b'{"role":"user","content":"x"},',
    b"null,",
)
LISTED, CHAT = b'{"messages":[%s]}', b'{"messages":[{"role":"user","content":"%s"}],"max_tokens":2}'
ROUTES = {
    "/v1/chat/completions": (LISTED, CHAT),
    "/v1/completions": (b'{"prompt":[%s]}', b'{"prompt":"%s","max_tokens":2}'),
    "/completion": (b'{"prompt":[%s]}', b'{"prompt":"%s","n_predict":2}'),
    "/infill": (b'{"input_extra":[%s]}', b'{"input_prefix":"%s","input_suffix":"b","n_predict":2}'),
    "/v1/fim/completions": (b'{"prompt":[%s]}', b'{"prompt":"%s","max_tokens":2}'),
    "/v1/messages": (LISTED, CHAT),
    "/v1/messages/count_tokens": (LISTED, b'{"messages":[{"role":"user","content":"%s"}]}'),
    "/v1/responses": (b'{"input":[%s]}', b'{"input":"%s","max_output_tokens":2}'),
    "/v1/responses/input_tokens": (b'{"input":"a","tools":[%s]}', b'{"input":"%s"}'),
    "/edgespec/count": (LISTED, b'{"messages":[{"role":"user","content":"%s"}]}'),
    "/apply-template": (LISTED, b'{"messages":[{"role":"user","content":"%s"}]}'),
    "/tokenize": (b'{"content":[%s]}', b'{"content":"%s"}'),
    "/detokenize": (b'{"tokens":[%s]}', b'{"tokens":"%s"}'),
    "/edgespec/models": (b'{"action":[%s]}', b'{"action":"load","model":"%s"}'),
}  # fmt: skip
FITS = 2**16  # bytes; no prompt that is longer fits the context
TEXTS = (b"hello you, ", b"<|im_start|>", b"<|im_end|>\\n", b"a", b"n\xc3\xa9", b"\\u00e9", b"<|", b" ")


def drawn(r: random.Random, most: int, *, fits: bool) -> tuple[str, bytes]:
    """Returns a route and a body for it: a list of something, or a long text.

    fits: it may be a prompt that fits the context, so that the engine reads it.
    """
    path, (listed, text) = r.choice(list(ROUTES.items()))
    size = int(most ** r.uniform(0.3 if fits else math.log(FITS, most), 1))
    if r.random() < 0.5 or (path == "/infill" and not fits):  # its texts are cut until they fit
        unit = r.choice(KINDS)
        return path, listed % (unit * (size // len(unit)) + unit[:-1])
    unit = r.choice(TEXTS)
    return path, text % (unit * (size // len(unit)))


def ask(server: Served, path: str, body: bytes, r: random.Random) -> int:
    """Sends a body, or half of it, and waits for its end, or leaves; returns the status, 0 for none."""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    how = r.choice(("wait", "wait", "leave", "half"))
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        try:
            connection.sendall(head.encode() + (body[: len(body) // 2] if how == "half" else body))
            if how != "wait":
                time.sleep(r.uniform(0, 0.5))
                return 0
            got = b"".join(iter(lambda: connection.recv(1 << 16), b""))
        except ConnectionError:  # refused before all of it was sent
            return 0
    return int(got[9:12])


@dataclass
class Stream:
    """A stream that is read all the time: the longest gap within its text, and what went wrong."""

    server: Served
    longest: float = 0.0
    n_events: int = 0
    wrong: list[str] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    def read(self) -> None:
        asked = {"prompt": "a", "stream": True, "max_tokens": 1500, "ignore_eos": True, "temperature": 0}
        while not self.over.is_set():
            with self.server.raw(post("/v1/completions", asked)) as connection:
                last, got = 0.0, b""
                while not got.endswith(b"\r\n0\r\n\r\n") and not self.over.is_set():
                    if not (data := connection.recv(1 << 16)):
                        self.wrong.append("cut off")
                        break
                    now, got = time.monotonic(), got[-10:] + data
                    self.n_events += data.count(b"data: ")
                    self.longest = max(self.longest, now - last if last else 0.0)
                    last = now if last or b"data: " in data else 0.0  # before its text it waits for its turn
                    if b'"error"' in data:
                        self.wrong.append(data.decode("utf-8", "replace")[:300])


def play(
    server: Served, *, seconds: float, most: int, seed: int, hands: int = HANDS, fits: bool = True
) -> tuple[Stream, list[int]]:
    """Has the monkey play; returns the stream beside it, and the statuses of all answers."""
    stream, end = Stream(server), time.monotonic() + seconds

    def hand(number: int) -> list[int]:
        r, found = random.Random(f"{seed} {number}"), []
        while time.monotonic() < end:
            path, body = drawn(r, most, fits=fits)
            found.append(ask(server, path, body, r))
            assert found[-1] < 500 or found[-1] in (501, 503), (path, body[:100], found[-1])
        return found

    reading = threading.Thread(target=stream.read)
    reading.start()
    try:
        with ThreadPoolExecutor(HANDS) as pool:
            statuses = [status for some in pool.map(hand, range(hands)) for status in some]
        time.sleep(max(0.0, end - time.monotonic()))
    finally:
        stream.over.set()
        reading.join(60)
    return stream, statuses


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path, "--slots", "4") as server:
        yield server


def check(server: Served, stream: Stream, statuses: list[int]) -> None:
    assert not stream.wrong and stream.n_events > 20, stream
    assert set(statuses) & {200, 400} and not set(statuses) & {500}
    until(
        lambda: (
            server.metric("edgespec_requests_running") == 0
            and not server.children("edgespec.server.body_child")
        ),
        30,
    )
    assert server.chat(max_tokens=2).status == 200
    assert not re.search("fault of EdgeSpec|Traceback|Unknown child", server.logged()), server.logged()
    assert json.loads(server.ask("/health").body) == {"status": "ok"}


@pytest.mark.slow
@posix
def test_a_monkey_harms_nobody(server: Served) -> None:
    stream, statuses = play(server, seconds=1.5, most=2**21, seed=1)
    check(server, stream, statuses)


@posix
@pytest.mark.slow
def test_a_monkey_holds_nobody_up(tmp_path: Path) -> None:
    """A body of 4 MB made everybody wait for 20 seconds."""
    others, gaps = Others(), list[float]()
    with served(tmp_path, "--slots", "4", EDGESPEC_THREADS="") as server:
        worker = server.worker.pid
        for i in range(round(max(2, SECONDS / ROUND_S))):
            others.cores()
            fits = i % 2 > 0
            stream, statuses = play(server, seconds=ROUND_S, most=31 * 2**20, seed=100 + i, fits=fits)
            beside = others.cores()
            check(server, stream, statuses)
            what = f"{len(statuses)} bodies, {stream.n_events} events, longest gap {stream.longest:.3f} s"
            print(f"{what}, prompts {fits}, others' cores {beside:.2f}", flush=True)
            if beside < BUSY_CORES and not fits:
                gaps.append(stream.longest)
        assert server.worker.pid == worker, "the engine was not restarted"
    if not gaps:
        pytest.skip("other programs were at work all the time: nothing could be measured")
    assert max(gaps) < GAP_S, gaps
