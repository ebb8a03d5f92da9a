"""How fast `edgespec serve` answers when other programs were at work, and have ended.

    python tests/benchmarks/beside_work.py [--grow 1.1B-Q4_0] [--answers 8] [--checkout FOLDER ...]

A server with an empty cache folder answers greedy completions of 96 tokens, one after another. Two busy loops
run until it is ready ("start"), for 25 seconds after the first answer ("idle"), during the third and
fourth answer ("middle"), or not at all ("quiet"). --checkout: compare other checkouts in turn.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[2]
MOMENTS = ("quiet", "start", "idle", "middle")
IDLE_S, TOKENS, PORT = 25.0, 96, 18_431
PROMPTS = (
    "def parse_header(line):",
    "class Queue:\n    def put(self, item):",
    "import os\n\ndef walk(top):",
    "def format_date(value):",
    "for name in sorted(names):",
    "with open(path) as f:\n",
)


@contextlib.contextmanager
def busy(loops: int = 2) -> Iterator[None]:
    """Keeps so many cores busy."""
    running = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(loops)]
    try:
        yield
    finally:
        for one in running:
            one.kill()
            one.wait()


def ask(path: str, body: dict[str, Any] | None = None) -> Any:
    data = json.dumps(body).encode() if body else None
    request = urllib.request.Request(
        f"http://127.0.0.1:{PORT}{path}", data, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)


def wait_until_ready() -> None:
    end = time.monotonic() + 300
    while time.monotonic() < end:
        with contextlib.suppress(OSError, urllib.error.URLError):
            ask("/health")
            return
        time.sleep(0.1)
    raise SystemExit("the server is not ready after 300 s")


@contextlib.contextmanager
def served(checkout: Path, grow: str) -> Iterator[None]:
    """Runs a server of a checkout that knows nothing of the machine yet."""
    with tempfile.TemporaryDirectory() as folder:
        grown = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"), "edgespec", "grown")
        grown.mkdir(parents=True, exist_ok=True)  # made once: they are large
        Path(folder, "edgespec").mkdir()
        Path(folder, "edgespec", "grown").symlink_to(grown)
        roots = os.pathsep.join(str(checkout / part) for part in (".", "tui", "models"))
        server = subprocess.Popen(
            [sys.executable, "-m", "edgespec", "serve", "--grow", grow, "--port", str(PORT)],
            env={**os.environ, "PYTHONPATH": roots, "XDG_CACHE_HOME": folder},
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            yield
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(30)


def speeds(checkout: Path, grow: str, moment: str, answers: int) -> list[float]:
    """Returns the decoding speed of each answer, in tokens a second."""
    found = []
    with contextlib.ExitStack() as opened, served(checkout, grow):
        with busy() if moment == "start" else contextlib.nullcontext():
            wait_until_ready()
        for i in range(answers):
            if moment == "idle" and i == 1:
                with busy():
                    time.sleep(IDLE_S)
            if moment == "middle" and i == 2:
                opened.enter_context(busy())
            if moment == "middle" and i == 4:
                opened.close()
            prompt = PROMPTS[i % len(PROMPTS)]
            body = {"prompt": prompt, "n_predict": TOKENS, "temperature": 0, "ignore_eos": True}
            found.append(float(ask("/completion", body)["timings"]["predicted_per_second"]))
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--grow", default="1.1B-Q4_0")
    parser.add_argument("--answers", type=int, default=8)
    parser.add_argument("--moment", action="append", choices=MOMENTS)
    parser.add_argument("--checkout", type=Path, action="append")
    wanted = parser.parse_args(arguments)
    for moment in wanted.moment or MOMENTS:
        for checkout in wanted.checkout or [HERE]:
            found = speeds(checkout.resolve(), wanted.grow, moment, wanted.answers)
            after = found[4:] if moment == "middle" else found[1:] if moment == "idle" else found
            print(
                f"{checkout.resolve().name} {wanted.grow} {moment}:",
                f"{statistics.harmonic_mean(after):.1f} tok/s of",
                *(f"{speed:.0f}" for speed in found),
                flush=True,
            )


if __name__ == "__main__":
    main()
