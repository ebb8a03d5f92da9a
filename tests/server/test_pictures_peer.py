"""Pictures give llama-server's tokens, counts and log probabilities, on the same files.

EDGESPEC_TEST_PEER=PATH/llama-server python -m pytest tests/server/test_pictures_peer.py -m slow
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, get_args

import pytest
from served import served, until
from tiny_projector import Kind, encoded, message, png, write_seeing

PEER = os.environ.get("EDGESPEC_TEST_PEER")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PEER, reason="EDGESPEC_TEST_PEER names no llama-server"),
]
KINDS: tuple[Kind, ...] = ("gemma3", "qwen2vl_merger", "hunyuanvl", "idefics3")
PROMPTS = (
    "Look: <__media__> What is it?",
    "<__media__><__media__> the people",
    "a <__media__> b <__media__> c",
)
CLOSE = 2e-3  # of log probabilities: both sum in another order


def ask(url: str, path: str, body: object) -> Any:
    request = urllib.request.Request(
        url + path, json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


@contextmanager
def llama_server(target: Path, projector: Path) -> Iterator[str]:
    """Runs the peer with a projector."""
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    flags = ["--port", str(port), "-c", "1024", "-np", "1", "-t", "1", "--no-warmup"]
    process = subprocess.Popen(
        [PEER or "", "-m", str(target), "--mmproj", str(projector), *flags],
        env={**os.environ, "LLAMA_MEDIA_MARKER": "<__media__>"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    url = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        assert process.poll() is None
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=1) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    try:
        until(answers, 60)
        yield url
    finally:
        process.terminate()
        process.wait(20)


@pytest.mark.parametrize("kind", KINDS)
def test_a_picture_gives_what_llama_server_gives(kind: Kind, tmp_path: Path) -> None:
    assert kind in get_args(Kind)
    target, projector = write_seeing(tmp_path, kind)
    files = [encoded(png()), encoded(png(200, 60, (10, 200, 90)))]
    asked = [
        {
            "prompt": {"prompt_string": text, "multimodal_data": files[: text.count("media")]},
            "n_predict": 12,
            "temperature": 0,
            "n_probs": 5,
            "ignore_eos": True,
        }
        for text in PROMPTS
    ]
    texts = ("What is it?", "the people and the")
    chats = [{"messages": message(text, png()), "max_tokens": 12, "temperature": 0} for text in texts]
    with llama_server(target, projector) as url:
        theirs = [ask(url, "/completion", body) for body in asked]
        their_chats = [ask(url, "/v1/chat/completions", body) for body in chats]
    with served(tmp_path, "--target", str(target), "--mmproj", str(projector), "--ctx", "512") as server:
        url = server.url.removesuffix("/v1")
        ours = [ask(url, "/completion", body) for body in asked]
        our_chats = [ask(url, "/v1/chat/completions", body) for body in chats]
    for our, their in zip(ours, theirs, strict=True):
        assert our["tokens_evaluated"] == their["tokens_evaluated"]
        assert our["tokens"] == their["tokens"]
        ours_in_order = iter(our["completion_probabilities"])
        for other in their["completion_probabilities"]:  # which has none of half a character
            one = next(one for one in ours_in_order if one["id"] == other["id"])
            tops = [{top["id"]: top["logprob"] for top in of["top_logprobs"]} for of in (one, other)]
            assert tops[0] == pytest.approx(tops[1], abs=CLOSE)
    for our, their in zip(our_chats, their_chats, strict=True):
        assert our["usage"]["prompt_tokens"] == their["usage"]["prompt_tokens"]
        assert our["choices"][0]["message"]["content"] == their["choices"][0]["message"]["content"]
