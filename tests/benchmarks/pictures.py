"""When the first text comes of a question about a picture: `edgespec serve` and llama-server, in turn.

    python tests/benchmarks/pictures.py TARGET.gguf MMPROJ.gguf --peer PATH/llama-server [--pictures 10]

Each picture, a rectangle of another colour, is asked about twice: new, then known. Times are by the
client's clock.
"""

from __future__ import annotations

import argparse
import http.client
import json
import sys
import time
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from streams_together import OURS, PLAIN, healthy, only, our_port, ours, running, theirs
from tiny_projector import message, png

SIZE = 640, 480
WARM = 2  # pictures that are not counted


def first_text(port: int, picture: bytes) -> float:
    """Returns how long the first text took."""
    body = {"messages": message("What is it?", picture), "stream": True, "max_tokens": 4, "temperature": 0}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    began = time.perf_counter()
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    lines = iter(connection.getresponse().readline, b"")
    next(line for line in lines if b'"content":"' in line and b'"content":""' not in line)
    took = time.perf_counter() - began
    for _ in lines:
        pass
    connection.close()
    return took


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("target", type=Path)
    parser.add_argument("projector", type=Path)
    parser.add_argument("--peer", type=Path, required=True, help="the llama-server to compare with")
    parser.add_argument("--pictures", type=int, default=10)
    parser.add_argument("--threads", type=int, default=2)
    asked = parser.parse_args()
    how = {"slots": 1, "n_ctx": 2048, "threads": asked.threads}
    with_eye = ["--mmproj", str(asked.projector)]
    words, port = theirs(asked.peer, asked.target, None, **how)
    rng = np.random.default_rng(1)
    with (
        running(words + with_eye, partial(lambda port, _: healthy(port), port)) as peer,
        running(ours(asked.target, None, **how) + with_eye, our_port) as own,
    ):
        ports = {PLAIN: peer, OURS: own}
        found: list[list[list[float]]] = []
        for i in range(WARM + asked.pictures):
            picture = png(*SIZE, colour=(*rng.integers(256, size=2).tolist(), 30))
            order = list(ports)[:: 1 if i % 2 else -1]
            times = {}
            for name in order:
                with only(ports[name]) as port:
                    times[name] = [first_text(port, picture) for _ in "12"]
            found += [[times[PLAIN], times[OURS]]] * (i >= WARM)
    took = np.array(found)  # (pictures, servers, new or known)
    for kind, peers, owns in (("new", *took[:, :, 0].T), ("known", *took[:, :, 1].T)):
        low, middle, high = np.quantile(owns / peers, (0.1, 0.5, 0.9)).tolist()
        told = f"{1000 * np.median(peers):.1f} and {1000 * np.median(owns):.1f} ms"
        print(f"{kind} picture: {told}, {middle:.3f} (80 % in {low:.3f} to {high:.3f})", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
