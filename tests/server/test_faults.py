"""What goes wrong between clients, web process and worker: nobody waits for ever, nothing is left behind."""

from __future__ import annotations

import os
import re
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from commands import edgespec, posix, refused
from late import openai
from served import Served, post, served, until

from edgespec.client import state_file

LONG = {"max_tokens": 400, "logit_bias": {"0": -100, "1": -100, "2": -100, "3": -100}, "temperature": 2}


def endless(**fields: object) -> dict[str, object]:
    """Returns a request that takes a while: nothing ends it but its length."""
    return {"prompt": "a", **LONG, "top_p": 1, "min_p": 0, **fields}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("server")
    with served(folder, "--slots", "1", "--queue", "2", "--max-body", "1") as server:
        yield server


def requests(server: Served) -> float:
    return server.metric("edgespec_requests_running")


def cancelled(server: Served) -> float:
    """Returns how many answers were cut off."""
    found = re.findall(r'edgespec_requests_total{.*finish="cancelled".*} (\S+)', metrics(server))
    return sum(map(float, found))


def predicted(server: Served) -> float:
    return server.metric("llamacpp:tokens_predicted_total")


def metrics(server: Served) -> str:
    return server.ask("/metrics").body.decode()


def idle(server: Served) -> None:
    """Waits until nobody is answered any more."""
    until(lambda: requests(server) == 0)


@posix
def test_a_killed_worker_ends_its_streams_and_comes_back(server: Served) -> None:
    with openai.OpenAI(base_url=server.url, api_key="x", max_retries=0) as client:
        stream = client.completions.create(model="x", stream=True, extra_body=endless(), prompt="a")
        next(iter(stream))
        old = server.worker
        old.kill()
        began = time.monotonic()
        with pytest.raises(openai.APIError, match="killed"):
            for _ in stream:
                pass
        while (answered := server.chat(max_tokens=1)).status != 200:
            assert answered.status == 503 and answered.headers["retry-after"], answered
            assert "killed" in answered.error["message"]
            assert server.ask("/health").status in (200, 503)
            assert time.monotonic() - began < 60
            time.sleep(0.05)
    assert server.worker.pid != old.pid
    assert "killed" in server.logged() and "the engine is running again" in server.logged()
    idle(server)


@posix
def test_an_abort_is_reported_with_the_last_lines_of_the_log(server: Served) -> None:
    log = len(server.logged())
    server.worker.send_signal(signal.SIGABRT)
    until(lambda: "the engine is running again" in server.logged()[log:], 20)
    logged = server.logged()[log:]
    assert "llama.cpp aborted (SIGABRT)" in logged
    assert "sched_reserve" not in logged and "llama_" not in logged, (
        "its everyday business is not a last word"
    )


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_vanishes_cancels_its_request(server: Served, stream: bool) -> None:
    before, said = cancelled(server), predicted(server)
    asked = endless(stream=stream, max_tokens=3000)  # seconds: a busy machine must not end it before we leave
    connection = server.raw(post("/v1/completions", asked))
    if stream:
        connection.recv(100)
    until(lambda: predicted(server) > said)  # what is left before its first token is not an answer cut off
    connection.close()
    until(lambda: cancelled(server) == before + 1)  # else it would have ended by itself, as "length"
    idle(server)
    assert server.chat(max_tokens=2).status == 200


def test_a_client_that_vanishes_from_the_queue_leaves_it(server: Served) -> None:
    first = server.raw(post("/v1/completions", endless(stream=True)))
    first.recv(100)
    second = server.raw(post("/v1/completions", endless()))
    until(lambda: requests(server) == 2)
    second.close()
    until(lambda: requests(server) == 1)
    first.close()
    idle(server)


@pytest.mark.slow
def test_a_slow_reader_gets_everything_and_holds_up_nobody(server: Served) -> None:
    asked = endless(stream=True, max_tokens=200, edgespec={"events": True})
    slow = server.raw(post("/v1/completions", asked))
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    slow.recv(100)
    idle(server)  # the engine is done with it, however little was read
    assert server.chat(max_tokens=2).status == 200
    got = b""
    while not got.endswith(b"\r\n0\r\n\r\n"):
        got += slow.recv(1000)
    slow.close()
    assert b"[DONE]" in got


def test_a_full_queue_says_so(server: Served) -> None:
    streams = [server.raw(post("/v1/completions", endless(stream=True))) for _ in range(3)]
    until(lambda: requests(server) == 3)
    refused = server.chat()
    assert refused.status == 429 and refused.error["code"] == "queue_full" and refused.headers["retry-after"]
    for stream in streams:
        stream.close()
    idle(server)


