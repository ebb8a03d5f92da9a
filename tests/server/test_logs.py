"""What the server logs: a line for each request, with its id; never a key, never anybody's text."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from commands import posix
from served import Served, post, served, until
from starlette.testclient import TestClient

from edgespec.client.state_file import ServerState
from edgespec.server.app import make_app
from edgespec.server.embeddings import Embeddings, Reranker
from edgespec.server.logs import set_up
from edgespec.server.settings import ServerSettings

KEY, QUESTION = "sk-of-the-test-of-logs", "What is EdgeSpec?"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("server"), "--log", "json", EDGESPEC_API_KEY=KEY) as server:
        yield server


def lines(server: Served, about: str) -> list[dict[str, Any]]:
    """Returns the objects of the log that have a word in them, once there are any."""
    found: list[dict[str, Any]] = []

    def look() -> bool:
        logged = [json.loads(line) for line in server.logged().splitlines()]
        found[:] = [one for one in logged if about in json.dumps(one)]
        return bool(found)

    until(look)
    return found


def test_every_request_has_an_id_and_a_line(server: Served) -> None:
    auth = {"x-api-key": KEY}
    body = {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 8, "stream": True}
    answered = server.ask("/v1/chat/completions?api-key=x", body, headers={**auth, "x-request-id": "mine-1"})
    assert answered.headers["x-request-id"] == "mine-1"
    [line] = lines(server, "mine-1")
    assert (line["method"], line["path"], line["status"]) == ("POST", "/v1/chat/completions", 200)
    assert line["tokens"] == 8 and line["prompt_tokens"] == 12 and line["finish"] == "length"
    assert line["client"] == "127.0.0.1" and line["seconds"] > 0 and line["request_id"] == "mine-1"
    refused = server.ask("/v1/models", headers={"x-request-id": "not one\u00e9"})
    id = refused.headers["x-request-id"]
    assert refused.status == 401 and id.startswith("req_")
    assert [(one["status"], one["code"]) for one in lines(server, id)] == [(401, "invalid_api_key")]
    wrong = server.ask("/v1/chat/completions", {"messages": []}, headers=auth).headers["x-request-id"]
    assert [one["code"] for one in lines(server, wrong)] == ["invalid_value"]


@posix
def test_a_stream_that_ended_in_an_error_has_it_in_its_line(server: Served) -> None:
    """It looked like any that was finished."""
    asked = {"prompt": "a", "stream": True, "max_tokens": 1000, "ignore_eos": True}
    headers = f"\r\nx-api-key: {KEY}\r\nx-request-id: cut-off\r\n".encode()
    head = post("/v1/completions", asked).replace(b"\r\n", headers, 1)
    with server.raw(head) as stream:
        said = stream.recv(100)
        server.worker.kill()
        while not said.endswith(b"\r\n0\r\n\r\n"):
            said += stream.recv(65536)
    [line] = lines(server, "cut-off")
    assert (line["status"], line["code"]) == (200, "engine_died")
    until(lambda: server.ask("/health").status == 200, 60)


def test_neither_keys_nor_questions_are_written(server: Served) -> None:
    for headers in ({"x-api-key": KEY}, {"authorization": f"Bearer {KEY}"}, {"x-api-key": KEY + "x"}):
        server.ask(f"/v1/models?key={KEY}", headers=headers)
    server.ask("/v1/chat/completions", b"{" + KEY.encode(), headers={"x-api-key": KEY})
    lines(server, "/v1/models")
    assert KEY not in server.logged() and QUESTION not in server.logged() and "api-key" not in server.logged()


class Broken:
    """A supervisor, and a list of pairs, with a fault."""

    count_large_body = None

    def known(self) -> None:
        raise RuntimeError("a wire is loose")


def test_an_offer_of_http2_is_passed_over(server: Served) -> None:
    """Java's client offers it with each request: two warnings each, one to install what would not help."""
    offer = {"connection": "Upgrade, HTTP2-Settings", "upgrade": "h2c", "http2-settings": "AAEAAEAA"}
    answered = server.ask("/health", headers={**offer, "x-request-id": "offered"})
    assert answered.status == 200 and lines(server, "offered")
    assert "upgrade" not in server.logged() and "uvicorn" not in server.logged()


def test_a_client_that_leaves_in_the_middle_of_a_stream_is_no_news(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """asyncio warned that "socket.send() raised exception": nothing that anybody could mend."""
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    try:
        set_up("quiet")
        logging.getLogger("asyncio").warning("socket.send() raised exception.")
        logging.getLogger("asyncio").error("a wire is loose")
        assert capsys.readouterr().err == "edgespec: a wire is loose\n"
    finally:
        logging.basicConfig(handlers=before, level=level, force=True)


def test_a_real_fault_is_answered_500_and_written_with_its_id(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    state = ServerState("127.0.0.1", 1, 1, "x")
    worker: Any = Broken()
    pairs: Any = worker
    try:
        for log in ("text", "json"):
            set_up("text" if log == "text" else "json")
            app = make_app(worker, ServerSettings(), state, pairs, Embeddings(None), Reranker(None))
            answered = TestClient(app, raise_server_exceptions=False).get("http://localhost/v1/models")
            id = answered.headers["x-request-id"]
            assert answered.status_code == 500 and id in answered.json()["error"]["message"]
            printed = capsys.readouterr().err
            assert "a wire is loose" in printed and f"[{id}]" in printed and "500 after" in printed
            assert log == "text" or [json.loads(line)["request_id"] for line in printed.splitlines()] == [
                id,
                id,
            ]
    finally:
        logging.basicConfig(handlers=before, level=level, force=True)
