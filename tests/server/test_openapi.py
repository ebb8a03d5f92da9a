"""Requests drawn from the endpoint's own OpenAPI document: whatever they contain, nothing is our fault."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from drawn_requests import OPERATIONS, OTHERS, ask
from served import Served, served
from tiny_gguf import write_llama, write_reranker


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("server")
    embed = write_llama(folder / "mean.gguf", metadata={"llama.pooling_type": 1})
    rerank = write_reranker(folder / "ranks.gguf")
    models = ("--embed", str(embed), "--rerank", str(rerank))
    flags = ("--ctx", "64", "--max-seconds", "20", "--slot-save-path", str(folder))
    with served(folder, *models, *flags) as server:
        yield server


@pytest.mark.sample(1)
@pytest.mark.parametrize("operation", OPERATIONS[:2])
def test_nothing_is_a_fault(server: Served, operation: str) -> None:
    ask(server, operation, 5)
    assert "Traceback" not in server.logged() and server.chat(max_tokens=2).status == 200


@pytest.mark.slow
@pytest.mark.parametrize("operation", OPERATIONS)
def test_nothing_is_a_fault_at_length(server: Served, operation: str) -> None:
    worker = server.worker.pid
    statuses = ask(server, operation, 600)
    assert statuses[200] > 50 and statuses[400] > 50
    assert server.worker.pid == worker and "Traceback" not in server.logged()
    assert server.metric("edgespec_requests_running") == 0


@pytest.mark.slow
@pytest.mark.parametrize("operation", OTHERS)
def test_nothing_is_a_fault_of_the_other_dialects(server: Served, operation: str) -> None:
    statuses = ask(server, operation, 300)
    assert statuses[200] or operation.startswith(("POST /models/", "POST /slots", "GET /v1/models/")), (
        statuses
    )
    assert "Traceback" not in server.logged() and server.chat(max_tokens=2).status == 200
