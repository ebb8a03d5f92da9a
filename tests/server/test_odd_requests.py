"""Odd requests, one after another, with health checks of the worker in between: it answers, or is restarted.

    EDGESPEC_ODD_SECONDS=3600 pytest -m slow -s tests/server/test_odd_requests.py

runs for an hour; the default is a minute, and the sample among the default tests is some seconds.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from drawn_requests import OPERATIONS, ask
from served import Served, served

SECONDS = float(os.environ.get("EDGESPEC_ODD_SECONDS", "60"))
HEARD_S = 2.0
LONGEST_S = 60.0  # of one request; the server is told to end them after 20
MESSAGES = [{"role": "user", "content": "hi"}]
ASKED: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 4},
    "/v1/completions": {"prompt": "a", "max_tokens": 4},
    "/completion": {"prompt": "a", "n_predict": 4},
    "/infill": {"input_prefix": "a", "input_suffix": "b", "n_predict": 4},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 4, "model": "x"},
    "/v1/responses": {"input": "hi", "max_output_tokens": 4},
    "/tokenize": {"content": "abc"},
    "/detokenize": {"tokens": [1, 2, 3]},
    "/apply-template": {"messages": MESSAGES},
    "/edgespec/count": {"messages": MESSAGES},
}
TEXTS = (
    "prompt content model stop grammar regex guided_regex guided_grammar input system instructions suffix "
    "input_prefix input_suffix samplers user name role type id image_url"
).split()
NUMBERS = (
    "temperature top_k top_p min_p typical_p top_n_sigma repeat_penalty frequency_penalty presence_penalty "
    "penalty_last_n repeat_last_n xtc_probability dynatemp_range dry_multiplier dry_base dry_allowed_length "
    "dry_penalty_last_n n n_predict max_tokens seed logprobs top_logprobs n_probs t_max_predict_ms n_indent"
).split()


def nested(depth: int, ring: Callable[[Any], Any]) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = ring(value)
    return value


def odd_text(r: random.Random) -> str:
    return r.choice([
        "\ud800", "a\udfffb", "\x00", "\ufffe\uffff", "a" * r.choice([1000, 100_000]), "\U0010ffff" * 50, "",
        "🙂"[:1] * 300, "<|im_end|>" * 50, "{{ messages }}", "\r\n" * 500, " " * 5000, "'\"\\" * 100,
    ])  # fmt: skip


def odd_number(r: random.Random) -> Any:
    some = [0, -1, 1e308, -1e308, 2**31, 2**63, -(2**63), 10**300, 1e-320, 0.5, True, "7", None]
    return r.choice([*some, float("nan"), float("inf")])


def odd_grammar(r: random.Random) -> dict[str, Any]:
    n = r.choice([3, 50, 400, 3000])
    chain = "\n".join(f'r{i} ::= "{r.choice("ab")}" r{i + 1}{r.choice(["", "?", "*"])}' for i in range(n))
    words = " | ".join(f'"{r.getrandbits(40):x}"' for _ in range(n))
    properties = {f"p{i}": r.choice([{}, {"type": "string"}, {"enum": [i, None]}]) for i in range(n)}
    ring = r.choice(["(%s)*", "(%s|a)+", "(%s){1,9}", "(?=%s)", "[^%s]"])
    return r.choice([
        {"grammar": f'root ::= r0\n{chain}\nr{n} ::= root | "c"'},
        {"grammar": f'root ::= r0\n{chain}\nr{n} ::= "c"'},
        {"grammar": f'root ::= w ("," w)*\nw ::= {words}'},
        {"grammar": 'root ::= "a"' + r.choice("*+?") * n},
        {"grammar": "#\n" * n + 'root ::= "a"{' + "9" * n + "}"},
        {"grammar": "root ::= " + "(" * n + '"a"' + ")" * n},
        {"grammar": 'root ::= ("a"? ' * min(n, 50) + ")" * min(n, 50)},
        {"json_schema": {"type": "object", "properties": properties}},
        {"json_schema": {"type": "object", "properties": properties, "required": [*properties]}},
        {"json_schema": {"allOf": [{"anyOf": [{"const": i}, {"type": "null"}]} for i in range(n)]}},
        {"json_schema": {"type": "array", "minItems": n * n, "items": {"type": "string", "minLength": n}}},
        {"json_schema": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}},
        {"json_schema": nested(min(n, 60), lambda s: {"type": "array", "items": s if s != 1 else {}})},
        {"json_schema": {"type": "string", "pattern": "(a|b)*a" + "(a|b)" * min(n, 300)}},
        {"regex": nested(min(n, 60), lambda s: ring % ("a" if s == 1 else s))},
        {"regex": "a{" + str(n) + "}{" + str(n) + "}"}, {"regex": "|".join(f"{i}b?" for i in range(n))},
        {"guided_choice": [odd_text(r) for _ in range(5)]}, {"guided_choice": [f"w{i}" for i in range(1000)]},
        {"grammar": '%llguidance {}\nstart: "a" ' + "start? " * min(n, 300)},
    ])  # fmt: skip


def odd_field(r: random.Random) -> dict[str, Any]:
    deep = r.choice([90, 900, 20_000])
    return r.choice([
        lambda: {r.choice(TEXTS): odd_text(r)},
        lambda: {r.choice(TEXTS): [odd_text(r) for _ in range(r.choice([0, 1, 100]))]},
        lambda: {r.choice(NUMBERS): odd_number(r) for _ in range(3)},
        lambda: {"dry_multiplier": 1, "dry_penalty_last_n": -1,
                 "dry_sequence_breakers": [r.choice(["a", "\n", "é", "\ud800"]) * r.choice([1, 50]) + str(i)
                                           for i in range(r.choice([1, 64, 70]))]},
        lambda: {"logit_bias": {odd_text(r)[:50]: odd_number(r)}},
        lambda: {"logit_bias": {str(i): -100 for i in range(r.choice([10, 5000]))}},
        lambda: {"stop": [odd_text(r)[:900] for _ in range(r.choice([1, 64, 65]))]},
        lambda: {"messages": [{"role": r.choice(["user", "assistant", "tool", "x"]), "content": odd_text(r)}
                              for _ in range(r.choice([1, 40]))]},
        lambda: {"prompt": [r.randrange(600) for _ in range(r.choice([1, 50_000]))]},
        lambda: {"prompt": "ab " * r.choice([1000, 500_000])},
        lambda: {"content": "ab " * r.choice([1000, 500_000])},
        lambda: {"tools": [{"type": "function", "function": {"name": odd_text(r)[:60], "parameters": {}}}]},
        lambda: {r.choice([*TEXTS, *NUMBERS, "tools", "messages", "logit_bias", "response_format"]):
                 nested(deep if deep < 900 else 90, r.choice([lambda v: [v], lambda v: {"a": v}]))},
        lambda: odd_grammar(r), lambda: odd_grammar(r), lambda: odd_grammar(r),
        lambda: {"stream": True, "n": r.choice([1, 4, 16])},
    ])()  # fmt: skip


def odd_body(r: random.Random) -> tuple[str, bytes]:
    """Returns a path and what is sent there."""
    path = r.choice([*ASKED])
    wanted = {**ASKED[path], **odd_field(r)}
    if r.random() < 0.3:
        wanted |= odd_field(r)
    body = json.dumps(wanted).encode()
    kind = r.random()
    if kind < 0.03:
        return path, body[: r.randrange(len(body))]
    if kind < 0.06:
        deep = r.choice([101, 900, 100_000])
        return path, body[:-1] + b',"x":' + b"[" * deep + b"]" * deep + b"}"
    if kind < 0.08:
        return path, json.dumps(wanted, ensure_ascii=False).encode("utf-8", "surrogatepass")
    return path, body


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("server"), "--ctx", "256", "--max-seconds", "20") as server:
        yield server


class Probe:
    """Asks the server for its health, and keeps what it said."""

    def __init__(self, server: Served) -> None:
        self.server, self.slowest, self.restarts = server, 0.0, 0
        self.statuses: Counter[int] = Counter()

    def check(self, sent: object) -> None:
        """Fails where the worker neither hears nor was started again."""
        began = time.monotonic()
        answered = self.server.ask("/health", timeout=30)
        took = time.monotonic() - began
        self.slowest = max(self.slowest, took)
        if answered.status == 200 and took < HEARD_S + 1:  # the ping has two seconds, HTTP some of its own
            return
        log = self.server.logged().count("being restarted")
        for _ in range(600):
            if self.server.ask("/health").status == 200:
                break
            time.sleep(0.1)
        assert self.server.logged().count("is running again") > self.restarts, (str(sent)[:300], answered)
        self.restarts = log

    def send(self, path: str, body: bytes) -> None:
        """Sends one request, and checks its answer and the worker."""
        try:
            status = self.server.ask(path, body, timeout=LONGEST_S).status
        except TimeoutError as error:
            raise AssertionError(f"{path} was not answered: {body[:300]!r}") from error
        self.statuses[status] += 1
        assert status in (200, 400, 404, 408, 413, 429, 501, 503), (status, path, body[:500])
        self.check((path, body))


def play(server: Served, seconds: float, most: int, seed: int) -> Probe:
    """Sends odd requests for so long, or so many of them."""
    r, probe, end = random.Random(seed), Probe(server), time.monotonic() + seconds
    for _ in range(most):
        probe.send(*odd_body(r))
        if time.monotonic() > end:
            break
    return probe


def test_the_worker_hears_after_every_odd_request(server: Served) -> None:
    probe = play(server, 12, 30, seed=1)
    assert sum(probe.statuses.values()) > 10 and probe.statuses[400] and probe.restarts == 0
    assert "Traceback" not in server.logged() and server.chat(max_tokens=2).status == 200


@pytest.mark.slow
def test_the_worker_hears_for_long(server: Served) -> None:
    end, total, seed, slowest, restarts = time.monotonic() + SECONDS, Counter[int](), 100, 0.0, 0
    while time.monotonic() < end:
        seed += 1
        probe = play(server, min(60, end - time.monotonic()), 100, seed)
        total += probe.statuses
        slowest, restarts = max(slowest, probe.slowest), restarts + probe.restarts
        drawn = ask(server, OPERATIONS[seed % len(OPERATIONS)], 30, seed=seed)
        Probe(server).check("schemathesis")
        total += drawn
        counts = f"{sum(total.values())} requests {dict(total)}"
        print(f"{counts}, slowest health {slowest:.3f} s, {restarts} restarts", flush=True)
    assert "Traceback" not in server.logged(), server.logged()[-3000:]
    assert server.metric("edgespec_requests_running") == 0 and server.chat(max_tokens=2).status == 200
