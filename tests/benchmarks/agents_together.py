"""One agent writes while three others come with long prompts: gaps of its answer, and the time of all.

    python tests/benchmarks/agents_together.py FOLDER [--peer PATH/llama-server] [--quality fair]
        [--tokens 1000] [--shared 0] [--before CHECKOUT]

After the first pieces of a running answer, three prompts of N tokens are sent at once; each answer has
`--answer` tokens. Gaps are those of the running answer until the last of the three has its first token.
The same four requests, with other texts, are also sent one after the other. A server is stopped while
another is measured. The bars: gaps at p99 at most twice llama-server's without a draft, and at most 0.95 of
the time of one after the other. --shared: so many tokens are the same at the beginning of the three.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np
from pairs import draft_file, target_file
from streams_together import (
    BEFORE,
    OURS,
    PLAIN,
    THEIRS,
    Stream,
    ask,
    healthy,
    only,
    our_port,
    ours,
    prompts,
    theirs,
)
from streams_together import running as started

NEW, FIRST_PIECES, SLOTS = 3, 8, 4
CHARACTERS = 3.4  # of the held-out prompts, for a token


@dataclass(frozen=True, slots=True)
class Measured:
    """What one server did with all at once, and with one after the other. Seconds."""

    gaps: tuple[float, ...]  # of the running answer, while the prompts were read
    new: tuple[Stream, ...]
    together: float
    in_turn: float

    def figures(self) -> str:
        p50, p99 = np.percentile(self.gaps, [50, 99])
        ttft = np.median([one.ttft for one in self.new])
        cached = [one.cached for one in self.new]
        return (
            f"{len(self.gaps)} gaps: p50 {p50:.3f}, p99 {p99:.3f}, longest {max(self.gaps):.3f} s; "
            f"TTFT of the new {ttft:.1f} s (cached {cached}); at once {self.together:.1f} s, "
            f"one after the other {self.in_turn:.1f} s: {self.together / self.in_turn:.2f}"
        )


def texts(n_tokens: int, shared: int) -> Iterator[list[str]]:
    """Yields a short prompt and the new ones, always others."""
    everything = "\n\n".join(one for _, one in zip(range(60), prompts(), strict=False))
    for i in range(1000):
        own = [f"# {i}.{j}\n{everything[97 * (4 * i + j) :]}{everything}" for j in range(NEW)]
        n = int(shared * CHARACTERS)
        new = [f"# {i}\n{everything[i:]}"[:n] + one[: int(n_tokens * CHARACTERS) - n] for one in own]
        yield [f"# {i}: {everything[31 * i :][:200]}", *new]


def measured(port: int, sent: Iterator[list[str]], n_running: int, n_answer: int) -> Measured:
    """Measures one server."""
    begun = threading.Event()

    def answer(text: str, n: int) -> tuple[float, Stream]:
        pieces = iter(range(FIRST_PIECES))

        def note() -> None:
            if next(pieces, None) is None:
                begun.set()

        at = time.perf_counter()
        return at, ask(port, text, n_tokens=n, temperature=0, seed=1, on_piece=note)

    first, *new = next(sent)
    began = time.perf_counter()
    for text, n in ((first, n_running), *((one, n_answer) for one in new)):
        answer(text, n)
    in_turn = time.perf_counter() - began

    begun.clear()
    first, *new = next(sent)
    with ThreadPoolExecutor(1 + NEW) as pool:
        began = time.perf_counter()
        running = pool.submit(answer, first, n_running)
        begun.wait()
        answered = list(pool.map(partial(answer, n=n_answer), new))
        at, stream = running.result()
        together = time.perf_counter() - began
    times = at + stream.ttft + np.cumsum([0.0, *stream.gaps])
    since, until = answered[0][0], max(one + new.ttft for one, new in answered)
    gaps = np.diff(times)[(times[1:] > since) & (times[:-1] < until)]
    return Measured(tuple(gaps.tolist()), tuple(one for _, one in answered), together, in_turn)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="where the pairs are, or are made")
    parser.add_argument("--peer", type=Path, help="the llama-server to compare with")
    parser.add_argument("--before", type=Path, help="another checkout of EdgeSpec, to compare with")
    parser.add_argument("--size", default="0.6B-F16")
    parser.add_argument("--quality", default="fair", choices=("good", "fair", "poor", "worst", "none"))
    parser.add_argument("--tokens", type=int, default=1000, help="of each new prompt (1000)")
    parser.add_argument("--shared", type=int, default=0, help="of them, at the beginning of all three (0)")
    parser.add_argument("--running", type=int, default=160, help="tokens of the running answer (160)")
    parser.add_argument("--answer", type=int, default=32, help="tokens of each new answer (32)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=1)
    return parser.parse_args()


def main() -> int:
    arguments = parsed()
    os.environ.pop("EDGESPEC_THREADS", None)
    target, draft = target_file(arguments.folder, arguments.size), None
    if arguments.quality != "none":
        draft = draft_file(arguments.folder, arguments.size, arguments.quality)
    n_ctx = arguments.tokens + arguments.running + 1024
    how = {"slots": SLOTS, "n_ctx": n_ctx, "threads": arguments.threads}
    checkouts = {OURS: None} | ({BEFORE: arguments.before.resolve()} if arguments.before else {})
    with ExitStack() as servers:
        ports = {}
        for name, checkout in checkouts.items():
            os.environ["EDGESPEC_CACHE_DIR"] = servers.enter_context(tempfile.TemporaryDirectory())
            ports[name] = servers.enter_context(started(ours(target, draft, **how), our_port, checkout))
        for name, guesser in ((THEIRS, draft), (PLAIN, None)) if arguments.peer else ():
            if name == PLAIN or guesser:
                words, port = theirs(arguments.peer, target, guesser, **how)
                ready = partial(lambda port, _: healthy(port), port)
                ports[name] = servers.enter_context(started(words, ready))
        sent = {name: texts(arguments.tokens, arguments.shared) for name in ports}
        for _ in range(arguments.repeats):
            for name in np.random.default_rng().permutation(list(ports)):
                with only(ports[name]) as port:
                    found = measured(port, sent[name], arguments.running, arguments.answer)
                print(f"{name:13} {found.figures()}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
