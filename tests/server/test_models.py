"""Which pair is loaded: listed, changed on request or by naming another, and found again afterwards."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Timer

import pytest
from late import openai
from served import NO_END, Served, served, until
from tiny_gguf import write_llama

from edgespec.client.client import AnswerOptions, Client, Ended
from edgespec.errors import EndpointError
from edgespec.local.attach import WantedEngine
from edgespec_models import tiny
from edgespec_models.shelf.store import InstalledModel, InstalledPair, Store

HELLO = [{"role": "user", "content": "What is EdgeSpec?"}]
LONG = AnswerOptions(sampling={"temperature": 2}, max_tokens=300, extra={"logit_bias": NO_END})


def install(store: Store, name: str, target: Path) -> None:
    model = InstalledModel((str(target),), target.stat().st_size if target.exists() else 1)
    store.add(InstalledPair(name, model, None, "imported", 0.0))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("server")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Served]:
    store = Store(folder / "data")
    install(store, "other", write_llama(folder / "two.gguf", seed=2))
    install(store, "gone", folder / "nothing.gguf")
    broken = folder / "broken.gguf"
    broken.write_bytes(b"GGUF\x03\0\0\0" + bytes(100))
    install(store, "broken", broken)
    places = {"EDGESPEC_DATA_DIR": str(folder / "data"), "EDGESPEC_STATE_DIR": str(folder / "state")}
    files = ("--target", str(tiny.target_path()), "--draft", str(tiny.draft_path()))
    with served(folder, *files, "--alias", "first", "--ctx", "512", "--models-max", "1", **places) as server:
        yield server


@pytest.fixture
def client(server: Served, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Client:
    monkeypatch.setenv("EDGESPEC_STATE_DIR", str(folder / "state"))
    [client] = Client.found()
    list(client.load("first", force=True))
    return client


def test_pairs_are_listed_the_loaded_one_first(server: Served, client: Client) -> None:
    first, *others = client.models()
    assert first.model == "first" and first.loaded and first.embedded and first.plain_s
    assert {info.model for info in others} == {"other", "broken"}
    assert not any(info.loaded for info in others) and others[0].n_ctx is None
    with openai.OpenAI(base_url=server.url, api_key="x") as client:
        assert [model.id for model in client.models.list().data][0] == "first"
    answer = server.ask("/edgespec/models").json
    assert answer["engine"]["state"] == "ready" and answer["engine"]["model"] == "first"
    assert str(server.log.parent) not in json.dumps(answer)


def test_another_pair_is_loaded_with_progress_and_found_by_its_file(
    server: Served, client: Client, folder: Path
) -> None:
    states = list(client.load("other"))
    assert states[-1].state == "ready" and states[-1].model == "other" and states[-1].progress == 1
    loading = [state for state in states if state.state == "loading"]
    assert loading and loading[0].model == "other"
    assert client.info().model == "other" and server.logged().count("loading two.gguf") >= 1

    def found() -> bool:
        [now] = Client.found()
        return bool(now.state) and WantedEngine(target=folder / "two.gguf").is_met(now.state)

    until(found)
    [_, *states] = client.unload()
    assert states[-1].state == "unloaded" and not any(info.loaded for info in client.models())
    assert server.ask("/health").status == 200
    *_, ended = client.chat(HELLO, AnswerOptions(max_tokens=2, model="first"))  # loads it again
    assert isinstance(ended, Ended) and ended.model == "first"
    list(client.unload())
    *_, ended = client.chat(HELLO, AnswerOptions(max_tokens=2))
    assert isinstance(ended, Ended)
    until(lambda: "first is loaded again" in server.logged())


def test_a_request_that_names_another_pair_waits_for_those_before_it(client: Client) -> None:
    """What runs is not cut off, and the names of nobody's pairs do not switch."""

    def answer(model: str, options: AnswerOptions = LONG) -> tuple[Ended, float]:
        *_, ended = client.chat(HELLO, AnswerOptions(options.sampling, 300, extra=options.extra, model=model))
        assert isinstance(ended, Ended)
        return ended, time.monotonic()

    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(answer, "first")
        until(lambda: b'"requests":1' in client_state(client))
        other = pool.submit(answer, "other")
        until(lambda: b'"next":"other"' in client_state(client))
        nobodys = pool.submit(answer, "gpt-5")
        (one, at), (two, later), (three, _) = first.result(), other.result(), nobodys.result()
    assert (one.model, one.n_tokens) == ("first", 300)
    assert (two.model, later > at) == ("other", True)
    assert three.model in ("first", "other") and three.finish in ("length", "stop")


def client_state(client: Client) -> bytes:
    with client.server.connected(5) as connection:
        return client.server.ask(connection, "GET", "/edgespec/models", None, root=True).read()


def test_a_forced_switch_ends_what_runs(client: Client) -> None:
    answer = client.chat(HELLO, AnswerOptions(LONG.sampling, 500, extra=LONG.extra))
    next(answer)
    Timer(0.2, lambda: list(client.load("other", force=True))).start()
    with pytest.raises(EndpointError, match="unloaded by force"):
        list(answer)
    until(lambda: (now := client.info()).model == "other" and now.loaded)


def test_a_client_that_leaves_while_it_waits_for_a_pair_has_nothing_loaded(
    server: Served, client: Client
) -> None:
    running = client.chat(HELLO, AnswerOptions(LONG.sampling, 500, extra=LONG.extra))
    next(running)
    waiting = client.chat(HELLO, AnswerOptions(max_tokens=2, model="other"))
    Timer(0.3, waiting.cancel).start()
    assert [ended for ended in waiting if isinstance(ended, Ended)][-1].finish == "cancelled"
    until(lambda: b'"next":null' in client_state(client))
    running.close()
    time.sleep(0.2)
    assert client.info().model == "first"


def test_what_cannot_be_loaded_is_stated_and_what_was_there_comes_back(
    server: Served, client: Client
) -> None:
    for model, status, words in (
        ("nobody", 404, "no pair 'nobody' is installed"),
        ("gone", 409, "nothing.gguf of pair gone is gone"),
        ("../first", 404, "no pair"),
        ("broken", 503, "broken.gguf"),
    ):
        refused = server.ask("/edgespec/models", {"model": model})
        assert refused.status == status and words in refused.error["message"], refused
        with pytest.raises(EndpointError, match=words.replace("'", ".")):
            list(client.load(model))
    *_, ended = client.chat(HELLO, AnswerOptions(max_tokens=2))
    assert isinstance(ended, Ended) and ended.model == "first"
    assert server.ask("/edgespec/models", {"action": "explode"}).status == 400
    assert server.worker.is_running() and os.path.basename(server.worker.exe())
