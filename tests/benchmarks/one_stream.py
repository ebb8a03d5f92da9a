"""One stream of plain decoding over HTTP: `edgespec serve` against llama-server, the same file, in turn.

    python tests/benchmarks/one_stream.py FILE.gguf --peer PATH/llama-server [--before CHECKOUT] [-n 400]
        [--temperature 0.8] [--turns 6]

For targets that take a few milliseconds a token, where the work around an evaluation matters most. In each
turn each server is started anew, answers once to get warm, then twice; nobody guesses. tok/s is by the
client's clock, from the first text to the last. CPU is what EdgeSpec's processes use a token.
Ratios are to llama-server in the same turn: geometric mean, least and largest.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np
import psutil
from streams_together import BEFORE, OURS, PLAIN, ask, healthy, our_port, ours, running, theirs

PROMPT = "The lighthouse keeper had lived by the sea for as long as anyone in the village could remember."
WARM, ASKED = 1, 2  # answers of a server in a turn


def speed(port: int, arguments: argparse.Namespace, seed: int) -> float:
    """Returns tok/s of one answer behind its first piece of text."""
    generated = ask(port, PROMPT, n_tokens=arguments.tokens, temperature=arguments.temperature, seed=seed)
    return (generated.tokens - 1) / sum(generated.gaps)


def cpu_seconds() -> dict[str, float]:
    """Returns the processor time so far of each child of ours, by what it is."""
    children = psutil.Process().children(recursive=True)
    kinds = {"worker": "edgespec.engine.worker", "web": "serve"}
    words = [(child, " ".join(child.cmdline())) for child in children]
    return {
        kind: sum(sum(child.cpu_times()[:2]) for child, said in words if f" {name}" in said)
        for kind, name in kinds.items()
    }


def turn(name: str, arguments: argparse.Namespace) -> tuple[list[float], dict[str, float]]:
    """Starts one server, and returns its speeds, and the processor milliseconds a token of its processes."""
    how = {"slots": 1, "n_ctx": arguments.ctx, "threads": arguments.threads}
    if name == PLAIN:
        words, port = theirs(arguments.peer, arguments.file, None, **how)
        server = running(words, partial(lambda port, _: healthy(port), port))
    else:
        checkout = arguments.before.resolve() if name == BEFORE else None
        server = running(ours(arguments.file, None, **how), our_port, checkout)
    with server as port:
        for seed in range(WARM):
            speed(port, arguments, seed)
        used = cpu_seconds()
        speeds = [speed(port, arguments, WARM + i) for i in range(ASKED)]
        n = ASKED * arguments.tokens
        return speeds, {kind: 1000 * (now - used[kind]) / n for kind, now in cpu_seconds().items()}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path, help="the target")
    parser.add_argument("--peer", type=Path, required=True, help="the llama-server to compare with")
    parser.add_argument("--before", type=Path, help="another checkout of EdgeSpec, to compare with")
    parser.add_argument("-n", "--tokens", type=int, default=400, help="of each answer (400)")
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--ctx", type=int, default=2048)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    os.environ.pop("EDGESPEC_THREADS", None)
    names = [PLAIN, *((BEFORE,) if arguments.before else ()), OURS]
    speeds: dict[str, list[float]] = {name: [] for name in names}
    used: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as cache:
        os.environ["EDGESPEC_CACHE_DIR"] = cache
        for _ in range(arguments.turns):
            for name in names:
                found, cpu = turn(name, arguments)
                speeds[name].append(float(np.mean(found)))
                used[name].append(cpu)
    for name in names:
        ratios = np.array(speeds[name]) / np.array(speeds[PLAIN])
        mean = float(np.exp(np.log(ratios).mean()))
        cpu = {kind: float(np.median([one[kind] for one in used[name]])) for kind in used[name][0]}
        interval = f"{mean:.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
        line = f"{name:14} {np.median(speeds[name]):6.1f} tok/s, {interval}"
        told = ", ".join(f"{kind} {ms:.2f} ms" for kind, ms in cpu.items())
        print(line if name == PLAIN else f"{line}, CPU a token: {told}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
