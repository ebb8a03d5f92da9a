"""Who may ask: keys, Host, Origin."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from announced import announced
from full_disk import no_room
from late import anthropic, openai
from served import Served, served
from starlette.responses import Response
from starlette.testclient import TestClient

from edgespec.client import state_file
from edgespec.commands import cli
from edgespec.server import gate
from edgespec.server.choice_results import ChoiceResults
from edgespec.server.gate import _Door
from edgespec.server.last_requests import MOST, OWNERS, LastRequests
from edgespec.server.settings import ServerSettings

KEY, OTHER = "sk-secret-of-the-test", "another-key-in-the-file"
ASKED: Any = {
    "model": "tiny",
    "max_tokens": 4,
    "messages": [{"role": "user", "content": "What is EdgeSpec?"}],
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("server")
    keys = folder / "keys"
    keys.write_text(f"{OTHER}\n\n")
    flags = (
        "--api-key-file",
        str(keys),
        "--cors-origin",
        "http://app.example",
        "--allowed-host",
        "gate.example",
    )
    with served(folder, *flags, EDGESPEC_API_KEY=KEY, EDGESPEC_STATE_DIR=str(folder)) as server:
        yield server


def test_the_doctor_shows_the_last_requests_of_its_own_key_alone(
    server: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    numbers = " ".join(str(7 * i) for i in range(60))
    for day in ("Monday", "Tuesday"):
        messages = [{"role": "system", "content": f"It is {day}. {numbers}"}, *ASKED["messages"]]
        asked = {**ASKED, "messages": messages}
        server.ask("/v1/chat/completions", asked, headers={"x-api-key": KEY})
    command = ["doctor", "--endpoint", server.url, "--api-key"]
    assert cli.main([*command, KEY]) == 0
    shown = capsys.readouterr().out
    assert "tokens of the last 2 prompts" in shown and "Tuesday" in shown
    assert shown.count("the client sent") == 1 and "in message 1" in shown
    assert cli.main([*command, KEY, "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)["requests"]
    assert first["evaluated"] == first["prompt_tokens"] and "evaluated_again" not in first
    assert second["evaluated_again"]["cause"] == "client"
    assert second["evaluated"] + sum(second.get("cached_from", {}).values()) == second["prompt_tokens"]
    assert cli.main([*command, OTHER]) == 0
    assert "no request with this key" in capsys.readouterr().out
    assert cli.main([*command, "wrong"]) != 0
    assert "key" in capsys.readouterr().err
    assert "Tuesday" not in server.logged()


def test_the_last_requests_of_few_owners_are_kept() -> None:
    last = LastRequests()
    for i in range(OWNERS + 1):
        for n in range(MOST + 1):
            last.note(str(i), "tiny", ChoiceResults(prompt_tokens=n))
    assert [one["prompt_tokens"] for one in last.of("1")] == [*range(1, MOST + 1)]
    assert last.of("0") == [] and last.of("stranger") == []


def status(server: Served, **headers: str) -> int:
    return server.ask("/v1/models", headers={k.replace("_", "-"): v for k, v in headers.items()}).status


def test_either_header_opens_with_either_key(server: Served) -> None:
    for key in (KEY, OTHER):
        assert status(server, Authorization=f"Bearer {key}") == 200
        assert status(server, x_api_key=key) == 200
    for wrong in ("", KEY[:-1], KEY + "x", "\xe9"):
        assert status(server, Authorization=f"Bearer {wrong}") == 401
        assert status(server, x_api_key=wrong) == 401
    assert status(server) == 401 and status(server, Authorization=f"Basic {KEY}") == 401
    assert server.ask("/health").status == 200
    assert server.ask("/metrics").status == 401


def test_the_openai_package_opens_with_its_key(server: Served) -> None:
    with openai.OpenAI(base_url=server.url, api_key=KEY, max_retries=0) as client:
        assert client.models.list().data
    with openai.OpenAI(base_url=server.url, api_key="wrong", max_retries=0) as client:
        with pytest.raises(openai.AuthenticationError, match="API key"):
            client.models.list()


def test_a_name_that_is_not_ours_is_turned_away(server: Served) -> None:
    """DNS rebinding: a page's own name points to this machine, and the browser lets it read what comes."""
    for host in (
        "evil.example",
        "evil.example:8080",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "[::1].evil.example",
    ):
        answered = server.ask("/v1/models", headers={"Host": host, "x-api-key": KEY})
        assert answered.status == 403 and host.removesuffix(":8080") in answered.error["message"]
    for host in (
        "localhost",
        "localhost:1",
        "127.0.0.1",
        "[::1]:8080",
        "192.168.0.7:80",
        "gate.example",
        "LOCALHOST",
        "localhost.",
        "LocalHost.:8080",
    ):
        assert status(server, Host=host, x_api_key=KEY) == 200


