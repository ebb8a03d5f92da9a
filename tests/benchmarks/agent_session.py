"""An agent's session, prompt by prompt, with and without checkpoints: tokens evaluated, seconds to the first.

    python tests/benchmarks/agent_session.py [--preamble 12000] [--calls 20] [--ram 2048] [--peer PROGRAM]
    python tests/benchmarks/agent_session.py --model FILE.gguf ...

Models with random weights, one of each kind of memory, tiny or at the cost of 0.6 billion parameters
(`--wide`), or a file of yours. The session has a long system
prompt, calls and their results, answers that come back without their thinking, an edited last message, a
sub-agent with the same preamble, a summary in place of the history, another session in between. Without is
`--cache-ram 0`. The peer, llama-server, gets the same tokens, with 32 checkpoints in each of as many slots;
its seconds are those that it says the prompt took.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from peer import _free_port
from peer_command import environment

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tiny_gguf import CONTROL, write_hybrid, write_llama, write_recurrent, write_sliding

from edgespec.core.request import Request
from edgespec.core.values import Emitted, Failed, Started
from edgespec.engine.borders import borders
from edgespec.engine.engine import Engine
from edgespec.engine.pair import Pair
from edgespec.pairs.settings import PairSettings
from edgespec.sampling.sampler import Sampling

WIDE: dict[str, dict[str, object]] = {
    "attention": {"d": 1024, "layers": 28, "n_head": 16, "n_kv": 8, "ffn": 3072},
    "window": {"d": 1024, "layers": 28, "n_head": 16, "n_kv": 8, "ffn": 3072, "window": 512},
    "hybrid": {"d": 1024, "attention": (False, False, True) * 9, "n_head": 16, "n_kv": 8, "ffn": 3072},
    "recurrent": {"d": 1024, "layers": 48},
}
Tokens = NDArray[np.int32]
Turn = tuple[int, int, float]
KINDS: dict[str, Callable[..., Path]] = {
    "attention": write_llama,
    "window": write_sliding,
    "hybrid": write_hybrid,
    "recurrent": write_recurrent,
}
BEGIN = 512 - len(CONTROL)  # a control token before each message
NO_END = {token: -1e9 for token in range(BEGIN, 512)}
ANSWER = 40  # tokens


def message(rng: np.random.Generator, n: int) -> Tokens:
    return np.append(np.int32(BEGIN), rng.integers(0, 256, n)).astype(np.int32)


def session(rng: np.random.Generator, preamble: int, calls: int) -> Iterator[tuple[str, list[Tokens]]]:
    """Yields what kind of turn comes, and the messages of its prompt; what was answered is sent to it."""
    system = message(rng, preamble)
    said = [system, message(rng, 120)]
    yield "first", said
    for _ in range(calls):  # the thinking of an answer is dropped: only its end comes back
        said = [*said, message(rng, 25), message(rng, int(rng.integers(50, 400)))]
        yield "a call's result", said
    yield "last message edited", [*said[:-1], message(rng, 200)]
    yield "sub-agent", [system, message(rng, 300)]
    yield "another session", [message(rng, preamble // 2), message(rng, 100)]
    yield "back to the first", [*said, message(rng, 30), message(rng, 100)]
    yield "summary", [system, message(rng, 600), message(rng, 60)]


def measured(pair: Pair, ram: int, preamble: int, calls: int) -> dict[str, list[Turn]]:
    """Returns for each kind of turn (tokens evaluated, of the last message, seconds to the first token)."""
    pair.forget()
    engine, found = (
        Engine(pair, slots=pair.slots, cache_ram=ram),
        defaultdict[str, list[Turn]](list),
    )
    request = Request(Sampling(temperature=0, logit_bias=NO_END), ANSWER, drafter="none")
    for kind, messages in session(np.random.default_rng(1), preamble, calls):
        prompt = np.append(np.concatenate(messages), np.int32(BEGIN))
        began, first, missing = time.perf_counter(), 0.0, 0
        engine.submit("r", prompt, request, borders(prompt, pair.target.control))
        while not engine.idle:
            for one in engine.step():
                assert not isinstance(one, Failed), one.error
                if isinstance(one, Started):
                    missing = one.prompt_tokens - one.cached_tokens
                elif isinstance(one, Emitted) and not first:
                    first = time.perf_counter() - began
        found[kind].append((missing, messages[-1].size, first))
    store = engine.prefixes.store
    print(f"  {(0 if store is None else store.n_bytes) / 1e6:,.1f} MB of host memory")
    return found


def of_peer(
    program: Path, model: Path, settings: PairSettings, preamble: int, calls: int
) -> dict[str, list[Turn]]:
    """Returns the same for llama-server."""
    port, found = _free_port(), defaultdict[str, list[Turn]](list)
    n_ctx, slots, threads = settings.n_ctx or 0, settings.slots, settings.threads
    command = [
        *(str(program), "--model", str(model), "--port", str(port), "--parallel", str(slots)),
        *("--ctx-size", str(slots * n_ctx), "--threads", str(threads), "--ctx-checkpoints", "32"),
    ]
    peer = subprocess.Popen(command, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while not _answers(port):
            time.sleep(0.2)
        for kind, messages in session(np.random.default_rng(1), preamble, calls):
            prompt = np.append(np.concatenate(messages), np.int32(BEGIN)).tolist()
            bias = [[token, False] for token in NO_END]
            asked = {"prompt": prompt, "n_predict": ANSWER, "temperature": 0, "logit_bias": bias}
            timings = _asked(port, asked)["timings"]
            found[kind].append((int(timings["prompt_n"]), messages[-1].size, timings["prompt_ms"] / 1000))
    finally:
        peer.kill()
        peer.wait()
    return found


def _answers(port: int) -> bool:
    try:
        with closing(urllib.request.urlopen(f"http://127.0.0.1:{port}/health")) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _asked(port: int, body: Mapping[str, object]) -> dict[str, dict[str, float]]:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/completion", json.dumps(body).encode())
    with closing(urllib.request.urlopen(request)) as answer:
        found: dict[str, dict[str, float]] = json.load(answer)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preamble", type=int, default=12_000)
    parser.add_argument("--calls", type=int, default=20)
    parser.add_argument("--ram", type=int, default=2048, help="MiB")
    parser.add_argument("--kinds", nargs="*", default=list(KINDS))
    parser.add_argument("--model", type=Path, help="instead of tiny ones")
    parser.add_argument("--wide", action="store_true", help="at 0.6B cost, in F16")
    parser.add_argument("--peer", type=Path, help="llama-server")
    parser.add_argument("--once", action="store_true", help="no run to warm up, and none without")
    how = parser.parse_args()
    settings = PairSettings(n_ctx=2 * how.preamble + 8192, threads=2, slots=2, remember=False)
    for kind in ["your model"] if how.model else how.kinds:
        print(kind)
        with tempfile.TemporaryDirectory() as folder:
            size = {**WIDE[kind], "dtype": "F16"} if how.wide else {}
            model = how.model or KINDS[kind](Path(folder) / "t.gguf", context_length=2**17, **size)
            found: dict[str, dict[str, list[Turn]]] = {}
            if how.peer:
                found["llama-server"] = of_peer(how.peer, model, settings, how.preamble, how.calls)
            with Pair(model, None, settings) as pair:
                pair.costs()
                ways = (
                    {"with": how.ram * 2**20} if how.once else {"": 0, "without": 0, "with": how.ram * 2**20}
                )
                for way, ram in ways.items():  # the first is to warm up
                    found[way] = measured(pair, ram, how.preamble, how.calls)
            for turn in found["with"]:
                means = {way: np.mean(one[turn], axis=0) for way, one in found.items() if way != "warm up"}
                parts = [f"{way} {n:8,.0f}, {s:7.3f} s" for way, (n, _, s) in means.items()]
                print(f"  {turn:20} {means['with'][1]:6,.0f} in the last message: {'; '.join(parts)}")


if __name__ == "__main__":
    main()
