"""Embeddings as the clients of OpenAI, llama-server and Ollama ask for them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import refused
from late import ollama, openai
from served import Served, served, until
from tiny_gguf import write_llama, write_reranker

from edgespec.llama.model import Model
from edgespec.server.embeddings import Embeddings
from edgespec.system.isolate import kills_for_memory

PEER = os.environ.get("EDGESPEC_TEST_PEER")
TEXTS = ["hello world", "the quick brown fox jumps over the lazy dog", "a", "hello world"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An embedding model: the mean of the rows is the text's, and a token ends each text."""
    told = {"llama.pooling_type": 1, "tokenizer.ggml.add_eos_token": True}
    return write_llama(tmp_path_factory.mktemp("model") / "mean.gguf", metadata=told)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("server"), "--embed", str(model)) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url, api_key="none", max_retries=0) as client:
        yield client


def vectors(client: openai.OpenAI, texts: Any, **fields: Any) -> Any:
    answered = client.embeddings.create(model="mean", input=texts, **fields)
    assert [one.index for one in answered.data] == list(range(len(answered.data)))
    return np.array([one.embedding for one in answered.data])


def test_texts_become_vectors_of_length_one(client: openai.OpenAI) -> None:
    found = vectors(client, TEXTS)  # this client asks for base64
    assert np.linalg.norm(found, axis=1) == pytest.approx(1, abs=1e-5)
    assert found == pytest.approx(vectors(client, TEXTS, encoding_format="float"), abs=1e-6)
    assert found[0] == pytest.approx(found[3], abs=1e-3) and abs(found[0] @ found[1]) < 0.9
    answered = client.embeddings.create(model="mean", input=TEXTS[0])
    assert answered.model == "mean" and answered.usage.prompt_tokens == answered.usage.total_tokens > 0


def test_a_text_alone_and_among_a_hundred_others_is_the_same(client: openai.OpenAI) -> None:
    """They are read 32 at a time, as far as they fit into one evaluation."""
    many = [f"text {i} " * (i % 40 + 1) for i in range(100)]
    together = vectors(client, many)
    for i in (0, 31, 32, 63, 99):
        assert together[i] == pytest.approx(vectors(client, many[i])[0], abs=1e-3), i


def test_a_text_ends_as_the_model_was_trained(client: openai.OpenAI, model: Path) -> None:
    """Without its end token, MiniLM's vectors were off by 0.2."""
    with Model(model, head=True) as loaded:
        alone = loaded.tokenize(TEXTS[1].encode(), special=True).tolist()
        end = loaded.tokenize(TEXTS[1].encode(), special=True, add_end=True).tolist()
        assert end[:-1] == alone and end[-1] in loaded.end_tokens
    answered = client.embeddings.create(model="mean", input=TEXTS[1])
    assert answered.usage.prompt_tokens == len(end)
    assert vectors(client, end)[0] == pytest.approx(answered.data[0].embedding, abs=1e-6)


def test_fewer_dimensions_are_the_first_of_length_one(client: openai.OpenAI) -> None:
    whole, short = vectors(client, TEXTS), vectors(client, TEXTS, dimensions=8)
    assert short.shape == (4, 8) and np.linalg.norm(short, axis=1) == pytest.approx(1, abs=1e-5)
    assert short[1] == pytest.approx(whole[1, :8] / np.linalg.norm(whole[1, :8]), abs=1e-5)


def test_llama_servers_and_ollamas_formats(server: Served, client: openai.OpenAI) -> None:
    wanted = vectors(client, TEXTS[:2])
    rows = server.ask("/embedding", {"content": TEXTS[:2]}).json
    assert [row["embedding"][0] for row in rows] == [pytest.approx(row, abs=1e-6) for row in wanted.tolist()]
    with ollama.Client(host=server.url.removesuffix("/v1")) as theirs:
        both = theirs.embed("mean", TEXTS[:2])
        assert np.array(both.embeddings) == pytest.approx(wanted, abs=1e-6) and both.model == "mean:latest"
        assert theirs.embeddings("mean", TEXTS[0]).embedding == pytest.approx(wanted[0].tolist(), abs=1e-6)
        assert len(theirs.embed("mean", "word " * 3000).embeddings) == 1, "Ollama leaves out the end"
        assert theirs.show("mean").capabilities == ["embedding"]
        assert "mean:latest" in [one.model for one in theirs.list().models]