def asked(server: Served, target: str, *head: str, method: str = "GET") -> str:
    """Returns the whole answer to a request as it is written."""
    lines = [f"{method} {target} HTTP/1.1", f"x-api-key: {KEY}", "Connection: close", *head, "", ""]
    with server.raw("\r\n".join(lines).encode()) as got:
        return b"".join(iter(lambda: got.recv(65536), b"")).decode()


def test_a_target_may_be_a_whole_address_and_then_its_host_counts(server: Served) -> None:
    for target in (f"http://127.0.0.1:{server.port}/v1/models", "HTTP://localhost/v1/models?x=1"):
        assert asked(server, target, "Host: other.example").startswith("HTTP/1.1 200"), target
    assert "'evil.example'" in asked(server, "http://evil.example/v1/models", "Host: localhost")
    assert "'[::1].evil.example'" in asked(server, "http://[::1].evil.example/v1/models", "Host: localhost")


def test_a_body_that_is_too_large_is_not_asked_for(server: Served) -> None:
    """A client that waited for leave was given it, and then read for 35 seconds."""
    head = ("Host: localhost", "Expect: 100-continue", "Content-Length: 99999999999")
    answer = asked(server, "/v1/completions", *head, method="POST")
    assert answer.startswith("HTTP/1.1 413") and "connection: close" in answer.lower()


def test_a_monitor_that_names_no_host_is_read(server: Served) -> None:
    """HAProxy asks in HTTP/1.0, where none has to be named; it was told that Host '' is wrong."""
    for head, status_ in (("", b"200"), ("Host:\r\n", b"403"), ("Host: evil.example\r\n", b"403")):
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as asked:
            asked.sendall(f"GET /health HTTP/1.0\r\n{head}\r\n".encode())
            assert asked.recv(12).endswith(status_)


def test_only_named_pages_may_ask(server: Served) -> None:
    evil = server.ask("/v1/models", headers={"Origin": "http://evil.example", "x-api-key": KEY})
    assert evil.status == 403 and "evil.example" in evil.error["message"]
    assert evil.headers["access-control-allow-origin"] is None
    good = server.ask("/v1/models", headers={"Origin": "http://app.example", "x-api-key": KEY})
    assert good.status == 200 and good.headers["access-control-allow-origin"] == "http://app.example"
    own = f"http://127.0.0.1:{server.port}"
    assert status(server, Origin=own, x_api_key=KEY) == 200


@pytest.mark.parametrize("keys", [(), ("key",)])
def test_without_names_pages_of_this_machine_may_ask_and_with_keys_all_that_have_one(
    keys: tuple[str, ...],
) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await Response("answer")(scope, receive, send)

    def asked(origin: str, key: str = "", method: str = "GET") -> tuple[int, str | None]:
        wish = {"Access-Control-Request-Method": "POST"} if method == "OPTIONS" else {}
        headers = {"Origin": origin, "x-api-key": key, **wish}
        got = TestClient(named, base_url="http://localhost").request(method, "/v1/models", headers=headers)
        return got.status_code, got.headers.get("access-control-allow-origin")

    gate_ = gate.gated(app, ServerSettings(keys=keys), own_key="own")

    async def named(scope: Any, receive: Any, send: Any) -> None:
        await gate_({**scope, "state": {"request_id": "r", "shapes": {}}}, receive, send)

    page, evil = "http://localhost:3000", "http://evil.example"
    assert asked(page, "key")[0] == 200 and asked(page, method="OPTIONS") == (200, page)
    if keys:
        assert asked(evil, method="OPTIONS") == (200, evil)
        assert asked(evil)[0] == 401 and asked(evil, "key")[0] == 200
    else:
        assert asked(evil) == (403, None) and asked(evil, method="OPTIONS") == (200, None)


