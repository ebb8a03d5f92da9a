"""Requests drawn from the endpoint's own OpenAPI document: whatever they hold, nothing is a fault of ours."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import Case
from served import Served, served

OPERATIONS = (
    "POST /v1/chat/completions", "POST /v1/completions", "POST /edgespec/count",
    "POST /v1/messages", "POST /v1/responses", "POST /completion", "POST /infill",
)  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("server"), "--ctx", "64", "--max-seconds", "20") as server:
        yield server


def ask(server: Served, named: str, examples: int) -> Counter[int]:
    """Sends so many drawn requests of one operation; returns how often each status came."""
    schema = schemathesis.openapi.from_url(server.url.removesuffix("/v1") + "/openapi.json")
    operations = (found.ok() for found in schema.get_all_operations())
    [operation] = [one for one in operations if f"{one.method.upper()} {one.path}" == named]
    statuses: Counter[int] = Counter()

    @settings(
        max_examples=examples, deadline=None, database=None, derandomize=True, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(case=operation.as_strategy())
    def run(case: Case) -> None:
        answered = case.call()
        statuses[answered.status_code] += 1
        assert answered.status_code in (200, 400), (case.body, answered.text)
        if answered.status_code == 400:
            error = answered.json()["error"]
            assert error["message"] and error["type"] in (
                "invalid_request_error",
                "exceed_context_size_error",
            )

    run()
    return statuses


@pytest.mark.parametrize("operation", OPERATIONS[:2])
def test_nothing_is_a_fault(server: Served, operation: str) -> None:
    ask(server, operation, 10)
    assert "Traceback" not in server.said() and server.chat(max_tokens=2).status == 200


@pytest.mark.slow
@pytest.mark.parametrize("operation", OPERATIONS)
def test_nothing_is_a_fault_at_length(server: Served, operation: str) -> None:
    worker = server.worker.pid
    statuses = ask(server, operation, 600)
    assert statuses[200] > 50 and statuses[400] > 50
    assert server.worker.pid == worker and "Traceback" not in server.said()
    assert server.metric("edgespec_requests_running") == 0
