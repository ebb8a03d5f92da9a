"""Several streams at once: `edgespec serve` against llama-server, same pair, slots and threads, in turn.

    python tests/benchmarks/streams_together.py FOLDER --peer PATH/llama-server [--quality fair]
        [--streams 1 4 8] [--temperatures 0 0.8] [--repeats 3] [-n 48] [--before CHECKOUT] [--chat]
        [--json FILE]

All servers answer the same prompts over HTTP, one server at a time in random order; the others are
stopped meanwhile, for an idle one of ours times evaluation sizes. A round of n streams: n requests are sent
at once, end tokens are banned, each answer has the same length. tok/s is all tokens over the time from the
first request to the last token. TTFT is from the request to the first text that arrives; gaps are the times
between two pieces of an answer's text.

Prompts are held-out ones of the embedded pair, other ones in each round, so nobody has them in a cache;
EdgeSpec knows only the pair's costs, measured when it is loaded. --before: another checkout of
EdgeSpec answers, too. --chat: a conversation of 1,500 tokens and its next turn. Ratios are ours over theirs:
geometric means over rounds for tok/s, of medians and 95th percentiles for TTFT.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np
import psutil
from pairs import draft_file, target_file
from peer_command import PeerSettings, command

from edgespec_models import tiny

OURS, BEFORE = "edgespec", "before"
THEIRS, PLAIN = "llama-server", "without draft"  # both are llama-server's
READY_S = 120.0
NO_END = {"0": -100, "1": -100, "2": -100}  # end tokens of the embedded pair
CHAT_CHARACTERS = 5200  # about 1,500 tokens
SECOND_TURN = "\n\nNow the same, as a function with a docstring:\n\n"


@dataclass(frozen=True, slots=True)
class Stream:
    """What one request brought. Seconds from when it was sent."""

    ttft: float
    wall: float
    tokens: int
    cached: int
    drafted: int
    accepted: int
    text: str
    gaps: tuple[float, ...] = ()  # seconds between pieces of text


@dataclass(frozen=True, slots=True)
class Round:
    """So many streams at once on one server."""

    server: str
    temperature: float
    streams: int
    wall: float
    answers: tuple[Stream, ...]

    @property
    def speed(self) -> float:
        return sum(answer.tokens for answer in self.answers) / self.wall


def ask(
    port: int,
    prompt: str,
    *,
    n_tokens: int,
    temperature: float,
    seed: int,
    fields: Mapping[str, Any] = {},
    on_piece: Callable[[], object] = lambda: None,
) -> Stream:
    """Sends a request that streams, and reads it to its end. fields: others of the request."""
    body = {
        "prompt": prompt, "max_tokens": n_tokens, "temperature": temperature, "top_k": 40, "top_p": 0.95,
        "min_p": 0.05, "stream": True, "logit_bias": NO_END, "model": "any", "cache_prompt": True,
        "seed": seed, **fields,
    }  # fmt: skip
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    began = time.perf_counter()
    connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
    answer = connection.getresponse()
    assert answer.status == 200, answer.read()
    pieces, at = [], []
    timings: dict[str, Any] = {}
    for line in answer:
        if not line.startswith(b"data: {"):
            continue
        chunk = json.loads(line[6:])
        timings = chunk.get("timings") or timings
        for choice in chunk.get("choices", ()):
            if choice["text"]:
                at.append(time.perf_counter() - began)
                pieces.append(choice["text"])
                on_piece()
    wall = time.perf_counter() - began
    connection.close()
    return Stream(
        at[0], wall, timings["predicted_n"], timings.get("cache_n", 0), timings.get("draft_n", 0),
        timings.get("draft_n_accepted", 0), "".join(pieces), tuple(np.diff(at)),
    )  # fmt: skip


def round_of(server: str, port: int, prompts: list[str], *, n_tokens: int, temperature: float) -> Round:
    """Sends all prompts at once."""
    with ThreadPoolExecutor(len(prompts)) as pool:
        began = time.perf_counter()
        asked = [
            pool.submit(ask, port, prompt, n_tokens=n_tokens, temperature=temperature, seed=i)
            for i, prompt in enumerate(prompts)
        ]
        answers = tuple(one.result() for one in asked)
        wall = time.perf_counter() - began
    return Round(server, temperature, len(prompts), wall, answers)


def prompts() -> Iterator[str]:
    """Yields held-out prompts in an order that mixes kinds; all once, then again without their beginnings."""
    lines = Path(tiny.held_out_prompts_path()).read_text(encoding="utf-8").splitlines()
    for start in (0, 13, 29):
        for i in np.random.default_rng(1).permutation(len(lines)):
            yield json.loads(lines[i])["prompt"][-600:][start:]


# ---- the servers ------------------------------------------------------------------------------------------


_servers: dict[int, psutil.Process] = {}  # by their ports


@contextmanager
def only(port: int) -> Iterator[int]:
    """Stops all other servers meanwhile."""
    trees = [[one, *one.children(recursive=True)] for other, one in _servers.items() if other != port]
    others = [process for tree in trees for process in tree]
    for process in others:
        process.suspend()
    try:
        yield port
    finally:
        for process in reversed(others):  # a worker before the one that asks whether it is there
            process.resume()


@contextmanager
def running(
    words: list[str], ready: Callable[[str], int | None], checkout: Path | None = None
) -> Iterator[int]:
    """Starts a server; yields its port, which `ready` finds out from what it said.

    checkout: of EdgeSpec, where it is not this one.
    """
    env = dict(os.environ)
    if checkout:
        env["PYTHONPATH"] = os.pathsep.join(str(checkout / source) for source in ("", "tui", "models"))
    with tempfile.NamedTemporaryFile("w+", prefix="streams-") as log:
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=checkout, env=env
        )
        try:
            end = time.monotonic() + READY_S
            while (port := ready(Path(log.name).read_text(errors="replace"))) is None:
                assert process.poll() is None and time.monotonic() < end, Path(log.name).read_text()[-2000:]
                time.sleep(0.1)
            _servers[port] = psutil.Process(process.pid)
            yield port
        finally:
            _servers.pop(port or 0, None)
            process.send_signal(signal.SIGTERM)
            process.wait(30)


def ours(target: Path, draft: Path | None, *, slots: int, n_ctx: int, threads: int) -> list[str]:
    return [
        sys.executable, "-m", "edgespec", "serve", "--port", "0", "--target", str(target),
        *(("--draft", str(draft)) if draft else ("--no-draft",)),
        "--slots", str(slots), "--ctx", str(n_ctx), "--threads", str(threads),
    ]  # fmt: skip


def our_port(text: str) -> int | None:
    found = re.search(r" answers at http://\S+?:(\d+)/v1", text)
    return int(found[1]) if found else None


def theirs(
    program: Path, target: Path, draft: Path | None, *, slots: int, n_ctx: int, threads: int
) -> tuple[list[str], int]:
    """Returns llama-server's command line with its default draft length, and its port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    words = command(PeerSettings(program, target, draft, threads=threads, n_ctx=n_ctx * slots), port)
    words[words.index("--parallel") + 1] = str(slots)
    if "--cache-ram" in words:  # both may keep what they keep by default
        at = words.index("--cache-ram")
        del words[at : at + 2]
    return words, port


