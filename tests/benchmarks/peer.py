"""llama-server as a peer: started on the same two files, given the same tokens, timed by its own clock.

Its speed is that of its `timings` field: decoding alone, without HTTP and without the first token, which
comes from the prompt's evaluation. Invariant: the server never outlives this process (see `keeper`).
Protocol: https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import IO, Any

import keeper
from peer_command import HOST, NAME, PeerError, PeerSettings, command, environment

from edgespec.sampling.settings import NUMBERS, Sampling

LOADING_S = 300.0  # a large model from a slow disk
DYING_S = 1.0  # its death is known a moment after its silence
GLANCE_S = 0.05  # how often a cancellation is checked


@dataclass(frozen=True, slots=True)
class Completion:
    """One answer of the peer, and its time by the peer's own clock (wall_s: by ours, HTTP included).

    steps: tokens that decode_s was spent on: all but the first; an end token is one of them.
    """

    text: str
    tokens: tuple[int, ...]
    n_prompt: int
    prompt_s: float
    steps: int
    decode_s: float
    wall_s: float
    drafted: int
    accepted: int
    finish_reason: str


class LlamaServer:
    """A running llama-server. Use it in a `with`, or close it; one request at a time.

    cancelled: asked while it loads and while it answers; once true, what is running raises PeerError.
    Raises PeerError, one sentence, for whatever goes wrong with it.
    """

    def __init__(self, settings: PeerSettings, *, cancelled: Callable[[], bool] = lambda: False) -> None:
        self.settings, self._cancelled = settings, cancelled
        self._log: IO[bytes] = tempfile.TemporaryFile(prefix="edgespec-peer-")
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self.port = _free_port()
            self._process = _start(command(settings, self.port), self._log)
            self._wait_until_ready()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> LlamaServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """The process that keeps the server, which is its only child."""
        return self._process.pid if self._process else None

    def close(self) -> None:
        """Ends the server, by force if it does not end at once. May be called twice."""
        process, self._process = self._process, None
        if process is not None:
            assert process.stdin is not None
            process.stdin.close()  # the keeper ends it
            try:
                process.wait(2 * keeper.GRACE_S)
            except subprocess.TimeoutExpired:
                if os.name == "posix":
                    os.killpg(process.pid, signal.SIGKILL)
                else:
                    process.kill()
                process.wait()
        self._log.close()

    def complete(
        self,
        prompt: str | Sequence[int],
        *,
        sampling: Sampling,
        max_tokens: int,
        seed: int = 0,
        stop: Sequence[str] = (),
    ) -> Completion:
        """Answers `prompt` (text, or token ids, taken as they are) with an empty cache."""
        asked = {
            "prompt": prompt if isinstance(prompt, str) else [int(token) for token in prompt],
            "n_predict": max_tokens,
            "seed": seed & 0x7FFFFFFF,
            "stop": list(stop),
            "cache_prompt": False,
            "return_tokens": True,
            **_sampling(sampling),
        }
        started = time.perf_counter()
        said = self._ask("POST", "/completion", asked)
        return _completion(said, time.perf_counter() - started)

    def _wait_until_ready(self) -> None:
        until = time.monotonic() + LOADING_S
        while time.monotonic() < until:
            if self._cancelled():
                raise PeerError(f"{NAME} was not waited for")
            self._check_alive("while it was loading the models")
            try:
                status, _ = _exchange(self.port, "GET", "/health", None)
            except (OSError, http.client.HTTPException):
                status = 0  # it does not listen yet
            if status == 200:
                return
            time.sleep(GLANCE_S)
        raise PeerError(f"{NAME} was not ready after {LOADING_S:.0f} s: try it by itself")

    def _check_alive(self, when: str) -> None:
        code = self._process.poll() if self._process else 0
        if code is not None:
            raise PeerError(f"{NAME} ended {when} (code {code}): {self._last_words()}")

    def _ask(self, method: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Sends a request from its own thread, so that a cancellation need not wait for the answer."""
        outcome: list[tuple[int, bytes] | Exception] = []

        def exchange() -> None:
            try:
                outcome.append(_exchange(self.port, method, path, json.dumps(body).encode()))
            except (OSError, http.client.HTTPException) as error:
                outcome.append(error)

        thread = threading.Thread(target=exchange, daemon=True)
        thread.start()
        while thread.is_alive():
            thread.join(GLANCE_S)
            if self._cancelled():
                self.close()
                raise PeerError(f"the request to {NAME} was cancelled")
        answer = outcome[0]
        if isinstance(answer, Exception):
            until = time.monotonic() + DYING_S
            while time.monotonic() < until:
                self._check_alive("while it answered")
                time.sleep(GLANCE_S)
            raise PeerError(f"{NAME} does not answer: {answer}")
        return _understood(*answer)

    def _last_words(self) -> str:
        self._log.seek(0)
        lines = [line.strip() for line in self._log.read().decode("utf-8", "replace").splitlines()]
        said = [line for line in lines if line]
        telling = [line for line in said if "error" in line.lower() or "failed" in line.lower()]
        return (telling or said or ["it gave no reason"])[-1][:300]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _start(words: Sequence[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
    """Starts the server under a keeper, in a group that Ctrl+C on our terminal does not reach."""
    apart: dict[str, Any] = {"start_new_session": True}
    if sys.platform == "win32":
        apart = {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
    return subprocess.Popen(
        [sys.executable, "-I", keeper.__file__, *words],
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=subprocess.STDOUT,
        env=environment(),
        **apart,
    )


def _exchange(port: int, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
    with closing(http.client.HTTPConnection(HOST, port)) as connection:
        connection.request(method, path, body, {"Content-Type": "application/json"} if body else {})
        response = connection.getresponse()
        return response.status, response.read()


def _understood(status: int, body: bytes) -> dict[str, Any]:
    try:
        said = json.loads(body)
    except ValueError:
        raise PeerError(f"{NAME} answered {status} with something that is not JSON") from None
    if status != 200 or not isinstance(said, dict) or "timings" not in said:
        error = said.get("error", said) if isinstance(said, dict) else said
        message = error.get("message", error) if isinstance(error, dict) else error
        raise PeerError(f"{NAME} answered {status}: {str(message)[:300]}")
    return said


def _sampling(sampling: Sampling) -> dict[str, Any]:
    """Returns the sampling under llama-server's names; all of it, because its defaults differ."""
    return {
        **{name: getattr(sampling, name) for name in NUMBERS},
        "top_n_sigma": sampling.top_n_sigma or -1.0,
        "repeat_last_n": sampling.penalty_last_n,
        "dry_sequence_breakers": list(sampling.dry_sequence_breakers),
        "samplers": list(sampling.samplers),
        "logit_bias": [
            [token, False if bias == -float("inf") else bias] for token, bias in sampling.logit_bias.items()
        ],
    }


def _completion(said: dict[str, Any], wall_s: float) -> Completion:
    try:
        timings = said["timings"]
        reason = {"eos": "stop", "word": "stop", "limit": "length"}.get(said.get("stop_type", ""), "none")
        return Completion(
            text=str(said["content"]),
            tokens=tuple(said.get("tokens", ())),
            n_prompt=int(timings["prompt_n"]),
            prompt_s=timings["prompt_ms"] / 1000,
            steps=max(0, int(timings["predicted_n"]) - 1),
            decode_s=timings["predicted_ms"] / 1000,
            wall_s=wall_s,
            drafted=int(timings.get("draft_n", 0)),
            accepted=int(timings.get("draft_n_accepted", 0)),
            finish_reason=reason,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise PeerError(f"{NAME} gave an answer that is not understood ({error!r})") from None
