"""Requests drawn from the endpoint's own OpenAPI document, by schemathesis."""

from __future__ import annotations

from collections import Counter
from typing import Any

from served import Served

OPERATIONS = (
    "POST /v1/chat/completions", "POST /v1/completions", "POST /edgespec/count",
    "POST /v1/messages", "POST /v1/responses", "POST /completion", "POST /infill",
)  # fmt: skip


def ask(server: Served, named: str, examples: int, seed: int | None = None) -> Counter[int]:
    """Sends so many drawn requests of one operation; returns how often each status came.

    seed: draws others than usual.
    """
    import hypothesis  # late: the two take seconds
    import schemathesis
    from hypothesis import HealthCheck, Phase

    schema = schemathesis.openapi.from_url(server.url.removesuffix("/v1") + "/openapi.json")
    operations = (found.ok() for found in schema.get_all_operations())
    [operation] = [one for one in operations if f"{one.method.upper()} {one.path}" == named]
    statuses: Counter[int] = Counter()

    @hypothesis.seed(seed or 0)
    @hypothesis.settings(
        max_examples=examples, deadline=None, database=None, derandomize=seed is None,
        phases=[Phase.generate], suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @hypothesis.given(case=operation.as_strategy())
    def run(case: Any) -> None:
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