def healthy(port: int) -> int | None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/health")
        return port if connection.getresponse().status == 200 else None
    except OSError:
        return None
    finally:
        connection.close()


# ---- measuring --------------------------------------------------------------------------------------------


def measured(ports: dict[str, int], arguments: argparse.Namespace) -> Iterator[Round]:
    """Yields rounds; each server has the same prompts, one after the other."""
    rng, texts = np.random.default_rng(7), prompts()
    for name, port in ports.items():  # warm
        round_of(name, port, ["def warm():"] * 2, n_tokens=8, temperature=0)
    for repeat in range(arguments.repeats):
        for temperature in arguments.temperatures:
            for n in arguments.streams:
                asked = [next(texts) for _ in range(n)]
                for name in rng.permutation(list(ports)):
                    with only(ports[name]) as port:
                        one = round_of(
                            str(name), port, asked, n_tokens=arguments.tokens, temperature=temperature
                        )
                    told = f"{repeat} T={temperature:g} {n} x {name:12} {one.speed:6.1f} tok/s"
                    print(told, f"TTFT {np.median([a.ttft for a in one.answers]):5.2f} s", file=sys.stderr)
                    yield one


def second_turns(ports: dict[str, int], repeats: int, n_tokens: int) -> dict[str, list[list[Stream]]]:
    """Returns for each server its chats: a first turn of about 1,500 tokens, and the next."""
    lines = Path(tiny.held_out_prompts_path()).read_text(encoding="utf-8").splitlines()
    everything = "\n\n".join(json.loads(line)["prompt"] for line in lines)
    found: dict[str, list[list[Stream]]] = {name: [] for name in ports}
    rng = np.random.default_rng(8)
    for repeat in range(repeats):
        start = repeat * CHAT_CHARACTERS
        text = everything[start : start + CHAT_CHARACTERS]
        for name in rng.permutation(list(ports)):
            with only(ports[name]) as port:
                first = ask(port, text, n_tokens=n_tokens, temperature=0, seed=1)
                turn = text + first.text + SECOND_TURN
                second = ask(port, turn, n_tokens=n_tokens, temperature=0, seed=1)
            found[str(name)].append([first, second])
            told = f"TTFT {first.ttft:.2f} s, then {second.ttft:.3f} s, {second.cached} tokens cached"
            print(f"chat {repeat} {name:12} {told}", file=sys.stderr)
    return found


