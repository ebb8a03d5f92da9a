"""Ollama's API as the `ollama` package and LangChain's client use it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hub_models import model_bytes
from late import ollama
from local_hub import LocalHub
from served import Served, served

HELLO: list[Any] = [{"role": "user", "content": "What is EdgeSpec?"}]
GREEDY = {"temperature": 0, "num_predict": 60}
MODEL = "tiny:latest"
DOCS: Any = {
    "type": "function",
    "function": {
        "name": "search_docs",
        "description": "Searches the documentation.",
        "parameters": {
            "type": "object",
            "properties": {"query": {"type": "string"}},
            "required": ["query"],
        },
    },
}
PAGES = {  # of which origins pages may ask a server started with --ollama
    "app://obsidian.md": 200,
    "vscode-webview://1a2b": 200,
    "https://site.example": 403,
    "https://app.site.example": 403,
    "http://localhost:3000": 200,
}
ASKED: list[Any] = [{"role": "user", "content": "What does json.dumps do?"}]


def root(server: Served) -> str:
    return server.url.removesuffix("/v1")


@pytest.fixture
def client(dialects: Served) -> Iterator[ollama.Client]:
    with ollama.Client(host=root(dialects)) as client:
        yield client


def test_a_chat_is_answered_with_ollamas_figures(client: ollama.Client) -> None:
    got = client.chat(MODEL, HELLO, options=GREEDY)
    assert got.message.role == "assistant" and (got.message.content or "").startswith("EdgeSpec is")
    assert got.done and got.done_reason == "stop" and got.model == MODEL
    assert got.prompt_eval_count == 12 and (got.eval_count or 0) > 20
    assert 0 < (got.eval_duration or 0) < (got.total_duration or 0)
    assert got.load_duration is not None and got.created_at


def test_a_stream_says_the_same_in_lines_of_json(client: ollama.Client, dialects: Served) -> None:
    parts = list(client.chat(MODEL, HELLO, options=GREEDY, stream=True))
    text = "".join(part.message.content or "" for part in parts)
    assert text == client.chat(MODEL, HELLO, options=GREEDY).message.content
    assert len(parts) > 2 and [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    answered = dialects.ask("/api/chat", {"model": MODEL, "messages": HELLO, "options": GREEDY})
    assert answered.headers["content-type"].startswith("application/x-ndjson")
    lines = [json.loads(line) for line in answered.body.decode().splitlines()]
    assert lines[-1]["edgespec"]["accepted"] <= lines[-1]["edgespec"]["drafted"]


def test_the_async_client_is_answered_too(dialects: Served) -> None:
    async def ask() -> str:
        async with ollama.AsyncClient(host=root(dialects)) as client:
            parts = await client.chat(MODEL, HELLO, options=GREEDY, stream=True)
            return "".join([part.message.content or "" async for part in parts])

    assert asyncio.run(ask()).startswith("EdgeSpec is")


def test_tools_are_called_and_their_results_go_back_in(client: ollama.Client) -> None:
    options = {"temperature": 0, "num_predict": 80}
    [call] = client.chat(MODEL, ASKED, tools=[DOCS], options=options).message.tool_calls or ()
    assert call.function.name == "search_docs" and call.function.arguments["query"]
    parts = list(client.chat(MODEL, ASKED, tools=[DOCS], options=options, stream=True))
    assert [part.message.tool_calls for part in parts if part.message.tool_calls] == [[call]]
    turns = [
        *ASKED,
        {"role": "assistant", "content": "", "tool_calls": [call.model_dump()]},
        {"role": "tool", "tool_name": "search_docs", "content": "os.path.join joins paths."},
    ]
    assert client.chat(MODEL, turns, tools=[DOCS], options=options).done_reason in ("stop", "length")


def test_an_answer_has_the_form_that_format_asks_for(client: ollama.Client) -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"enum": [1, 2]}},
        "required": ["n"],
        "additionalProperties": False,
    }
    got = client.chat(MODEL, HELLO, format=schema, options={"num_predict": 40})
    assert json.loads(got.message.content or "")["n"] in (1, 2)
    answer = client.generate(MODEL, "A number.", format=schema, options={"num_predict": 40})
    assert json.loads(answer.response or "")["n"] in (1, 2)


def test_a_generation_continues_from_the_context_of_the_one_before(client: ollama.Client) -> None:
    first = client.generate(MODEL, "What is EdgeSpec?", options=GREEDY)
    assert (first.response or "").startswith("EdgeSpec is") and first.context
    second = client.generate(MODEL, "What does it do?", context=first.context, options=GREEDY)
    assert (second.prompt_eval_count or 0) > len(first.context)
    assert (second.context or [])[: len(first.context)] == first.context


def test_raw_text_and_gaps_are_continued_as_they_are(client: ollama.Client) -> None:
    raw = client.generate(MODEL, "def main():\n", raw=True, options=GREEDY)
    assert raw.response and raw.context is None
    gap = client.generate(MODEL, "def add(a, b):\n    ", suffix="\n\nprint(add(1, 2))\n", options=GREEDY)
    assert gap.response


def test_scores_come_with_their_alternatives(client: ollama.Client) -> None:
    got = client.chat(MODEL, HELLO, options={**GREEDY, "num_predict": 3}, logprobs=True, top_logprobs=2)
    assert got.logprobs and len(got.logprobs) == 3
    assert all(one.logprob <= 0 and len(one.top_logprobs or ()) == 2 for one in got.logprobs)


def test_models_are_listed_shown_and_named_while_loaded(client: ollama.Client) -> None:
    [listed] = [model for model in client.list().models if model.model == MODEL]
    assert listed.size and listed.details and listed.details.quantization_level == "Q8_0"
    shown = client.show("tiny")
    assert shown.capabilities and {"completion", "tools", "insert"} <= set(shown.capabilities)
    assert shown.modelinfo and shown.modelinfo["general.architecture"] == shown.details.family  # type: ignore[union-attr]
    [running] = client.ps().models
    assert running.model == MODEL and running.context_length and running.expires_at


def test_a_request_without_words_only_loads(client: ollama.Client) -> None:
    assert client.chat(MODEL, []).done_reason == "load"
    assert client.generate(MODEL, "").done_reason == "load"


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("/api/chat", {"model": "llama3.2", "messages": HELLO}, 404, "no pair 'llama3.2' is installed"),
        ("/api/chat", {"messages": HELLO}, 400, "model is missing"),
        ("/api/chat", {"model": MODEL, "messages": [{"role": "me"}]}, 400, "messages.0.role is 'me'"),
        (
            "/api/chat",
            {"model": MODEL, "messages": HELLO, "options": {"top_k": "x"}},
            400,
            "options.top_k is 'x'",
        ),
        ("/api/generate", {"model": MODEL, "prompt": "x", "images": ["aGk="]}, 400, "image input"),
        ("/api/generate", {"model": MODEL, "prompt": "x", "template": "{{ .Prompt }}"}, 400, "template"),
        ("/api/show", {}, 400, "model is missing"),
        ("/api/pull", {"model": "../../x"}, 404, "'../../x' is neither a pair of the catalogue nor"),
        ("/api/pull", {"model": "a\0b"}, 404, "the catalogue has no pair 'a\\x00b'"),
        ("/api/copy", {"source": "a", "destination": "b"}, 501, "/api/copy is not supported"),
        ("/api/embed", {"model": MODEL, "input": "x"}, 501, "embedding needs a model made for it"),
    ],
)
def test_what_cannot_be_done_is_reported_in_one_sentence(
    dialects: Served, path: str, body: dict[str, Any], status: int, words: str
) -> None:
    answered = dialects.ask(path, body)
    assert answered.status == status and words in answered.json["error"]


def test_options_that_mean_nothing_are_named_once(client: ollama.Client, dialects: Served) -> None:
    for _ in range(2):
        client.generate(MODEL, "x", options={"num_predict": 1, "num_ctx": 4096, "sharpness": 3})
    answer = dialects.logged()
    assert answer.count("'num_ctx' of a request") == 1 == answer.count("'sharpness' of a request")


def test_langchain_answers_and_calls_tools(dialects: Served) -> None:
    langchain_ollama = pytest.importorskip("langchain_ollama", reason="pip install langchain-ollama")
    model = langchain_ollama.ChatOllama(model="tiny", base_url=root(dialects), temperature=0, num_predict=80)
    assert model.invoke("What is EdgeSpec?").content.startswith("EdgeSpec is")
    [call] = model.bind_tools([DOCS]).invoke(ASKED[0]["content"]).tool_calls
    assert call["name"] == "search_docs"
    model._client.close()
    asyncio.run(model._async_client.close())


@pytest.mark.slow
def test_a_pull_tells_how_far_it_is_and_unloading_is_asked_for(tmp_path: Path) -> None:
    with LocalHub() as hub:
        hub.add("acme/Small-GGUF", {"Small-Q4_K_M.gguf": model_bytes(tmp_path)})
        places = {"HF_ENDPOINT": hub.endpoint, "HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "0"}
        with (
            served(tmp_path, "--alias", "tiny", **places) as server,
            ollama.Client(host=root(server)) as client,
        ):
            *answer, last = client.pull("hf.co/acme/Small-GGUF", stream=True)
            assert last.status == "success", answer
            assert any(line.total and line.completed is not None for line in answer)
            assert "small:latest" in [model.model for model in client.list().models]
            with pytest.raises(ollama.ResponseError, match="nobody/nothing"):
                client.pull("nobody/nothing")
            assert client.generate(MODEL, "", keep_alive=0).done_reason == "unload"
            assert client.chat(MODEL, HELLO, options=GREEDY).done, "it is loaded again"


@pytest.mark.slow
def test_where_programs_look_for_ollama_it_answers_unless_that_is_taken(tmp_path: Path) -> None:
    from edgespec.commands.serve.listening import OLLAMA

    (tmp_path / "second").mkdir()
    with served(tmp_path, "--ollama") as first, served(tmp_path / "second", "--ollama") as second:
        taken = [f"127.0.0.1:{OLLAMA} is taken" in server.logged() for server in (first, second)]
        assert taken[1], "by the first, or by whoever was there before"
        if not taken[0]:
            with ollama.Client(host=f"127.0.0.1:{OLLAMA}") as client:
                assert client.generate("embedded", "What is EdgeSpec?", options=GREEDY).done
        asked = {origin: second.ask("/api/version", headers={"Origin": origin}) for origin in PAGES}
        assert {origin: answered.status for origin, answered in asked.items()} == PAGES
        assert asked["app://obsidian.md"].headers["access-control-allow-origin"] == "app://obsidian.md"


def test_a_list_is_looked_for_and_models_are_compared(dialects: Served) -> None:
    """HEAD was refused, and the digest of a model that runs was not that of the same one in the list."""
    import urllib.request

    root = dialects.url.removesuffix("/v1")
    for path in ("/api/tags", "/api/version"):
        with urllib.request.urlopen(urllib.request.Request(root + path, method="HEAD")) as answer:
            assert answer.status == 200 and answer.read() == b""
    listed = {one["name"]: one["digest"] for one in dialects.ask("/api/tags").json["models"]}
    running = {one["name"]: one["digest"] for one in dialects.ask("/api/ps").json["models"]}
    assert running and running.items() <= listed.items()
