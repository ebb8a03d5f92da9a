"""Calls that a model without sense makes at temperature 1.5, in the notation of every family: do they fit?

    python tests/benchmarks/adversarial_calls.py TEMPLATES [--model FILE.gguf] [-n 20] [--first 0]
        [--longest 400] [--peer LLAMA_SERVER]

TEMPLATES is a folder of chat templates; each is served on the embedded target or another model, and asked for
calls (`tool_choice: required`). Printed are calls, those that are no JSON, name no tool or do not fit its
schema, answers without a call and refusals. An answer that was cut at its limit of tokens counts as cut.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
from peer import _free_port
from peer_command import environment

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "families"))
from served import served
from test_call_forms import SCHEMAS

from edgespec_models import tiny

TEMPERATURE, SLOTS = 1.5, 4


@contextmanager
def peer(program: Path, model: Path, template: Path) -> Iterator[str]:
    """Runs llama-server, and yields its address."""
    port = _free_port()
    command = [
        *(
            str(program),
            "--model",
            str(model),
            "--port",
            str(port),
            "--parallel",
            str(SLOTS),
            "--ctx-size",
            "32768",
        ),
        *("--jinja", "--chat-template-file", str(template), "--threads", "2"),
    ]
    process = subprocess.Popen(
        command, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        until = time.monotonic() + 30
        while time.monotonic() < until and process.poll() is None:
            try:
                with closing(urllib.request.urlopen(f"http://127.0.0.1:{port}/health")):
                    break
            except OSError:
                time.sleep(0.1)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.kill()
        process.wait()


def verdicts(url: str, seeds: range, longest: int) -> Counter[str]:
    """Returns what became of the answers with these seeds, and of their calls."""
    with ThreadPoolExecutor(SLOTS) as pool:
        return sum(pool.map(partial(_verdict, url, longest), seeds), Counter[str]())


def _verdict(url: str, longest: int, seed: int) -> Counter[str]:
    """Returns what became of one answer and its calls."""
    found, names = Counter[str](), sorted(SCHEMAS)
    name = names[seed % len(names)].replace(" ", "_")
    schema = SCHEMAS[names[seed % len(names)]]
    tool = {"name": name, "description": "does it", "parameters": schema}
    body = {
        "messages": [{"role": "user", "content": f"Please do number {seed}."}],
        "tools": [{"type": "function", "function": tool}],
        "tool_choice": "required",
        "parallel_tool_calls": not seed % 8,  # a list of calls rarely ends at this temperature
        "temperature": TEMPERATURE,
        "seed": seed,
        "max_tokens": longest,
    }
    request = urllib.request.Request(f"{url}/chat/completions", json.dumps(body).encode())
    try:
        with closing(urllib.request.urlopen(request, timeout=60)) as answer:
            choice = json.load(answer)["choices"][0]
    except (urllib.error.URLError, OSError) as error:
        found[f"refused {getattr(error, 'code', '')}".strip()] += 1
        return found
    if choice["finish_reason"] == "length":
        found["cut"] += 1
        return found
    calls = choice["message"].get("tool_calls") or []
    found["without a call"] += not calls
    for call in calls:
        found["calls"] += 1
        if not _fits(call["function"], name, schema):
            found["broken"] += 1
            print(f"broken: {call['function']}", file=sys.stderr)
    return found


def _fits(call: dict[str, Any], name: str, schema: dict[str, Any]) -> bool:
    try:
        jsonschema.validate(json.loads(call["arguments"]), schema)
    except (ValueError, jsonschema.ValidationError):
        return False
    return bool(call["name"] == name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("templates", type=Path)
    parser.add_argument("--model", type=Path, default=tiny.target_path())
    parser.add_argument("-n", type=int, default=20)
    parser.add_argument("--first", type=int, default=0, help="seed of the first answer")
    parser.add_argument("--longest", type=int, default=400, help="tokens of an answer")
    parser.add_argument("--peer", type=Path)
    parser.add_argument("--only", default="")
    how = parser.parse_args()
    seeds = range(how.first, how.first + how.n)
    sums = {"edgespec": Counter[str](), "llama-server": Counter[str]()}
    for template in sorted(how.templates.glob(f"*{how.only}*.jinja" if how.only else "*.jinja")):
        with tempfile.TemporaryDirectory() as folder:
            flags = ("--target", str(how.model), "--no-draft", "--chat-template-file", str(template))
            with served(Path(folder), *flags, "--ctx", "8192", "--slots", str(SLOTS)) as server:
                found = {"edgespec": verdicts(server.url, seeds, how.longest)}
        if how.peer:
            with peer(how.peer, how.model, template) as url:
                found["llama-server"] = verdicts(url, seeds, how.longest)
        for name, counts in found.items():
            sums[name] += counts
        print(template.stem, {name: {k: v for k, v in one.items() if v} for name, one in found.items()})
        sys.stdout.flush()
    print("all", {name: dict(one) for name, one in sums.items()})


if __name__ == "__main__":
    main()
