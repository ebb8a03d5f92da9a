"""`edgespec.client`: the endpoint seen from Python."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from served import Served, served, until

from edgespec.client import Client
from edgespec.errors import EndpointError
from edgespec.state_file import ServerState, announced

HELLO = [{"role": "user", "content": "What is EdgeSpec?"}]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("server")
    with served(folder, EDGESPEC_STATE_DIR=str(folder), EDGESPEC_API_KEY="the-key-of-the-test") as server:
        yield server


@pytest.fixture
def client(server: Served, monkeypatch: pytest.MonkeyPatch) -> Client:
    monkeypatch.setenv("EDGESPEC_STATE_DIR", str(server.log.parent))
    [client] = Client.found()
    return client


def test_rounds_come_as_the_engine_made_them(client: Client) -> None:
    """The client finds the server by its file, and its key there."""
    rounds = list(client.chat(HELLO, seed=1, edgespec={"draft_length": 4}))
    assert "".join(round_.text for round_ in rounds).startswith("EdgeSpec makes a GGUF model answer")
    assert rounds[-1].finish == "stop" and not any(round_.finish for round_ in rounds[:-1])
    assert client.model == "target" and client.timings["predicted_n"] == sum(len(r.tokens) for r in rounds)
    assert client.timings["draft_n"] == sum(round_.drafted for round_ in rounds) > 0
    assert all(len(round_.tokens) == len(round_.sources) for round_ in rounds)


def test_closing_an_answer_cancels_it(client: Client, server: Served) -> None:
    answer = client.chat(HELLO, max_tokens=500, temperature=2, logit_bias={"0": -100, "1": -100, "2": -100})
    next(answer)
    answer.close()
    client.key, key = "wrong", client.key
    with pytest.raises(EndpointError, match="API key"):
        next(client.chat(HELLO))
    client.key = key
    assert list(client.chat(HELLO, max_tokens=2))[-1].finish == "length"


def test_what_goes_wrong_is_a_sentence(client: Client) -> None:
    with pytest.raises(EndpointError, match="temperature is -1"):
        next(client.chat(HELLO, temperature=-1))
    with pytest.raises(EndpointError, match="does not answer"):
        next(Client("127.0.0.1", 1).chat(HELLO))


def test_another_program_on_the_port_learns_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file outlived its server, and something else listens there now."""
    asked: list[tuple[str, dict[str, Any]]] = []

    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append((self.path, dict(self.headers)))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"proof": "00"}).encode())

        def log_message(self, *_: object) -> None:
            pass

    monkeypatch.setenv("EDGESPEC_STATE_DIR", str(tmp_path))
    with HTTPServer(("127.0.0.1", 0), Other) as other:
        thread = Thread(target=other.serve_forever)
        thread.start()
        with announced(ServerState("127.0.0.1", other.server_port, os.getpid(), "x")) as path:
            state = json.loads(path.read_text())
            assert Client.found() == []
        other.shutdown()
        thread.join()
    [(path_asked, headers)] = asked
    for private in (state["secret"], state["key"]):
        assert private not in path_asked and private not in str(headers)
    until(lambda: not path.exists())