def test_keys_are_asked_for_in_anthropics_shape_too(server: Served) -> None:
    root = server.url.removesuffix("/v1")
    with anthropic.Anthropic(base_url=root, api_key="wrong", max_retries=0) as client:
        with pytest.raises(anthropic.AuthenticationError) as caught:
            client.messages.create(**ASKED)
        body: Any = caught.value.body
        assert body["error"]["type"] == "authentication_error"
    with anthropic.Anthropic(base_url=root, api_key=KEY, max_retries=0) as client:
        assert client.messages.create(**ASKED).content


def test_a_browser_that_asks_first_is_reported_nothing_it_could_use(server: Served) -> None:
    for origin, allowed in (("http://app.example", "http://app.example"), ("http://evil.example", None)):
        head = f"OPTIONS /v1/models HTTP/1.1\r\nHost: 127.0.0.1\r\nOrigin: {origin}\r\n"
        with server.raw(
            f"{head}Access-Control-Request-Method: POST\r\nConnection: close\r\n\r\n".encode()
        ) as got:
            answer = b"".join(iter(lambda: got.recv(65536), b"")).decode().lower()
        assert answer.startswith("http/1.1 200")
        assert (f"access-control-allow-origin: {allowed}" in answer) is (allowed is not None)
        assert ("access-control-allow-origin" in answer) is (allowed is not None)


def test_a_page_may_ask_for_a_private_network(server: Served) -> None:
    """Chromium asks so before a page of the web may reach this machine: it was refused with 400."""
    head = "OPTIONS /v1/models HTTP/1.1\r\nHost: 127.0.0.1\r\nOrigin: http://app.example\r\n"
    more = "Access-Control-Request-Method: POST\r\nAccess-Control-Request-Private-Network: true\r\n"
    with server.raw(f"{head}{more}Connection: close\r\n\r\n".encode()) as got:
        answer = b"".join(iter(lambda: got.recv(65536), b"")).decode().lower()
    assert answer.startswith("http/1.1 200") and "access-control-allow-private-network: true" in answer


def test_a_body_with_two_ends_closes_its_connection(server: Served) -> None:
    """A proxy may believe its length, and take what follows the last chunk for the next request's answer."""
    head = f"POST /tokenize HTTP/1.1\r\nHost: 127.0.0.1\r\nx-api-key: {KEY}\r\nContent-Length: 5\r\n"
    with server.raw(f"{head}Transfer-Encoding: chunked\r\n\r\n2\r\n{{}}\r\n0\r\n\r\n".encode()) as got:
        answer = b"".join(iter(lambda: got.recv(65536), b"")).decode().lower()
    assert answer.startswith("http/1.1 ") and "\r\nconnection: close\r\n" in answer


def test_the_rest_of_a_refused_body_is_waited_for_once() -> None:
    """Each piece of the answer waited anew, so a refusal took twice as long, and the server's end too."""
    sent: list[float] = []

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(time.monotonic())

    scope = {"type": "http", "headers": [(b"content-length", b"100")]}
    began = time.monotonic()
    asyncio.run(gate._Drain(Response("no", 403), 0.2)(scope, receive, send))
    assert len(sent) == 2 and sent[0] - began >= 0.2 and sent[1] - sent[0] < 0.1


def test_pages_of_this_machine_can_be_let_in_all_at_once() -> None:
    door = _Door(lambda *_: None, frozenset(), ["localhost"])  # type: ignore[arg-type,return-value]
    for origin in ("http://localhost", "http://127.0.0.1:3000", "http://[::1]:5173", "https://localhost:1"):
        assert door.may(origin, "127.0.0.1:8080"), origin
    for origin in (
        "http://notlocalhost",
        "http://localhost.evil.com",
        "http://evil.com",
        "http://127.0.0.1.x",
    ):
        assert not door.may(origin, "127.0.0.1:8080"), origin


