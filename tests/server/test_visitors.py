"""Visitors that ask for no answer: browsers, monitors, clients that list models, old tools."""

from __future__ import annotations

import gzip
import http.client
import json
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from late import anthropic, openai
from served import Served, served, until

from edgespec.core.values import Round
from edgespec.server.front_page import STATES, STEP_S, STEPS, Recent, ShownModel, front_page
from edgespec.system.isolate import telling


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("server"), "--slots", "2", "--max-body", "1") as server:
        yield server


def head(server: Served, path: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    connection.request("HEAD", path)
    answered = connection.getresponse()
    assert not answered.read()
    connection.close()
    return answered.status


# --- the page


def test_a_browser_is_shown_that_it_runs_and_how_to_use_it(server: Served) -> None:
    """It was a JSON 404: who opened the printed address took the server for broken."""
    page = server.ask("/")
    text = page.body.decode()
    assert page.status == 200 and page.headers["content-type"].startswith("text/html")
    root = server.url.removesuffix("/v1")
    assert "ready" in text and "<code>embedded</code>" in text
    for line in (f"edgespec chat --endpoint {root}/v1", f"apiBase: {root}/v1", f"{root}/infill"):
        assert line in re.sub("&#x27;", "'", text)
    policy = page.headers["content-security-policy"]
    assert (
        policy.startswith("default-src 'none'; style-src 'self'; script-src 'self'")
        and "unsafe" not in policy
    )
    assert head(server, "/") == 200


def test_the_page_has_nothing_from_elsewhere_and_nothing_that_its_policy_forbids(server: Served) -> None:
    text = server.ask("/").body.decode()
    found = re.findall(r'(?:src|href)="([^"]*)"', text)
    assert found == ["data:,", "/edgespec/page/style.css", "/edgespec/page/script.js"]
    assert " style=" not in text and not re.search(r" on\w+=|<script>|<style", text)
    for path, kind in ((found[1], "text/css"), (found[2], "text/javascript")):
        file = server.ask(path)
        assert file.status == 200 and file.headers["content-type"].startswith(kind)
        assert b"http" not in file.body and b"@import" not in file.body
    assert server.ask("/edgespec/page/page.html").status == 404
    assert server.ask("/edgespec/page/..%2ffront_page.py").status == 404


def test_the_page_draws_what_was_written_in_the_last_minutes(server: Served) -> None:
    assert server.chat("Tell me more about EdgeSpec.", max_tokens=60).status == 200
    now = server.ask("/edgespec/page/now").body.decode()
    assert "<polyline" in now and re.search(r"<strong>\d+ tok/s</strong>", now) and "embedded" in now


def test_sums_are_of_the_last_minutes_and_know_no_speed_of_pauses() -> None:
    now = [0.0]
    recent = Recent(clock=lambda: now[0])
    for now[0] in (100.0, 100.1, 100.2, 160.0, 160.5):
        recent.note(Round((1, 2), "", 4, 3, ("model", "target")))
    now[0] = 161.0
    steps = recent.steps()
    assert len(steps) == STEPS and [one.speed for one in steps if one.speed] == [pytest.approx(20.0), 4.0]
    assert [one.acceptance for one in steps if one.acceptance] == [0.75, 0.75]
    now[0] = 161.0 + STEPS * STEP_S
    assert not any(one.speed or one.drafted for one in recent.steps())


@pytest.mark.slow
def test_the_page_opens_without_a_key_and_then_names_no_model(tmp_path: Path) -> None:
    with served(tmp_path, EDGESPEC_API_KEY="secret") as server:
        page = server.ask("/")
        assert page.status == 200 and b"requires a key" in page.body and b"embedded" not in page.body
        assert b"apiKey: KEY" in page.body and b"any text will do" not in page.body
        assert server.ask("/edgespec/page/script.js").status == 200
        assert server.ask("/edgespec/page/now").status == 401
        assert b"embedded" in server.ask("/edgespec/page/now", headers={"x-api-key": "secret"}).body
        assert server.ask("/v1/models").status == 401


def test_nothing_of_a_name_is_taken_for_markup() -> None:
    model = ShownModel("<b>$root</b>", "loaded", '"&', None)
    for state in STATES:
        page = front_page("http://x&y", state, [model], [])
        assert "<b>" not in page and "&lt;b&gt;$root&lt;/b&gt;" in page and "x&amp;y" in page


# --- pages of others


def test_a_page_of_another_site_can_embed_nothing(server: Served) -> None:
    """Browsers send no Origin for a picture or a script: such a GET passed, from any page."""

    def status(path: str, site: str, mode: str = "no-cors", dest: str = "image", **more: str) -> int:
        headers = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": mode, "Sec-Fetch-Dest": dest}
        return server.ask(path, headers={**headers, **more}).status

    for path in ("/v1/models", "/slots", "/metrics", "/props", "/"):
        assert status(path, "cross-site") == status(path, "cross-site", "navigate", "iframe") == 403
        assert status(path, "same-site", Host=socket.gethostname()) == 403
        assert status(path, "same-site") == 200, "another page of this machine"
        assert status(path, "same-origin") == status(path, "none", "navigate", "document") == 200
        assert status(path, "cross-site", "navigate", "document") == 200, "a link that somebody follows"
        assert server.ask(path).status == 200, "programs send none of it"


# --- models


def test_a_model_is_described_by_its_name(server: Served) -> None:
    """`models.retrieve` of both packages failed with 404."""
    with openai.OpenAI(base_url=server.url, api_key="x", max_retries=0) as client:
        assert client.models.retrieve("embedded").id == "embedded"
        with pytest.raises(openai.NotFoundError, match="no pair 'other/thing'"):
            client.models.retrieve("other/thing")
    root = server.url.removesuffix("/v1")
    with anthropic.Anthropic(base_url=root, api_key="x", max_retries=0) as claude:
        one = claude.models.retrieve("embedded")
        assert (one.id, one.type, one.display_name) == ("embedded", "model", "embedded")
        assert one.created_at.year > 2000
        assert [model.id for model in claude.models.list().data] == ["embedded"]
        with pytest.raises(anthropic.NotFoundError):
            claude.models.retrieve("other")


def test_models_are_listed_as_ollama_does_too(server: Served) -> None:
    listed = server.ask("/v1/models").json
    assert [model["name"] for model in listed["models"]] == [model["id"] for model in listed["data"]]
    assert listed["models"][0]["details"]["format"] == "gguf"


def test_the_file_of_the_embedded_pair_is_a_name_still(server: Served) -> None:
    for name in ("embedded", "target"):
        assert server.chat(model=name, max_tokens=2).json["model"] == "embedded"


@pytest.mark.slow
def test_minus_one_is_what_fits_as_in_llama_cpp(tmp_path: Path) -> None:
    with served(tmp_path, "-n", "-1") as server:
        assert server.ask("/props").json["default_generation_settings"]["params"]["n_predict"] == -1


@pytest.mark.slow
def test_looking_at_slots_neither_loads_a_model_nor_keeps_it(tmp_path: Path) -> None:
    """A monitor that looked every few seconds defeated --idle-unload."""
    with served(tmp_path, "--idle-unload", "0.02") as server:
        end = time.monotonic() + 20
        while "is unloaded" not in server.logged():
            assert server.ask("/slots").status == 200 and time.monotonic() < end
            time.sleep(0.1)
        for _ in range(3):
            slots = server.ask("/slots").json
            assert len(slots) == 4 and not any(slot["is_processing"] for slot in slots)
        assert server.ask("/props").json["is_sleeping"] and "loaded again" not in server.logged()
        assert server.chat(max_tokens=2).status == 200
        until(lambda: "is loaded again" in server.logged())


# --- the protocol


def test_monitors_may_ask_for_the_head_alone(server: Served) -> None:
    assert head(server, "/health") == head(server, "/v1/health") == 200


def test_a_body_too_large_is_refused_as_everything_is(server: Served) -> None:
    """Past twice --max-body, a layer below answered in plain text."""
    for size in (2**20 + 10, 3 * 2**20, 10 * 2**20):
        answered = server.ask("/v1/completions", b'{"prompt":"' + b"a" * size + b'"}')
        assert answered.status == 413 and "larger than 1 MiB: --max-body" in answered.error["message"]


def test_a_compressed_body_is_named(server: Served) -> None:
    """It was called text that is not in UTF-8."""
    body = gzip.compress(json.dumps({"prompt": "def"}).encode())
    for path in ("/v1/completions", "/v1/messages"):
        answered = server.ask(path, body, headers={"content-encoding": "GZIP"})
        assert answered.status == 415 and "compressed (gzip)" in answered.error["message"]


def test_what_is_not_done_here_is_refused_once(server: Served) -> None:
    """OpenAI's client asked for embeddings three times before it told its user."""
    asked = []
    with openai.DefaultHttpxClient(event_hooks={"request": [asked.append]}) as http:
        client = openai.OpenAI(base_url=server.url, api_key="none", http_client=http)
        with pytest.raises(openai.InternalServerError, match="embedding needs a model made for it"):
            client.embeddings.create(model="x", input="hi")
    assert len(asked) == 1


def test_the_limit_of_stops_is_named(server: Served) -> None:
    """A list that was too long was told that it should be a text."""
    refused = server.chat(stop=["x"] * 65)
    assert refused.status == 400 and "64" in refused.error["message"] and refused.error["param"] == "stop"
    wrong = server.chat(stop=7)
    assert wrong.status == 400 and "stop is 7" in wrong.error["message"]


# --- words of old, and of others


FUNCTION = {
    "name": "look_up",
    "parameters": {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
}


@pytest.mark.parametrize("stream", [False, True])
def test_functions_are_called_as_before_there_were_tools(server: Served, stream: bool) -> None:
    """They were passed over, and the answer was text."""
    asked: dict[str, Any] = {
        "functions": [FUNCTION], "function_call": {"name": "look_up"}, "max_tokens": 60, "stream": stream,
        "logit_bias": {}, "temperature": 0,
    }  # fmt: skip
    with openai.OpenAI(base_url=server.url, api_key="x", max_retries=0) as client:
        reply = client.chat.completions.create(
            model="x", messages=[{"role": "user", "content": "What is EdgeSpec?"}], **asked
        )
        if not stream:
            [choice] = reply.choices
            assert choice.message.function_call.name == "look_up" and not choice.message.tool_calls
            assert choice.finish_reason in ("function_call", "length")
            return
        called = [
            c.choices[0].delta.function_call for c in reply if c.choices and c.choices[0].delta.function_call
        ]
    assert called[0].name == "look_up" and all(not one.name for one in called[1:])


def test_a_function_that_was_called_is_part_of_the_conversation(server: Served) -> None:
    turns = [
        {"role": "user", "content": "Look it up."},
        {"role": "assistant", "content": None,
         "function_call": {"name": "look_up", "arguments": '{"word": "qz"}'}},
        {"role": "function", "name": "look_up", "content": "zq result"},
    ]  # fmt: skip
    prompt = server.ask("/apply-template", {"messages": turns, "functions": [FUNCTION]}).json["prompt"]
    assert '"qz"' in prompt and "zq result" in prompt and prompt.count("look_up") >= 2


@pytest.mark.parametrize("stream", [False, True])
def test_mistrals_way_of_filling_in(server: Served, stream: bool) -> None:
    asked = {"model": "x", "prompt": "def add(a, b):\n    return ", "suffix": "\n\nprint(add(1, 2))",
             "max_tokens": 8, "stream": stream, "random_seed": 3}  # fmt: skip
    answered = server.ask("/v1/fim/completions", asked)
    assert answered.status == 200, answered
    if not stream:
        assert isinstance(answered.json["choices"][0]["message"]["content"], str)
        assert (
            answered.json["object"] == "chat.completion" and answered.json["usage"]["completion_tokens"] <= 8
        )
    else:
        assert b'"delta":{"role":"assistant","content":' in answered.body and b"[DONE]" in answered.body


def test_a_dead_workers_last_lines_are_those_that_tell_something() -> None:
    lines = [
        "llama_model_loader: loaded meta data", "ggml.c:12: GGML_ASSERT(n > 0) failed", "load: printing all",
        "Traceback (most recent call last):", "  KeyError: 1", "print_info: arch = llama",
    ]  # fmt: skip
    assert telling(lines) == [lines[1], lines[3], lines[4]]


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Why?"}]}),
        ("/v1/completions", {"prompt": "def"}),
        ("/completion", {"prompt": "def"}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "Why?"}]}),
        ("/v1/responses", {"input": "Why?"}),
        ("/edgespec/models", {"action": "load"}),
    ],
)
def test_every_stream_can_be_split_at_empty_lines(server: Served, path: str, asked: dict[str, Any]) -> None:
    """Events ended with "\\r\\n": a client that splits a stream at "\\n\\n", as many do, saw none."""
    streamed = server.ask(path, {**asked, "max_tokens": 2, "stream": True}).body
    assert len(streamed.split(b"\n\n")) > 2 and b"\r" not in streamed
