"""The cost of a network between layers: a target on two RPC servers, behind a proxy that delays bytes.

    python tests/benchmarks/network.py TARGET DRAFT [--delays 0 1 5 20] [-n 64] [--threads 1] [--json FILE]
    python tests/benchmarks/network.py --virtual [--delays 0 1 5 20]

Two servers (`edgespec rpc`) run on this machine, and take turns. The proxy adds half of a delay on the way
there and half on the way back, and limits nothing else. For each delay: what evaluations of 1, 2, 4, 8 and 16
tokens cost, and how fast answers come plain, with speculation, and with drafts of 4; greedy, on the built-in
prompts of `edgespec bench`, three of them, all ways in turn. The draft stays here. Needs a build with RPC.

--virtual: the same on a virtual clock, where no other program disturbs it: costs of a 0.6B F16 target as they
were measured on two cores, a draft at 7 % of it, two round trips an evaluation, and streams whose guesses are
right with a stated probability; loop, drafter and pace are the real ones.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from pathlib import Path
from queue import SimpleQueue
from typing import Any

SIZES = (1, 2, 4, 8, 16)
TRIPS = 2  # one for each machine: what the first made of its layers, and the logits of the second
PROMPTS = 3


@contextmanager
def lent(threads: int) -> Iterator[int]:
    """Runs an RPC server; gives its port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    command = [sys.executable, "-m", "edgespec", "rpc", "--port", str(port), "--threads", str(threads)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(300):
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.1)
        yield port
    finally:
        process.terminate()
        process.wait()