def test_more_answers_at_once_than_slots_and_queue_hold_are_not_to_be_asked_for_again(server: Served) -> None:
    refused = server.chat(n=4, max_tokens=2)
    assert refused.status == 400 and "4 answers are asked for at once" in refused.error["message"]
    assert "hold 3" in refused.error["message"]
    assert server.chat(n=3, max_tokens=2).status == 200


def test_garbage_is_refused(server: Served) -> None:
    with server.raw(bytes(range(256)) * 256) as connection:
        assert connection.recv(100).startswith(b"HTTP/1.1 400")
    for body in (b"\xff" * 65536, b"[" * 65536, b'{"messages":' + b"9" * 60000, b"null", b"[]", b'"x"', b"",
                 b'{"messages":[{"role":"user","content":"x"}],"temperature":NaN}',
                 b'{"prompt":[[]]}', b'{"prompt":[]}', b'{"prompt":[1e99]}', b'{"prompt":[-1]}',
                 b'{"prompt":[2147483647]}', b'{"prompt":"x","seed":1e300}',
                 b'{"prompt":"x","n":true}'):  # fmt: skip
        for path in ("/v1/chat/completions", "/v1/completions"):
            answered = server.ask(path, body)
            assert answered.status == 400, (body[:80], answered)
            assert answered.error["type"] == "invalid_request_error" and answered.error["message"]
    half = b'{"messages":[{"role":"user","content":"\\ud800"}],"max_tokens":1,"prompt":"\\ud800","echo":true}'
    for path in ("/v1/chat/completions", "/v1/completions"):
        refused = server.ask(path, half)
        assert refused.status == 400 and "holds half a character" in refused.error["message"]
    idle(server)


def test_half_a_request_harms_nobody(server: Served) -> None:
    whole = post("/v1/chat/completions", {"messages": []}, length=1000)
    with server.raw(whole), server.raw(whole[:30]), server.raw(b""):
        assert server.chat(max_tokens=2).status == 200
    assert server.ask("/health").status == 200


@pytest.mark.slow
def test_a_body_too_large_is_refused(server: Served) -> None:
    answered = server.chat("x" * 2**20)
    assert answered.status == 413 and answered.error["message"]
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    with server.raw(head) as connection:
        try:
            for _ in range(40):
                connection.sendall(b"10000\r\n" + b"x" * 65536 + b"\r\n")
        except OSError:
            pass
        else:
            assert connection.recv(100).startswith(b"HTTP/1.1 413")


def test_what_is_not_there_is_stated_in_the_same_shape(server: Served) -> None:
    missing, wrong = server.ask("/v1/nothing"), server.ask("/v1/chat/completions")
    assert missing.status == 404 and "/v1/nothing" in missing.error["message"]
    assert wrong.status == 405 and "GET" in wrong.error["message"]


@pytest.mark.slow
def test_nothing_is_left_of_two_hundred_requests(server: Served) -> None:
    server.chat(max_tokens=1)
    web = psutil.Process(server.process.pid)
    files = web.num_fds() if os.name == "posix" else 0

    def ask(i: int) -> int:
        if i % 4 == 0:
            server.raw(post("/v1/completions", endless(stream=True))).close()
            return 200
        return server.chat(max_tokens=2, stream=bool(i % 2)).status

    with ThreadPoolExecutor(2) as pool:
        assert set(pool.map(ask, range(200))) <= {200, 429}
    idle(server)
    if os.name == "posix":
        until(lambda: web.num_fds() <= files + 2)
    assert server.chat(max_tokens=1).status == 200


def kind_of_request(server: Served, i: int) -> int:
    """Sends one of five kinds of request, each ending in its own way; returns the status."""
    if i % 5 == 0:  # a client that vanishes
        with server.raw(post("/v1/completions", endless(stream=True))) as connection:
            if i % 2:
                connection.recv(100)
        return 200
    if i % 5 == 1:
        return server.ask("/v1/chat/completions", b"{").status
    if i % 5 == 2:
        return server.chat("word " * 3000).status  # too long
    beside = {"logprobs": True, "top_logprobs": 5} if i % 5 == 3 else {"edgespec": {"events": True}}
    return server.chat(f"What is {i}?", max_tokens=4, stream=bool(i % 2), **beside).status


