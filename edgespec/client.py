"""The endpoint seen from Python: a conversation in, rounds out, over HTTP. Standard library only.

    for server in Client.found():
        for round_ in server.chat([{"role": "user", "content": "What is EdgeSpec?"}]):
            print(round_.text, end="")

Another OpenAI-style server works too (`Client(host, port)`); it tells no rounds: each piece of text is one.
"""

from __future__ import annotations

import http.client
import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from edgespec.errors import EndpointError
from edgespec.events import FinishReason, Round
from edgespec.state_file import PROOF_PATH, states

PROOF_S = 2.0  # what a server on this machine has for its proof
SILENCE_S = 300.0  # without a word, a ping included


@dataclass(slots=True)
class Client:
    """One endpoint. model, timings: of the last answer, once it has ended."""

    host: str
    port: int
    key: str | None = field(default=None, repr=False)
    model: str = ""
    timings: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def found(cls) -> list[Client]:
        """Returns the running servers of this user, the newest first. Each has proved that it is one."""
        return [
            cls(state.host, state.port, state.key, state.model)
            for state in states()
            if state.proves(nonce := secrets.token_urlsafe(32), _proof(state.host, state.port, nonce))
        ]

    def chat(self, messages: Sequence[Mapping[str, Any]], **wishes: Any) -> Iterator[Round]:
        """Yields the rounds of an answer; closing the iterator cancels it. wishes: fields of the request.

        Raises EndpointError where the server refuses, fails in the middle, or is not there.
        """
        how = {"events": True, **wishes.pop("edgespec", {})}
        body = {"messages": list(messages), "stream": True, "edgespec": how, **wishes}
        connection = http.client.HTTPConnection(self.host, self.port, timeout=SILENCE_S)
        headers = {"content-type": "application/json"}
        if self.key:
            headers["authorization"] = f"Bearer {self.key}"
        try:
            connection.request("POST", "/v1/chat/completions", json.dumps(body).encode(), headers)
            answer = connection.getresponse()
            if answer.status != 200:
                raise EndpointError(_complaint(answer.read(), answer.status))
            yield from self._rounds(answer)
        except (OSError, http.client.HTTPException) as error:
            where = f"http://{self.host}:{self.port}"
            raise EndpointError(f"{where} does not answer ({error}): is it running?") from None
        finally:
            connection.close()

    def _rounds(self, answer: http.client.HTTPResponse) -> Iterator[Round]:
        ended = False
        for line in answer:
            if not line.startswith(b"data: "):
                continue
            data = line[6:].strip()
            if data == b"[DONE]":
                return
            chunk = json.loads(data)
            if "error" in chunk:
                raise EndpointError(_complaint(data, 200))
            self.model = chunk.get("model", self.model)
            self.timings = chunk.get("timings", self.timings)
            if chunk["choices"] and (round_ := _round(chunk)):
                ended = ended or round_.finish is not None
                yield round_
        if not ended:
            raise EndpointError("the server ended in the middle of its answer: ask again")


def _round(chunk: Mapping[str, Any]) -> Round | None:
    """Returns what a chunk tells; None for one that tells nothing."""
    choice = chunk["choices"][0]
    text, finish = choice["delta"].get("content") or "", choice.get("finish_reason")
    told = chunk.get("edgespec")
    if not (text or finish or told):
        return None
    told = told or {}
    known: FinishReason | None = finish if finish in ("stop", "length", None) else "stop"
    return Round(
        tokens=tuple(told.get("tokens", ())),
        text=text,
        drafted=told.get("drafted", 0),
        accepted=told.get("accepted", 0),
        sources=tuple(told.get("sources", ())),
        finish=known,
        gain=told.get("gain", 1.0),
    )


def _complaint(body: bytes, status: int) -> str:
    """Returns the sentence of an error answer."""
    with suppress(ValueError, KeyError, TypeError):
        return str(json.loads(body)["error"]["message"])
    return f"the server answered {status} without a reason"


def _proof(host: str, port: int, nonce: str) -> str:
    """Asks for the proof of a nonce; "" where there is none."""
    connection = http.client.HTTPConnection(host, port, timeout=PROOF_S)
    try:
        connection.request("GET", f"{PROOF_PATH}?nonce={nonce}")
        return str(json.loads(connection.getresponse().read(10_000))["proof"])
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
        return ""
    finally:
        connection.close()