@pytest.mark.slow
def test_the_model_is_kept_as_long_as_ollamas_clients_ask(server: Served) -> None:
    """keep_alive had no effect on it."""
    with ollama.Client(host=server.url.removesuffix("/v1")) as theirs:
        wanted = np.array(theirs.embed("mean", TEXTS[:1]).embeddings)
        assert theirs.embed("mean", TEXTS[:1], keep_alive="1s").embeddings
        assert len(children := server.children("edgespec.llama.embedding_child")) == 1
        theirs.embed("mean", TEXTS[:1], keep_alive=0)
        until(lambda: not any(child.is_running() for child in children))
        assert np.array(theirs.embed("mean", TEXTS[:1], keep_alive=-1).embeddings) == pytest.approx(
            wanted[:1]
        )


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"input": ""}, "a text is empty"),
        ({"input": []}, "input has 0 texts"),
        ({"input": ["x"] * 2049}, "input has 2049 texts"),
        ({"input": [10**6]}, "a token is outside of the model's 512"),
        ({"input": "word " * 3000}, "512 are read at once: shorten it"),
        ({"input": "x", "dimensions": 65}, "dimensions is 65: the model's vectors have 64"),
        ({"input": "x", "encoding_format": "hex"}, "encoding_format is 'hex'"),
    ],
)
def test_what_cannot_be_embedded_is_reported_in_one_sentence(
    client: openai.OpenAI, fields: dict[str, Any], words: str
) -> None:
    with pytest.raises(openai.BadRequestError, match=words):
        client.embeddings.create(model="mean", **fields)
    assert vectors(client, "the next one").shape == (1, 64)


def test_ollamas_clients_get_vectors_of_the_model_they_name(server: Served, model: Path) -> None:
    """Any name was answered with the vectors of --embed's model; Ollama has 404, and none for no texts."""
    for path in ("/api/embed", "/api/embeddings"):
        answered = server.ask(path, {"model": "nobody", "input": "x", "prompt": "x"})
        assert answered.status == 404 and "no model 'nobody' makes vectors here" in answered.error
    assert server.ask("/api/embed", {"model": "mean:latest", "input": []}).json["embeddings"] == []
    assert server.ask("/api/embed", {"model": "mean", "input": ["x"]}).status == 200


def test_a_model_of_the_hubs_cache_has_the_name_of_its_link(model: Path, tmp_path: Path) -> None:
    """It was named by the hash of its blob."""
    from edgespec.commands.serve.flags import pooling_model

    blob = tmp_path / "5f" / ("0" * 64)
    blob.parent.mkdir()
    blob.write_bytes(model.read_bytes())
    link = tmp_path / "embedder-Q8_0.gguf"
    link.symlink_to(blob)
    assert Embeddings(pooling_model(str(link), "--embed")).name == "embedder-Q8_0"


def test_a_child_that_dies_is_reported_and_replaced(server: Served, client: openai.OpenAI) -> None:
    vectors(client, "x")
    [child] = server.children("edgespec.llama.embedding_child")
    child.kill()
    answered = server.ask("/v1/embeddings", {"input": "x"})
    assert answered.status == 500 and "embedding failed" in answered.error["message"]
    if kills_for_memory() is not None:  # the system tells that nothing was short of it
        assert "by a person or another program" in answered.error["message"]
    assert vectors(client, "x").shape == (1, 64)
    assert server.chat(max_tokens=2).status == 200, "the engine is another process"


def test_who_leaves_does_not_hand_its_answer_to_the_next(model: Path) -> None:
    """The lock was free while the child still answered, so two questions were in its pipe at once."""

    async def ask() -> None:
        embeddings = Embeddings(model)
        try:
            alone = await embeddings.embedded(["a"])
            leaving = asyncio.create_task(embeddings.embedded(["word " * 90] * 32))
            await asyncio.sleep(0.003)
            leaving.cancel()
            after = await embeddings.embedded(["a"])
            assert after.vectors[0] == pytest.approx(alone.vectors[0], abs=1e-3) and len(after.vectors) == 1
        finally:
            embeddings.close()

    asyncio.run(ask())


def test_many_vectors_keep_nobody_waiting(server: Served, client: openai.OpenAI) -> None:
    with ThreadPoolExecutor(1) as pool:
        many = pool.submit(vectors, client, ["word"] * 2000, encoding_format="float")
        slowest = 0.0
        while not many.done():
            began = time.monotonic()
            assert server.ask("/health").status == 200
            slowest = max(slowest, time.monotonic() - began)
        assert many.result().shape == (2000, 64)
    assert slowest < 5, "far above what it takes on a busy machine"


def test_a_server_without_an_embedding_model_says_how_to_have_one(dialects: Served, tmp_path: Path) -> None:
    answered = dialects.ask("/v1/embeddings", {"input": "x"})
    assert answered.status == 501 and "--embed FILE.gguf" in answered.error["message"]
    assert "names no pooling" in refused("serve", "--embed", write_llama(tmp_path / "plain.gguf"), code=1)
    assert "there is no file" in refused("serve", "--embed", tmp_path / "nothing.gguf", code=1)


@contextmanager
def peer(folder: Path, *flags: str) -> Iterator[Callable[[str, object], Any]]:
    """Yields what asks llama-server; skips the test without one."""
    if not PEER:
        pytest.skip("EDGESPEC_TEST_PEER names no llama-server")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def ask(path: str, body: object) -> Any:
        request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", json.dumps(body).encode())
        request.add_header("content-type", "application/json")
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    words = [PEER, *flags, "-c", "512", "--port", str(port)]
    with (folder / "log").open("wb") as log, subprocess.Popen(words, stdout=log, stderr=log) as process:
        try:
            until(lambda: b"listening" in (folder / "log").read_bytes(), 60)
            yield ask
        finally:
            process.kill()