@pytest.mark.slow
def test_two_thousand_requests_leave_no_memory_no_slots_and_no_files(tmp_path: Path) -> None:
    """The second thousand takes no memory that the first has not taken: prompts kept have their budget."""
    with served(tmp_path, "--cache-ram", "2") as server:
        processes = [psutil.Process(server.process.pid), server.worker]
        held: list[list[int]] = []
        for begin in (0, 1000):
            with ThreadPoolExecutor(4) as pool:
                statuses = list(pool.map(lambda i: kind_of_request(server, i), range(begin, begin + 1000)))
            assert set(statuses) == {200, 400}
            idle(server)
            held.append([process.memory_info().rss for process in processes])
            held[-1] += [process.num_fds() for process in processes if os.name == "posix"]
        first, second = held
        assert all(b - a < 8 * 2**20 for a, b in zip(first[:2], second[:2], strict=True)), held
        assert all(b <= a + 4 for a, b in zip(first[2:], second[2:], strict=True)), held


# ---- the end


@posix
def test_sigterm_lets_running_answers_end(tmp_path: Path) -> None:
    """The file by which programs of this user find it goes with it."""
    with served(tmp_path) as server:
        assert [state.pid for state in state_file.states()] == [server.process.pid]
        worker = server.worker
        lines: list[bytes] = []
        stream = server.raw(post("/v1/completions", endless(stream=True)))
        stream.recv(10)

        def read() -> None:
            while data := stream.recv(4096):
                lines.append(data)

        reader = threading.Thread(target=read)
        reader.start()
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(20) == 0
        reader.join(5)
        stream.close()
        assert b"[DONE]" in b"".join(lines)
        assert state_file.states() == []
        until(lambda: not worker.is_running())


@posix
def test_ctrl_c_ends_it_and_a_second_does_not_wait(tmp_path: Path) -> None:
    with served(tmp_path, "--ctx", "2048") as server:
        worker = server.worker
        with server.raw(post("/v1/completions", endless(stream=True, max_tokens=2000))) as stream:
            stream.recv(10)
            server.process.send_signal(signal.SIGINT)
            time.sleep(0.3)
            server.process.send_signal(signal.SIGINT)
            assert server.process.wait(10) == 130
        until(lambda: not worker.is_running())
        assert "Traceback" not in server.logged()


@pytest.mark.slow
@posix
def test_a_worker_does_not_outlive_its_owner(tmp_path: Path) -> None:
    with served(tmp_path) as server:
        worker = server.worker
        server.process.kill()
        server.process.wait()
        until(lambda: not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE)


# ---- the start


def test_a_port_in_use_is_named(server: Served) -> None:
    printed = refused("serve", "--port", str(server.port), code=1)
    assert f"cannot listen on 127.0.0.1:{server.port}: another program listens there" in printed


