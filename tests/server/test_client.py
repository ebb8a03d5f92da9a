"""The client: the endpoint seen from Python."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread, Timer
from typing import Any

import psutil
import pytest
from announced import announced
from served import NO_END, Served, served, until

from edgespec.client.answer import Span, Spans
from edgespec.client.client import AnswerOptions, Client, Ended, StreamedRound
from edgespec.client.state_file import ServerState
from edgespec.client.stream import read_again
from edgespec.errors import EndpointError, EndpointLostError, PromptTooLongError, SettingError

HELLO = [{"role": "user", "content": "What is EdgeSpec?"}]
ENDLESS = AnswerOptions(sampling={"temperature": 2, "top_p": 1, "min_p": 0}, extra={"logit_bias": NO_END})


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("server")
    places = {"EDGESPEC_STATE_DIR": str(folder), "EDGESPEC_API_KEY": "the-key-of-the-test"}
    with served(folder, "--slots", "1", **places) as server:
        yield server


@pytest.fixture
def client(server: Served, monkeypatch: pytest.MonkeyPatch) -> Client:
    monkeypatch.setenv("EDGESPEC_STATE_DIR", str(server.log.parent))
    [client] = Client.found()
    return client


def whole(
    client: Client, options: AnswerOptions, messages: list[dict[str, str]] = HELLO
) -> tuple[list[StreamedRound], Ended]:
    """Returns the rounds of an answer and its end."""
    *reply, ended = client.chat(messages, options)
    assert isinstance(ended, Ended)
    return [one for one in reply if isinstance(one, StreamedRound)], ended


def test_rounds_come_as_the_engine_made_them(client: Client) -> None:
    """The client finds the server by its file, and its key there."""
    reply, ended = whole(client, AnswerOptions(seed=1, draft_length=4))
    rounds = [one.round for one in reply]
    assert "".join(round_.text for round_ in rounds).startswith("EdgeSpec makes a GGUF model answer")
    assert [one.number for one in reply] == list(range(1, len(reply) + 1))
    assert all(len(one.round.tokens) == len(one.round.sources) == len(one.pieces) for one in reply)
    assert ended.finish == "stop" and ended.model == "embedded"
    assert ended.n_tokens == sum(len(round_.tokens) for round_ in rounds) == 40
    assert ended.drafted == sum(round_.drafted for round_ in rounds) > 0
    assert ended.accepted == sum(round_.accepted for round_ in rounds)
    assert (
        ended.n_ctx == 2048
        and ended.prompt_tokens == 12
        and ended.speedup_is == "estimated"
        and ended.speedup
    )
    assert ended.ttft_s and ended.tpot_s and ended.tok_per_s
    said = "".join(round_.text for round_ in rounds)
    turns = [*HELLO, {"role": "assistant", "content": said}, {"role": "user", "content": "Why?"}]
    _, again = whole(client, AnswerOptions(seed=1, max_tokens=1), turns)
    assert again.cached_tokens and again.cached_tokens >= 50 and again.tok_per_s is None


def test_how_far_a_prompt_has_been_read_comes_before_its_first_text(client: Client) -> None:
    long = [{"role": "user", "content": "to read " * 700}]
    answer, ended = whole(client, AnswerOptions(max_tokens=2, progress=True), long)
    readings = [one.reading for one in answer if one.reading]
    assert readings == [one.reading for one in answer[: len(readings)]] and len(readings) < len(answer)
    assert {reading.total for reading in readings} == {ended.prompt_tokens}
    done = [reading.done for reading in readings]
    assert len(done) > 1 and done == sorted(done) and done[-1] == ended.prompt_tokens
    assert readings[0].left_s is None and readings[1].left_s and readings[-1].left_s == 0
    answer, _ = whole(client, AnswerOptions(max_tokens=2), long)
    assert not any(one.reading for one in answer)
    assert "return_progress" not in AnswerOptions(progress=True).body(HELLO, ours=False)


def test_text_is_reported_by_who_produced_it(client: Client) -> None:
    answer, _ = whole(client, AnswerOptions(seed=1, drafter="model", draft_length=4, stop=("sooner than",)))
    assert all("".join(span.text for span in one.spans) == one.round.text for one in answer)
    assert {span.source for one in answer for span in one.spans} == {"model", "target"}
    assert any(one.round.drafted for one in answer)


def test_speculation_is_left_out_where_it_is_not_wished(client: Client) -> None:
    answer, ended = whole(client, AnswerOptions(seed=1, speculation=False))
    assert ended.drafted == 0 and not any(one.round.drafted for one in answer)


def test_a_seed_gives_the_same_text_with_and_without_speculation(client: Client) -> None:
    """One slot: among several, the order of cells in the cache may tip a close choice (see the README)."""

    def said(question: str, **wished: Any) -> tuple[str, int]:
        asked = AnswerOptions(max_tokens=48, sampling={"temperature": 1.2}, **{"seed": 7, **wished})
        answer, ended = whole(client, asked, [{"role": "user", "content": question}])
        assert ended.drafted is not None
        return "".join(one.round.text for one in answer), ended.drafted

    for question in ("Tell me of rivers and kings", "zebra 17 of"):
        plain, fixed = said(question, speculation=False), said(question, drafter="model", draft_length=4)
        assert said(question)[0] == plain[0] == fixed[0]
        assert plain[1] == 0 < fixed[1]
        assert said(question, seed=8)[0] != plain[0]


@pytest.mark.slow
def test_a_stopped_server_is_passed_over(client: Client, server: Served) -> None:
    """Looking for it costs seconds at most where it does not answer."""
    web = psutil.Process(server.process.pid)
    web.suspend()
    try:
        began = time.monotonic()
        assert Client.found() == []
        assert time.monotonic() - began < 20  # it would be for ever
    finally:
        web.resume()
    assert client.count(HELLO) == 12


def test_what_answers_and_how_long_a_prompt_is(client: Client) -> None:
    info = client.info()
    assert (info.model, info.draft, info.n_ctx, info.embedded) == ("embedded", "draft", 2048, True)
    assert info.speculates and info.memory and info.plain_s and info.where == client.where
    assert info.exact == "distribution"
    assert info.break_even and 0 <= info.break_even.least_free <= info.break_even.least <= 1
    assert client.count(HELLO) == 12
    assert client.count([{"role": "user", "content": "word " * 3000}]) == 3009


@pytest.mark.parametrize("late", [0.0, 0.4])
def test_another_thread_cancels_an_answer(client: Client, server: Served, late: float) -> None:
    """Also one that has not begun yet."""
    answer = client.chat(HELLO, ENDLESS)
    if late:
        timer = Timer(late, answer.cancel)
        timer.start()
    else:
        answer.cancel()
    *_, ended = answer
    assert isinstance(ended, Ended) and ended.finish == "cancelled"
    key = {"x-api-key": "the-key-of-the-test"}
    until(lambda: b"edgespec_requests_running 0.0" in server.ask("/metrics", headers=key).body)
    reply = server.ask("/metrics", headers=key).body.decode()
    if late:  # it had begun, and did not end by itself
        assert re.search(r'edgespec_requests_total{.*finish="cancelled".*} [1-9]', reply)


def test_closing_an_answer_cancels_it(client: Client) -> None:
    with client.chat(HELLO, ENDLESS) as answer:
        next(answer)
    assert list(answer) == []
    _, ended = whole(client, AnswerOptions(max_tokens=2))
    assert ended.finish == "length"


def test_what_goes_wrong_is_a_sentence(client: Client) -> None:
    with pytest.raises(EndpointError, match="temperature is -1") as caught:
        whole(client, AnswerOptions(sampling={"temperature": -1}))
    assert caught.value.status == 400 and caught.value.code == "invalid_value"
    with pytest.raises(PromptTooLongError) as long:
        whole(client, AnswerOptions(), [{"role": "user", "content": "word " * 3000}])
    assert (long.value.n_prompt, long.value.n_ctx) == (3009, 2048)
    with pytest.raises(EndpointError, match="API key") as refused:
        Client.at(client.where, "wrong").models()
    assert refused.value.status == 401
    with pytest.raises(EndpointLostError, match="127.0.0.1:1/v1 does not answer"):
        Client.at("127.0.0.1:1").models()
    for wrong in ("ftp://x", "http://", "http://x:99999", ""):
        with pytest.raises(SettingError, match="not an address"):
            Client.at(wrong)


def test_another_program_on_the_port_learns_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file outlived its server, and something else listens there now."""
    monkeypatch.setenv("EDGESPEC_STATE_DIR", str(tmp_path))
    with other([(200, b'{"proof": "00"}')]) as (port, asked):
        with announced(ServerState("127.0.0.1", port, os.getpid(), "x")) as path:
            state = json.loads(path.read_text())
            assert Client.found() == []
    [(path_asked, headers, _)] = asked
    for private in (state["secret"], state["key"]):
        assert private not in path_asked and private not in str(headers)
    until(lambda: not path.exists())