@pytest.mark.slow
def test_vectors_are_those_of_llama_server(client: openai.OpenAI, model: Path, tmp_path: Path) -> None:
    with peer(tmp_path, "--embedding", "-m", str(model)) as ask:
        for text in TEXTS:
            [theirs] = ask("/v1/embeddings", {"input": text})["data"]
            assert vectors(client, text)[0] == pytest.approx(theirs["embedding"], abs=1e-4)


RANKED = {"query": "the {document} word", "documents": [*TEXTS, ""]}
RERANKERS: list[dict[str, Any]] = [
    {"tokenizer.ggml.add_eos_token": True, "tokenizer.ggml.add_sep_token": True,
     "tokenizer.ggml.seperator_token_id": 509},
    {"tokenizer.chat_template.rerank": "<|im_start|>{query}<|im_end|>{document}"},
    {},
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("more", RERANKERS, ids=["tokens", "template", "plain"])
def test_ranks_are_those_of_llama_server(tmp_path: Path, more: dict[str, Any]) -> None:
    file = write_reranker(tmp_path / "ranks.gguf", more)
    asked = RANKED if len(more) > 1 else {**RANKED, "query": "the word"}  # theirs fills in a query's braces
    with (
        served(tmp_path, "--rerank", str(file)) as server,
        peer(tmp_path, "--rerank", "-m", str(file)) as ask,
    ):
        for text in asked["documents"]:
            one = {**asked, "documents": [text]}
            [mine], [theirs] = (
                server.ask("/v1/rerank", one).json["results"],
                ask("/v1/rerank", one)["results"],
            )
            assert mine == pytest.approx(theirs, abs=1e-4)
        mine, theirs = server.ask("/v1/rerank", asked).json, ask("/v1/rerank", asked)
        scores, same = ({r["index"]: r["relevance_score"] for r in a["results"]} for a in (mine, theirs))
        assert scores == pytest.approx(same, abs=2e-3), "cells lie elsewhere: their batches have 4 texts"
        assert [*scores.values()] == sorted(scores.values(), reverse=True)
        assert len({round(score, 2) for score in scores.values()}) > 2
        assert mine["usage"] == theirs["usage"] and mine.keys() == theirs.keys()
        assert server.ask("/rerank", {**asked, "top_n": 1}).json["results"] == mine["results"][:1]
        listed = {"query": asked["query"], "texts": asked["documents"], "return_text": True}
        for one in server.ask("/rerank", listed).json:
            assert one["text"] == asked["documents"][one["index"]] and one["score"] == scores[one["index"]]
        assert ask("/rerank", listed)[0].keys() == one.keys()
        if more:
            return
        for query, words in (("word " * 3000, "documents: a text has"), ("", "documents: a text is empty")):
            wrong = server.ask("/v1/rerank", {"query": query, "documents": [""]})
            assert wrong.status == 400 and wrong.error["message"].startswith(words)


@pytest.mark.slow
@pytest.mark.skipif(
    not hasattr(signal, "SIGHUP") or signal.getsignal(signal.SIGHUP) is signal.SIG_IGN,
    reason="there is no SIGHUP, or it is ignored (nohup)",
)
def test_settings_that_are_read_again_hold_for_the_reranker(tmp_path: Path) -> None:
    """They held for the pair and the embedding model alone."""
    file, ranks = tmp_path / "any.toml", write_reranker(tmp_path / "ranks.gguf")
    file.write_text("")
    with served(tmp_path, "--config", str(file), "--rerank", str(ranks)) as server:
        assert server.ask("/v1/rerank", RANKED).status == 200
        file.write_text("idle-unload = 0.01\n")  # minutes
        server.process.send_signal(signal.SIGHUP)
        until(lambda: "again: " in server.logged())
        children = server.children("edgespec.llama.embedding_child")
        assert len(children) == 1 and server.ask("/v1/rerank", RANKED).status == 200
        until(lambda: not any(child.is_running() for child in children))


def test_what_cannot_be_ranked_is_reported_in_one_sentence(dialects: Served) -> None:
    for body, words, status in (
        ({"documents": ["a"]}, "query is missing", 400),
        ({"query": "a", "documents": [7]}, "documents.0 is 7", 400),
        ({"query": "a", "documents": ["a"], "top_n": -1}, "top_n is -1", 400),
        ({"query": "a", "documents": ["a"]}, "start `edgespec serve --rerank FILE.gguf`", 501),
    ):
        answered = dialects.ask("/v1/rerank", body)
        assert answered.status == status and words in answered.error["message"]


@pytest.mark.slow
def test_a_file_of_the_other_kind_is_refused_before_it_is_loaded(tmp_path: Path, model: Path) -> None:
    ranks = write_reranker(tmp_path / "ranks.gguf")
    assert "ranks.gguf is no embedding model" in refused("serve", "--embed", ranks, code=1)
    assert "mean.gguf is no reranker: its file" in refused("serve", "--rerank", model, code=1)
    no_classes = write_llama(tmp_path / "no.gguf", metadata={"llama.pooling_type": 4})
    assert "no.gguf is no reranker: its file" in refused("serve", "--rerank", no_classes, code=1)