def test_the_key_is_in_no_log_and_no_process(server: Served) -> None:
    status(server, Authorization=f"Bearer {KEY}")
    status(server, x_api_key=KEY + "x")
    worker = server.worker
    assert KEY not in server.logged() and OTHER not in server.logged()
    assert not any(KEY in text for text in worker.cmdline())
    assert KEY not in worker.environ().values()


def test_a_file_of_ones_own_finds_the_server_and_proves_it(
    server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGESPEC_STATE_DIR", str(server.log.parent))
    [path] = (server.log.parent / "servers").glob("*.json")
    assert os.name != "posix" or path.stat().st_mode & 0o777 == 0o600
    (path.parent / "1.json").write_text("{}")  # says nothing, and is passed over
    [state] = state_file.states()
    assert state.port == server.port and state.pid == server.process.pid
    nonce = "a number drawn for the occasion"
    proof = server.ask(f"{state_file.PROOF_PATH}?nonce={nonce.replace(' ', '+')}").json["proof"]
    assert state.proves(nonce, proof) and not state.proves("another", proof)
    assert status(server, x_api_key=state.key) == 200 and status(server, x_api_key=state.secret) == 401
    assert state.secret not in repr(state) and server.ask(state_file.PROOF_PATH).status == 400


@pytest.mark.skipif(os.name != "posix", reason="a disk is full by a limit that POSIX has")
def test_a_full_disk_is_reported_with_the_file_and_leaves_nothing(home: Path) -> None:
    """`None cannot be written`, the server said: of a full disk the system does not name the file."""
    state = state_file.ServerState("127.0.0.1", 8080, 1, "x")
    with no_room(), pytest.raises(OSError, match="8080.json"), announced(state):
        pass
    assert not [path for path in home.rglob("8080*")]


def test_no_route_shows_the_machine(server: Served) -> None:
    for path in ("/docs", "/redoc", "/../etc/passwd", "/v1/models/..%2f..%2fetc"):
        assert server.ask(path, headers={"x-api-key": KEY}).status == 404


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as one:
            one.bind(("::1", 0))
    except OSError:
        return False
    return True


def test_a_template_of_ones_own_routes_that_are_closed_and_two_addresses(tmp_path: Path) -> None:
    template = tmp_path / "template"
    template.write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    addresses = ["127.0.0.1", "[::1]"] if has_ipv6() else ["127.0.0.1"]
    flags = ("--no-slots", "--no-metrics", "--host", ",".join(addresses).replace("[", "").replace("]", ""))
    with served(tmp_path, "--chat-template-file", str(template), *flags) as server:
        for path in ("/slots", "/metrics"):
            closed = server.ask(path)
            assert closed.status == 501 and "--no-" in closed.error["message"]
        for host in addresses:
            with openai.OpenAI(base_url=f"http://{host}:{server.port}/v1", api_key="x") as client:
                assert client.models.list().data, host
        props = server.ask("/props").json
        assert not props["endpoint_slots"] and not props["endpoint_metrics"]
        answer = {"messages": [{"role": "user", "content": "def main"}]}
        assert server.ask("/apply-template", answer).json == {"prompt": "def main"}
        assert server.chat("def main", max_tokens=4).json["usage"]["prompt_tokens"] < 8


def test_nobodys_speed_shows_what_another_key_was_reported(server: Served) -> None:
    """Guesses come from earlier texts: of one's own alone."""

    def guessed(key: str) -> tuple[int, str]:
        how = {"drafter": "history", "draft_length": 8}
        fields = {"max_tokens": 60, "temperature": 0, "edgespec": how}
        body = {"messages": [{"role": "user", "content": "What is heapq?"}], **fields}
        answer = server.ask("/v1/chat/completions", body, headers={"x-api-key": key}).json
        return answer["timings"]["draft_n_accepted"], answer["choices"][0]["message"]["content"]

    first = guessed(KEY)
    assert first[0] < 20
    assert guessed(OTHER) == first, "for the other, it is a new text"
    assert guessed(KEY)[0] > 30 < guessed(OTHER)[0], "and each has its own"
