"""`edgespec serve --reproducible`: the same request, the same bytes, whatever was asked before and beside."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from served import Served, served


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("reproducible"), "--reproducible") as server:
        yield server


def asked(server: Served, i: int, **more: Any) -> Any:
    """Returns text and scores of one of several requests."""
    body = {
        "prompt": "def read(path):\n" * (1 + 9 * (i % 3)) + f"# {i}\n", "n_predict": 12, "n_probs": 1,
        "temperature": 0.8 * (i % 2), "seed": i,
    }  # fmt: skip
    return server.ask("/completion", {**body, **more}).json["completion_probabilities"]


def test_requests_one_by_one_all_at_once_and_one_by_one_again_are_the_same(server: Served) -> None:
    """0 to 7 of 40 texts differed on a warm server, some at temperature 0."""
    first = [asked(server, i) for i in range(12)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda i: asked(server, i), range(12))) == first
    order = random.Random(1).sample(range(12), 12)
    for i in order:
        asked(server, i + 1, cache_prompt=True, edgespec={"drafter": "model"})  # who does not care
        assert asked(server, i) == first[i]


@pytest.mark.parametrize("more", [["--slots", "4"], ["--drafter", "model"]])
def test_what_it_leaves_out_cannot_be_asked_for(more: list[str]) -> None:
    command = [sys.executable, "-m", "edgespec", "serve", "--reproducible", *more]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and f"leave out {' '.join(more)}" in done.stderr
