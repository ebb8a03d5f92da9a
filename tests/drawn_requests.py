"""Requests drawn from the endpoint's own OpenAPI document, by schemathesis."""

from __future__ import annotations

import warnings
from collections import Counter
from typing import Any

from served import Served

OPERATIONS = (
    "POST /v1/chat/completions", "POST /v1/completions", "POST /edgespec/count",
    "POST /v1/messages", "POST /v1/responses", "POST /completion", "POST /infill",
)  # fmt: skip
# the rest of the dialects, with the statuses that refusals may have
OTHERS = {
    "POST /api/chat": {400, 404, 501},
    "POST /api/generate": {400, 404, 501},
    "POST /api/embed": {400},
    "POST /api/embeddings": {400},
    "POST /api/show": {400, 404},
    "POST /v1/embeddings": {400},
    "POST /embeddings": {400},
    "POST /v1/rerank": {400},
    "POST /v1/chat/completions/input_tokens": {400},
    "POST /v1/fim/completions": {400},
    "POST /v1/messages/count_tokens": {400},
    "POST /v1/responses/input_tokens": {400},
    "POST /tokenize": {400},
    "POST /detokenize": {400},
    "POST /apply-template": {400},
    "POST /lora-adapters": {400},
    "POST /slots/{slot}": {400, 404},
    "GET /slots": {400, 503},
    "GET /props": {400},
    "GET /v1/models/{name}": {400, 404},
    "POST /edgespec/models": {400, 404, 503},
    "POST /models/load": {400, 404},
    "POST /models/unload": {400, 404},
}


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
        if "/api/" in named and isinstance(case.body, dict):
            case.body["model"] = "embedded"  # which nothing would be answered without
        answered = case.call()
        statuses[answered.status_code] += 1
        if answered.status_code != 200:
            assert answered.status_code in OTHERS.get(named, {400}), (case.body, answered.text)
            error = answered.json()["error"]
            assert error if "/api/" in named else error["message"] and error["type"], answered.text

    with (
        warnings.catch_warnings()
    ):  # schemathesis draws by `random` in places, which hypothesis sometimes notices
        warnings.simplefilter("ignore", hypothesis.errors.HypothesisDeprecationWarning)
        run()
    return statuses