def test_what_cannot_be_served_is_one_sentence(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF\x03\0\0\0" + bytes(100))
    empty = tmp_path / "keys"
    empty.write_text("\n# laptop\n")
    for flags, words, expected in (
        (("--target", "nothing.gguf"), "there is no file nothing.gguf", 1),
        (("--port", "70000"), "--port is 70000", 2),
        (("--host", "no.such.host.invalid"), "--host no.such.host.invalid", 2),
        (("--host", "192.0.2.1", "--api-key", "k"), "192.0.2.1", 1),
        (("--host", "127.0.0.1,"), "has an empty address", 2),
        (("--canary", "2"), "--canary is 2", 2),
        (("--slots", "0"), "--slots is 0", 2),
        (("--api-key-file", str(empty)), "holds no key", 2),
        (("--chat-template-file", "nothing"), "--chat-template-file nothing cannot be read", 2),
        (("--bad",), "there is no flag --bad", 2),
    ):
        assert words in refused("serve", "--port", "0", *flags, code=expected)
    done = edgespec("serve", "--port", "0", "--target", broken)  # found out by a worker
    assert done.returncode == 1 and b"broken.gguf" in done.stderr and b"Traceback" not in done.stderr


def test_beyond_loopback_it_does_not_start_without_a_key() -> None:
    assert "there is no API key" in refused("serve", "--host", "0.0.0.0", "--port", "0")


HALF = "\ud800"
CHAIN = "\n".join(f'r{i} ::= "c" r{i + 1}' for i in range(5000))
HARMFUL = {
    "half a character in an expression": {"regex": HALF},
    "half a character in a choice": {"guided_choice": [HALF]},
    "half a character in a breaker": {"dry_multiplier": 1, "dry_sequence_breakers": [HALF]},
    "half a character in a name": {"logit_bias": {HALF: 1}},
    "half a character in a stop": {"stop": ["a", HALF]},
    "repetitions of repetitions": {"grammar": 'root ::= "a"' + "*" * 500},
    "a number of 5,000 digits": {"grammar": 'root ::= "a"{' + "9" * 5000 + "}"},
    "a chain of rules": {"grammar": f'root ::= "a" | "b" r0\nr5000 ::= root\n{CHAIN}'},
}


@pytest.mark.parametrize("name", HARMFUL)
def test_a_request_that_cannot_be_read_is_refused_and_the_next_is_answered(server: Served, name: str) -> None:
    """Each of these ended the only thread that hears the web process: every later request waited for ever."""
    worker = server.worker.pid
    refused = server.ask("/v1/completions", {"prompt": "a", "max_tokens": 2, **HARMFUL[name]})
    assert refused.status == 400 and refused.error["type"] == "invalid_request_error", refused
    assert server.ask("/health").status == 200 and server.chat(max_tokens=2).status == 200
    assert server.worker.pid == worker and "Traceback" not in server.logged()


@pytest.mark.parametrize(
    "grammar",
    [
        "# a comment\n" * 1500 + 'root ::= "a"',
        "root ::= r0\n" + "\n".join(f"r{i} ::= r{i + 1}" for i in range(350)) + '\nr350 ::= "a"',
    ],
    ids=["comments", "chain"],
)  # fmt: skip
def test_a_long_grammar_is_read(server: Served, grammar: str) -> None:
    answered = server.ask("/v1/completions", {"prompt": "a", "max_tokens": 2, "grammar": grammar})
    assert answered.status == 200 and answered.json["choices"][0]["text"] == "a", answered


def test_what_is_nested_very_deeply_is_refused(server: Served) -> None:
    """A field 900 levels deep was a fault of ours, told as 500."""
    for depth in (200, 900, 20_000):
        for field in ("logit_bias", "stop", "response_format", "unknown"):
            body = b'{"prompt":"a","max_tokens":2,"%s":%s1%s}' % (field.encode(), b"[" * depth, b"]" * depth)
            refused = server.ask("/v1/completions", body)
            assert refused.status == 400 and "levels deep" in refused.error["message"], (depth, field)


@posix
def test_nobody_waits_behind_a_heavy_request(server: Served) -> None:
    """A list of words, a schema of thousands of properties or a long prompt held everybody for minutes."""
    schema = {"type": "object", "properties": {f"p{i}": {} for i in range(9_500)}}
    with server.raw(post("/v1/completions", {"prompt": "a", "json_schema": schema})):
        for _ in range(3):
            began = time.monotonic()
            assert server.chat(max_tokens=2).status == 200
            light = {"prompt": "a", "max_tokens": 2, "regex": "a+"}
            assert server.ask("/v1/completions", light).status == 200
            assert time.monotonic() - began < 4
        assert requests(server) >= 1, "the heavy one is still being read"
    idle(server)


def suspend(worker: psutil.Process) -> None:
    """Stops a process, and waits until all of its threads have."""
    worker.suspend()
    until(lambda: worker.status() == psutil.STATUS_STOPPED)


@posix
@pytest.mark.parametrize("path", ["/v1/completions", "/tokenize", "/edgespec/count"])
def test_a_client_that_vanishes_while_its_request_is_read_is_noticed(server: Served, path: str) -> None:
    """Handing a request on, or counting its tokens, was awaited outside the watch for clients that leave."""
    body = {"prompt": "a", "content": "a", "messages": [{"role": "user", "content": "a"}]}
    worker = server.worker
    suspend(worker)
    try:
        with server.raw(post(path, body)):
            until(lambda: requests(server) == 1)
        until(lambda: requests(server) == 0, 5)
    finally:
        worker.resume()
    assert server.chat(max_tokens=2).status == 200


@pytest.mark.slow
@posix
def test_a_worker_that_does_not_answer_is_reported_at_health(server: Served) -> None:
    worker = server.worker
    suspend(worker)
    try:
        silent = server.ask("/health")
        assert silent.status == 503 and silent.json["status"] == "silent", silent
    finally:
        worker.resume()
    until(lambda: server.ask("/health").status == 200)


@posix
@pytest.mark.slow
def test_a_worker_that_stays_silent_is_started_again_and_it_is_stated(server: Served) -> None:
    old, log = server.worker, len(server.logged())
    suspend(old)
    with server.raw(post("/v1/completions", {"prompt": "a"})) as waiting:
        until(lambda: "the engine is running again" in server.logged()[log:], 90)
        assert b"503" in waiting.recv(100)
    assert "the engine has not answered for" in server.logged()[log:]
    assert "memory" not in server.logged()[log:] and not old.is_running()
    assert server.chat(max_tokens=2).status == 200
