"""An agent's session, prompt by prompt, with and without checkpoints: tokens evaluated, seconds to the first.

    python tests/benchmarks/agent_session.py [--preamble 12000] [--calls 20] [--ram 2048]

Tiny models with random weights, one of each kind of memory. The session has a long system prompt, calls and
their results, answers that come back without their thinking, an edited last message, a sub-agent with the
same preamble, a summary in place of the history, another session in between. Without is `--cache-ram 0`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tiny_gguf import CONTROL, write_hybrid, write_llama, write_recurrent, write_sliding

from edgespec.core.request import Request
from edgespec.core.values import Emitted, Failed, Started
from edgespec.engine.borders import borders
from edgespec.engine.engine import Engine
from edgespec.engine.pair import Pair
from edgespec.pairs.settings import PairSettings
from edgespec.sampling.sampler import Sampling

Tokens = NDArray[np.int32]
Turn = tuple[int, int, float]
KINDS: dict[str, Callable[[Path], Path]] = {
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preamble", type=int, default=12_000)
    parser.add_argument("--calls", type=int, default=20)
    parser.add_argument("--ram", type=int, default=2048, help="MiB")
    parser.add_argument("--kinds", nargs="*", default=list(KINDS))
    how = parser.parse_args()
    settings = PairSettings(n_ctx=2 * how.preamble + 8192, threads=2, slots=2, remember=False)
    for kind in how.kinds:
        with (
            tempfile.TemporaryDirectory() as folder,
            Pair(KINDS[kind](Path(folder) / "t.gguf"), None, settings) as pair,
        ):
            pair.costs()
            print(kind)
            for _ in range(2):  # the first is to warm up
                with_, without = (
                    measured(pair, ram, how.preamble, how.calls) for ram in (how.ram * 2**20, 0)
                )
            for turn in with_:
                (n, new, s), (n0, _, s0) = (np.mean(one[turn], axis=0) for one in (with_, without))
                here = f"{n:8,.0f} tokens, {new:6,.0f} in the last message, {s:6.2f} s"
                print(f"  {turn:20} {here}; without {n0:8,.0f}, {s0:6.2f} s")


if __name__ == "__main__":
    main()
