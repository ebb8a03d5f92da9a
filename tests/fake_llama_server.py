"""A stand-in for llama-server: the real protocol, made-up answers. Its environment sets its behaviour.

FAKE_LLAMA: "" works; "dies" ends at start with words; "deaf" never listens; "breaks" ends at the first
request; "refuses" answers 400; "odd" answers no timings; "slow" takes ten seconds for an answer; "old" knows
the flags of before 2026; "stranger" is another program. FAKE_LLAMA_LOG: a file for the requests it gets.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

HOW = os.environ.get("FAKE_LLAMA", "")
HELP = "-md, --model-draft FNAME\n-np, --parallel N\n--cache-ram N\n"
HELP += (
    "--draft-max N\n"
    if HOW == "old"
    else "--spec-type none,draft-simple,draft-mtp,draft-eagle3\n--spec-draft-n-max N\n"
)


def note(what: object) -> None:
    if os.environ.get("FAKE_LLAMA_LOG"):
        with Path(os.environ["FAKE_LLAMA_LOG"]).open("a") as file:
            print(json.dumps(what), file=file)


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass

    def reply(self, status: int, content: object) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        loading = time.monotonic() - STARTED < 0.1
        self.reply(503 if loading else 200, {"status": "loading" if loading else "ok"})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        note({"path": self.path, **asked})
        if HOW == "breaks":
            print("ggml error: the floor is gone", file=sys.stderr, flush=True)
            os._exit(3)
        if HOW == "refuses":
            return self.reply(400, {"error": {"code": 400, "message": "the prompt is too long"}})
        if HOW == "odd":
            return self.reply(200, {"content": "hm"})
        if HOW == "slow":
            time.sleep(10)
        n, drafting = asked["n_predict"], "--model-draft" in sys.argv
        timings = {"prompt_n": len(asked["prompt"]), "prompt_ms": 20.0, "predicted_n": n}
        timings["predicted_ms"] = (n - 1) * (5.0 if drafting else 10.0)
        if drafting:
            timings |= {"draft_n": 20, "draft_n_accepted": 15}
        content = {"content": "made up", "tokens": [7] * n, "stop_type": "limit", "timings": timings}
        self.reply(200, content)


if __name__ == "__main__":
    if "--help" in sys.argv:
        print("usage: sleep NUMBER" if HOW == "stranger" else HELP)
        sys.exit(0)
    if "--version" in sys.argv:
        print("version: fake (build 0)", file=sys.stderr)
        sys.exit(0)
    note(sys.argv[1:])
    if HOW == "dies":
        print("loading\nerror: failed to load model\nbye", file=sys.stderr)
        sys.exit(1)
    if HOW == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    STARTED = time.monotonic()
    if HOW == "deaf":
        time.sleep(60)
    HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