def table(rounds: list[Round]) -> str:
    """Returns the figures: for each temperature and number of streams the servers, and ratios to ours."""
    rows = [
        "| T | streams | | tok/s | TTFT p50 | TTFT p95 | gaps p99 | accepted |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for temperature, n in sorted({(r.temperature, r.streams) for r in rounds}):
        speeds, waits = {}, {}
        names = [name for name in (OURS, BEFORE, THEIRS, PLAIN) if name in {r.server for r in rounds}]
        for name in names:
            own = [r for r in rounds if (r.server, r.temperature, r.streams) == (name, temperature, n)]
            answers = [answer for one in own for answer in one.answers]
            speeds[name] = np.log([one.speed for one in own])
            waits[name] = np.percentile([answer.ttft for answer in answers], [50, 95])
            pause = np.percentile([gap for answer in answers for gap in answer.gaps], 99)
            drafted = sum(answer.drafted for answer in answers)
            accepted = sum(answer.accepted for answer in answers) / max(drafted, 1)
            figures = [f"{temperature:g}", f"{n}", name, f"{np.exp(speeds[name].mean()):.1f}"]
            figures += [f"{seconds:.2f} s" for seconds in (*waits[name], pause)]
            rows.append(f"| {' | '.join(figures)} | {accepted:.2f} of {drafted} |")
        for name in names[1:]:
            ratio = np.exp((speeds[OURS] - speeds[name]).mean())
            p50, p95 = waits[OURS] / waits[name]
            rows.append(
                f"| {temperature:g} | {n} | **over {name}** | **{ratio:.2f}** | {p50:.2f} | {p95:.2f} | | |"
            )
    return "\n".join(rows)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="where the pairs are, or are made")
    parser.add_argument("--peer", type=Path, required=True, help="the llama-server to compare with")
    parser.add_argument("--size", default="0.6B-F16")
    parser.add_argument("--quality", default="fair", choices=("good", "fair", "poor", "worst"))
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 0.8])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("-n", "--tokens", type=int, default=48, help="of each answer (48)")
    parser.add_argument("--before", type=Path, help="another checkout of EdgeSpec, to compare with")
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--ctx", type=int, default=2048)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--chat", action="store_true", help="measure the second turn of a long chat as well")
    parser.add_argument("--json", type=Path, help="a file for every round")
    return parser.parse_args()


def main() -> int:
    arguments = parsed()
    os.environ.pop("EDGESPEC_THREADS", None)
    target = target_file(arguments.folder, arguments.size)
    draft = draft_file(arguments.folder, arguments.size, arguments.quality)
    how = {"slots": arguments.slots, "n_ctx": arguments.ctx, "threads": arguments.threads}
    with ExitStack() as servers:
        os.environ["EDGESPEC_CACHE_DIR"] = servers.enter_context(tempfile.TemporaryDirectory())
        ports = {OURS: servers.enter_context(running(ours(target, draft, **how), our_port))}
        if arguments.before:
            os.environ["EDGESPEC_CACHE_DIR"] = servers.enter_context(tempfile.TemporaryDirectory())
            words = ours(target, draft, **how)
            before = arguments.before.resolve()
            ports[BEFORE] = servers.enter_context(running(words, our_port, before))
        for name, guesser in ((THEIRS, draft), (PLAIN, None)):
            words, port = theirs(arguments.peer, target, guesser, **how)
            ports[name] = servers.enter_context(running(words, partial(lambda port, _: healthy(port), port)))
        rounds = list(measured(ports, arguments)) if arguments.streams[0] else []
        chats = second_turns(ports, arguments.repeats, 16) if arguments.chat else {}
    if rounds:
        print(table(rounds))
    for name, own in chats.items():
        first, second = (np.median([chat[i].ttft for chat in own]) for i in (0, 1))
        print(f"{name}: first turn TTFT {first:.2f} s, second {second:.3f} s (medians of {len(own)})")
    if arguments.json:
        found = {
            "rounds": [asdict(r) for r in rounds],
            "chats": {k: [[asdict(s) for s in c] for c in v] for k, v in chats.items()},
        }
        arguments.json.write_text(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