# ---- other servers


@contextmanager
def other(answers: list[tuple[int, bytes]]) -> Iterator[tuple[int, list[tuple[str, dict[str, str], Any]]]]:
    """Runs a server of somebody else's, which gives these answers; yields its port and what it was asked."""
    asked: list[tuple[str, dict[str, str], Any]] = []

    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            length = int(self.headers.get("content-length") or 0)
            asked.append((self.path, dict(self.headers), json.loads(self.rfile.read(length) or b"null")))
            status, body = answers[min(len(asked), len(answers)) - 1]
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Other) as server:
        thread = Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield server.server_port, asked
        finally:
            server.shutdown()
            thread.join()


def stream(*chunks: dict[str, Any]) -> bytes:
    return b": a comment\n\n" + b"".join(b"data:" + json.dumps(c).encode() + b"\r\n\r\n" for c in chunks)


def said(**delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta}]}


MODELS = json.dumps({"data": [{"id": "big", "owned_by": "somebody", "max_model_len": 4096}]}).encode()


def test_another_server_is_asked_as_it_knows_it() -> None:
    """It tells no rounds, gets no field of ours, and its figures are those that can be seen from here."""
    usage = {"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}
    last = {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}
    answer = stream(
        said(role="assistant", content=None), said(reasoning_content="hm"),
        said(content="a"), said(content="b"),
        said(tool_calls=[{"index": 0, "function": {"name": "f"}}]), last, {"choices": [], "usage": usage},
    )  # fmt: skip
    with other([(200, MODELS), (200, answer + b"data: [DONE]\n\n")]) as (port, asked):
        client = Client.at(f"http://127.0.0.1:{port}/", key="sk-1")
        reply, ended = whole(client, AnswerOptions(seed=1, speculation=False, draft_length=4))
        assert client.count(HELLO) is None
    assert [(one.reasoning, one.round.text) for one in reply[:3]] == [("hm", ""), ("", "a"), ("", "b")]
    assert reply[1].spans == (Span("a", ""),) and not reply[1].number and reply[3].tool_calls
    assert ended.finish == "tool_calls" and ended.n_tokens == 3 and ended.cached_tokens == 4
    assert ended.drafted is None and ended.speedup is None and ended.ttft_s
    (listing, _, _), (path, headers, body) = asked
    assert (listing, path) == ("/v1/models", "/v1/chat/completions")
    assert headers["authorization"] == "Bearer sk-1" and "edgespec" not in body and body["seed"] == 1


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((200, b"data: {}\n\n"), "in the middle"),
        ((200, b"data: hello\n\n"), "something other than JSON"),
        ((200, stream({"error": {"message": "overheated"}})), "overheated"),
        ((500, b"<html>"), "answered 500 without a reason"),
        ((429, b'{"error": "slow down"}'), "slow down"),
    ],
)
def test_what_other_servers_do_wrong_is_a_sentence(answer: tuple[int, bytes], words: str) -> None:
    with other([(200, MODELS), answer]) as (port, _):
        with pytest.raises(EndpointError, match=words):
            whole(Client.at(f"127.0.0.1:{port}"), AnswerOptions())
    for listing in (b"[]", b"hello", b'{"data": 1}'):
        with other([(200, listing)]) as (port, _), pytest.raises(EndpointError, match="OpenAI-style"):
            Client.at(f"127.0.0.1:{port}").info()


def test_spans_follow_text_that_lags_behind_or_was_changed() -> None:
    spans = Spans()
    assert spans.take("", ["ab", "cd"], ["target", "model"]) == ()
    assert spans.take("abc", [], []) == (Span("ab", "target"), Span("c", "model"))
    assert spans.take("de", ["e", "f"], ["model", "lookup"]) == (Span("de", "model"),)
    assert spans.take("other", [], []) == (Span("other", ""),)
    assert spans.take("<", ["<tool>", "x"], ["target", "target"]) == (Span("<", "target"),)
    assert spans.take("x", [], []) == (Span("x", "target"),)


def test_why_a_prompt_wasread_again_is_one_sentence() -> None:
    why = {"tokens": 1130, "message": 3, "was": "<think>", "now": "Yes", "cause": "template"}
    assert read_again(why) == (
        "About 1,130 tokens were read again: the chat template renders 'Yes' in message 3, "
        "where '<think>' was."
    )
    assert "no room" in read_again({"tokens": 70, "cause": "room"})
    assert read_again({}) == read_again({"tokens": "many"}) == ""