@contextmanager
def delayed(port: int, delay_ms: float) -> Iterator[int]:
    """Runs a proxy in front of a port, which adds so much to a round trip; gives its own port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_accept, args=(listener, port, delay_ms / 2000), daemon=True).start()
        yield listener.getsockname()[1]
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)


def _accept(listener: socket.socket, port: int, delay: float) -> None:
    with suppress(OSError):
        while True:
            here, _ = listener.accept()
            there = socket.create_connection(("127.0.0.1", port))
            for one in (here, there):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for source, sink in ((here, there), (there, here)):
                held: SimpleQueue[tuple[float, bytes]] = SimpleQueue()
                threading.Thread(target=_read, args=(source, held, delay), daemon=True).start()
                threading.Thread(target=_write, args=(sink, held), daemon=True).start()


def _read(source: socket.socket, held: SimpleQueue[tuple[float, bytes]], delay: float) -> None:
    data = b"."
    while data:
        try:
            data = source.recv(1 << 20)
        except OSError:
            data = b""
        held.put((time.perf_counter() + delay, data))


def _write(sink: socket.socket, held: SimpleQueue[tuple[float, bytes]]) -> None:
    with suppress(OSError):
        while True:
            due, data = held.get()
            if (left := due - time.perf_counter()) > 0:
                time.sleep(left)
            if not data:
                sink.shutdown(socket.SHUT_RDWR)
                return
            sink.sendall(data)


def measure(
    target: Path, draft: Path, rpc: tuple[str, ...], arguments: argparse.Namespace
) -> dict[str, object]:
    """Returns costs and speeds of a pair whose target lies on these machines; () is this one."""
    from edgespec.core.request import Request
    from edgespec.engine.pair import Pair
    from edgespec.measure.prompts import built_in
    from edgespec.pairs.settings import PairSettings
    from edgespec.sampling.sampler import Sampling

    settings = PairSettings(n_ctx=1024, threads=arguments.threads, remember=False, rpc=rpc)
    ways: dict[str, int | None] = {"plain": 0, "four": 4, "edgespec": None}
    spent = dict.fromkeys(ways, 0.0)
    tokens, rounds, drafted = dict(spent), dict(spent), dict(spent)
    with Pair(target, draft, settings) as pair:
        costs = pair.costs()
        prompts = list(built_in())[:PROMPTS]
        for turn, prompt in enumerate([prompts[0], *prompts]):  # the first is to learn from
            for way, length in ways.items():
                request = Request(
                    sampling=Sampling(temperature=0),
                    max_tokens=arguments.n,
                    drafter="none" if length == 0 else "model",
                    draft_length=length,
                )
                began = 0.0
                for round_ in pair.generate(
                    pair.chat_tokens([{"role": "user", "content": prompt.text}]), request
                ):
                    if began and turn:
                        tokens[way] += len(round_.tokens)
                        drafted[way] += round_.drafted
                        rounds[way] += 1
                    began = began or time.perf_counter()
                spent[way] += (time.perf_counter() - began) * bool(turn)
        return {
            "ms": {n: 1000 * costs.target.seconds(n) for n in SIZES},
            "tok_per_s": {way: tokens[way] / spent[way] for way in ways},
            "drafted_per_round": {way: drafted[way] / rounds[way] for way in ways},
            "draft_ms": 1000 * costs.draft.seconds(1),
        }


def virtual(delays: Sequence[float]) -> None:
    """Prints speeds over plain decoding, and lengths of drafts, by the probability that a guess is right."""
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    streams: Any = import_module("streams")  # of tests/, not of this folder

    print("delay     t(4)/t(1)  t(8)/t(1)   right 0.6: x plain (k)   0.75          0.9")
    for delay in delays:
        local = streams.MACHINES["memory-bound"]
        streams.MACHINES = {**streams.MACHINES, "there": {n: ms + TRIPS * delay for n, ms in local.items()}}
        points = streams.MACHINES["there"]
        line = f"+{delay:<4g} ms  {points[4] / points[1]:9.2f}  {points[8] / points[1]:9.2f}   "
        for quality in (0.6, 0.75, 0.9):
            spent = plain = rounds = drafted = 0.0
            for seed in range(6):
                bench = streams.Bench("there", seed=100 * seed)
                step = local[1] * streams.DRAFT_STEP / 1000  # the draft stays here
                reading = {1: step, 2: step * streams.DRAFT_MORE, 64: 64 * step * streams.DRAFT_READ}
                bench.true.draft.points, bench.costs.draft.points = dict(reading), dict(reading)
                bench.play(streams.stream(quality, seed))
                played = bench.play(streams.stream(quality, 50 + seed))
                spent += played.seconds
                plain += bench.plain()
                rounds += len(played.rounds) - 1
                drafted += sum(round_.drafted for round_ in played.rounds[1:])
            line += f"          {plain / spent:4.2f} ({drafted / rounds:.1f})"
        print(line)


def main() -> int:
    """Prints a line for each delay."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target", type=Path, nargs="?")
    parser.add_argument("draft", type=Path, nargs="?")
    parser.add_argument("--virtual", action="store_true")
    parser.add_argument("--delays", type=float, nargs="+", default=(0.0, 1.0, 5.0, 20.0))
    parser.add_argument("-n", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.virtual:
        virtual(arguments.delays)
        return 0
    if not arguments.draft:
        parser.error("name TARGET and DRAFT, or --virtual")
    found: dict[str, dict[str, object]] = {}
    with tempfile.TemporaryDirectory() as home, ExitStack() as opened:
        os.environ["EDGESPEC_CACHE_DIR"] = home  # nothing is known of any of these
        ports = [opened.enter_context(lent(arguments.threads)) for _ in range(2)]
        places: dict[str, tuple[str, ...]] = {"this machine": ()}
        for delay in arguments.delays:
            proxies = [opened.enter_context(delayed(port, delay)) for port in ports]
            places[f"+{delay:g} ms"] = tuple(f"127.0.0.1:{port}" for port in proxies)
        print(
            "delay         ms of 1 token   t(2), t(4), t(8), t(16) over t(1)   plain   drafts of 4   ours (k)"
        )
        for name, rpc in places.items():
            one = found[name] = measure(arguments.target, arguments.draft, rpc, arguments)
            ms, speed, drafted = one["ms"], one["tok_per_s"], one["drafted_per_round"]
            assert isinstance(ms, dict) and isinstance(speed, dict) and isinstance(drafted, dict)
            ratios = "  ".join(f"{ms[n] / ms[1]:5.2f}" for n in SIZES[1:])
            print(
                f"{name:14}{ms[1]:13.1f}   {ratios:>37}   {speed['plain']:5.1f}   "
                f"{speed['four']:6.1f} {speed['four'] / speed['plain']:4.2f} x   "
                f"{speed['edgespec']:6.1f} {speed['edgespec'] / speed['plain']:4.2f} x "
                f"({drafted['edgespec']:.1f})",
                flush=True,
            )
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
