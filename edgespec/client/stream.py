"""A streamed answer: server-sent events in, rounds and their end out. May be cancelled from any thread."""

import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from typing import Any

from edgespec.client.answer import Ended, Reading, Spans, StreamedRound
from edgespec.client.connection import LARGEST_ANSWER, Server, complaint
from edgespec.core.stats import Counts
from edgespec.core.values import Round
from edgespec.errors import EndpointError, EndpointLostError

SILENCE_S = 300.0  # not even a ping: other servers send none while they read a prompt


class AnswerStream(AbstractContextManager["AnswerStream"]):
    """One answer. Iterate it once, in one thread; `cancel` it from any; closing it cancels it too.

    After a cancellation iterating ends with `Ended("cancelled")`, with the figures as far as they are known.
    """

    def __init__(
        self,
        server: Server,
        path: str,
        body: Mapping[str, Any],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._server, self._path, self._body, self._clock = server, path, body, clock
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._cancelled = False
        self._figures = _Figures()
        self._spans = Spans()
        self._events = self._run()

    def __iter__(self) -> Iterator[StreamedRound | Ended]:
        return self

    def __next__(self) -> StreamedRound | Ended:
        return next(self._events)

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Cancels what has not ended. Only for the thread that iterates; others call `cancel`."""
        self.cancel()
        self._events.close()

    def cancel(self) -> None:
        """Ends the answer, here and in the engine, also while another thread waits for its next round."""
        with self._lock:
            self._cancelled = True
            if self._socket is not None:
                with suppress(OSError):  # not TLS's own goodbye, which the reading thread might be in
                    socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def _run(self) -> Generator[StreamedRound | Ended]:
        began = self._clock()
        try:
            with self._server.connected(SILENCE_S) as connection:
                connection.connect()
                with self._lock:
                    self._socket = connection.sock
                if not self._cancelled:
                    yield from self._told(connection, began)
        except (EndpointLostError, ValueError):  # ValueError: a socket that was shut inside TLS
            if not self._cancelled:
                raise
        finally:
            with self._lock:
                self._socket = None
        if self._cancelled and not self._figures.finish:
            self._figures.finish = "cancelled"
        yield self._figures.ended()

    def _told(self, connection: http.client.HTTPConnection, began: float) -> Iterator[StreamedRound]:
        for data in sent_events(self._server.ask(connection, "POST", self._path, self._body)):
            if data == b"[DONE]":
                return
            chunk = chunk_of(data)
            self._figures.note(chunk)
            told = self._round(chunk)
            if told:
                if not told.reading:
                    self._figures.seen(told, began)
                yield told
        if not self._figures.finish and not self._cancelled:
            raise EndpointLostError(f"{self._server.where} went away in the middle of its answer: ask again")

    def _round(self, chunk: Mapping[str, Any]) -> StreamedRound | None:
        """Returns the round of a chunk, or how far the prompt has been read; None if it has neither."""
        if reading := _reading(chunk.get("prompt_progress")):
            return StreamedRound(Round((), "", 0, 0, ()), at=self._clock(), reading=reading)
        choice = next(iter(chunk.get("choices") or ()), None)
        if not isinstance(choice, dict):
            return None
        delta = choice.get("delta") or {}
        text = delta.get("content") or ""
        reasoning = delta.get("reasoning_content") or delta.get("reasoning") or ""
        calls = tuple(call for call in delta.get("tool_calls") or () if isinstance(call, dict))
        told = chunk.get("edgespec") or {}
        if not (text or reasoning or calls or told):
            return None
        round_ = Round(
            tokens=tuple(told.get("tokens", ())),
            text=text,
            drafted=told.get("drafted", 0),
            accepted=told.get("accepted", 0),
            sources=tuple(told.get("sources", ())),
            gain=told.get("gain", 1.0),
            notice=told.get("notice", ""),
            seconds=told.get("seconds", 0.0),
        )
        pieces = tuple(told.get("pieces", ()))
        self._spans.take(reasoning, pieces, round_.sources)  # reasoning comes before the answer
        return StreamedRound(
            round_,
            at=self._clock(),
            pieces=pieces,
            reasoning=reasoning,
            number=told.get("round", 0),
            spans=self._spans.take(text, (), ()),
            tool_calls=calls,
        )


def _reading(said: object) -> Reading | None:
    """Returns llama-server's `prompt_progress`; None if it is none."""
    if not isinstance(said, dict):
        return None
    found = [said.get(name) for name in ("total", "processed", "cache", "time_ms")]
    total, done, cached, ms = (value if isinstance(value, int) else -1 for value in found)
    return Reading(total, done, cached, ms / 1000) if min(total, done, cached, ms) >= 0 else None


def sent_events(answer: http.client.HTTPResponse) -> Iterator[bytes]:
    """Yields the data of server-sent events; several lines of one event are one."""
    held: list[bytes] = []
    while line := answer.readline(LARGEST_ANSWER):
        field, _, value = line.rstrip(b"\r\n").partition(b":")
        if field == b"data":
            held.append(value.removeprefix(b" "))
        elif not field and not value and held:
            yield b"\n".join(held)
            held.clear()
    if held:
        yield b"\n".join(held)


def chunk_of(data: bytes) -> dict[str, Any]:
    """Returns the object of an event; raises the error that it stands for."""
    try:
        chunk = json.loads(data)
    except ValueError:
        raise EndpointError(f"the server sent something other than JSON: {data[:60]!r}") from None
    if not isinstance(chunk, dict):
        raise EndpointError(f"the server sent something other than an answer: {data[:60]!r}")
    if chunk.get("error"):
        raise complaint(data, 0)
    return chunk


class _Figures:
    """The figures of an answer so far."""

    def __init__(self) -> None:
        self.finish = ""
        self._model = ""
        self._usage: Mapping[str, Any] = {}
        self._timings: Mapping[str, Any] = {}
        self._n_ctx: int | None = None
        self._ttft: float | None = None
        self._first = self._last = 0.0
        self._of_first = 0
        self._counts = Counts()
        self._rounds = False

    def note(self, chunk: Mapping[str, Any]) -> None:
        """Keeps what a chunk says besides text."""
        self._model = chunk.get("model") or self._model
        self._usage = chunk.get("usage") or self._usage
        self._timings = chunk.get("timings") or self._timings
        for choice in chunk.get("choices") or ():
            self.finish = (choice.get("finish_reason") if isinstance(choice, dict) else None) or self.finish

    def seen(self, told: StreamedRound, began: float) -> None:
        """Counts a round at the moment it was received."""
        if self._ttft is None:
            self._ttft, self._first = told.at - began, told.at
            self._of_first = len(told.round.tokens)
        self._last = told.at
        self._rounds = self._rounds or told.number > 0
        self._counts.count(told.round)

    def ended(self) -> Ended:
        """Returns the end, with the server's own figures if it gave them, else those seen here."""
        usage, timings = self._usage, self._timings
        details = usage.get("prompt_tokens_details") or {}
        seen = self._counts.n_tokens if self._rounds else None
        n = timings.get("predicted_n", usage.get("completion_tokens", seen))
        measured, estimated = timings.get("speedup_measured"), timings.get("speedup_estimated")
        prompt_ms = timings.get("prompt_ms")
        return Ended(
            finish=self.finish or "stop",
            model=self._model,
            prompt_tokens=usage.get("prompt_tokens"),
            cached_tokens=timings.get("cache_n", details.get("cached_tokens")),
            n_tokens=n,
            n_ctx=timings.get("n_ctx"),
            ttft_s=self._ttft,
            tpot_s=self._tpot(n),
            prompt_s=prompt_ms / 1000 if prompt_ms is not None else None,
            drafted=timings.get("draft_n", self._counts.drafted if self._rounds else None),
            accepted=timings.get("draft_n_accepted", self._counts.accepted if self._rounds else None),
            speedup=estimated if measured is None else measured,
            speedup_is="measured" if measured is not None else "estimated" if estimated is not None else None,
        )

    def _tpot(self, n: int | None) -> float | None:
        """Returns seconds per token after the first: by the server's clock, else by ours."""
        told = self._timings.get("predicted_ms")
        seconds = told / 1000 if told else self._last - self._first
        after = (n or 0) - (1 if told else max(1, self._of_first))
        return seconds / after if after > 0 and seconds > 0 else None
