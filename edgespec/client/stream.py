"""A streamed answer: server-sent events in, rounds and their end out. May be cancelled from any thread."""

import codecs
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from edgespec.client.answer import Ended, Spans, StreamedRound
from edgespec.client.chunk import Chunk, chunk_of, mapped, number, texts, whole
from edgespec.client.connection import LARGEST_ANSWER, Server, complaint
from edgespec.core.stats import Counts
from edgespec.core.values import Round
from edgespec.errors import EdgeSpecError, EndpointError, EndpointLostError
from edgespec.system.closing import Closing

_T = TypeVar("_T")
SILENCE_S = 300.0  # not even a ping: other servers send none while they read a prompt


class AnswerStream(Closing):
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
                    yield from self._rounds(connection, began)
        except ValueError:  # a socket that was shut inside TLS
            if not self._cancelled:
                raise EndpointLostError(f"{self._server.where} broke off its answer: ask again") from None
        except EndpointLostError:
            if not self._cancelled:
                raise
        finally:
            with self._lock:
                self._socket = None
        if self._cancelled and not self._figures.finish:
            self._figures.finish = "cancelled"
        yield self._figures.ended()

    def _rounds(self, connection: http.client.HTTPConnection, began: float) -> Iterator[StreamedRound]:
        where = self._server.where
        with self._server.ask(connection, "POST", self._path, self._body) as answer:
            for data in sent_events(answer, where):
                if data.strip() == b"[DONE]":
                    return
                chunk = chunk_of(data, where)
                self._figures.note(chunk)
                streamed = self._round(chunk)
                if streamed:
                    if not streamed.reading:
                        self._figures.seen(streamed, began)
                    yield streamed
        if not self._figures.finish and not self._cancelled:
            raise EndpointLostError(f"{where} went away in the middle of its answer: ask again")

    def _round(self, chunk: Chunk) -> StreamedRound | None:
        """Returns the round of a chunk, or how far the prompt has been read; None if it has neither."""
        if chunk.reading:
            return StreamedRound(Round((), "", 0, 0, ()), at=self._clock(), reading=chunk.reading)
        if not (chunk.text or chunk.reasoning or chunk.calls or chunk.ours):
            return None
        round_, pieces = chunk.round(), texts(chunk.ours, "pieces")
        self._spans.take(chunk.reasoning, pieces, round_.sources)  # reasoning comes before the answer
        return StreamedRound(
            round_,
            at=self._clock(),
            pieces=pieces,
            reasoning=chunk.reasoning,
            seconds=number(chunk.ours, "seconds") or 0.0,
            number=whole(chunk.ours, "round") or 0,
            spans=self._spans.take(chunk.text, (), ()),
            tool_calls=chunk.calls,
        )


FIELDS = (b"", b"data", b"event", b"id", b"retry")  # of server-sent events; "" begins a comment


def sent_events(answer: http.client.HTTPResponse, where: str) -> Iterator[bytes]:
    """Yields the data of server-sent events; several lines of one event are one.

    Raises EndpointError for an answer that is no stream, or an event larger than any sensible one.
    """
    held: list[bytes] = []
    first = True
    while line := answer.readline(LARGEST_ANSWER):
        if first:
            line = line.removeprefix(codecs.BOM_UTF8)
        field, _, value = line.rstrip(b"\r\n").partition(b":")
        if first and field.strip() and field not in FIELDS:
            raise not_a_stream(line + answer.read(LARGEST_ANSWER), where)
        first = first and not line.strip()
        if field == b"data":
            held.append(value.removeprefix(b" "))
            if sum(map(len, held)) > LARGEST_ANSWER:
                raise EndpointError(f"{where} sent an event of more than {LARGEST_ANSWER / 2**20:g} MiB")
        elif not field and not value and held:
            yield b"\n".join(held)
            held.clear()
    if held:
        yield b"\n".join(held)


def not_a_stream(body: bytes, where: str) -> EdgeSpecError:
    """Returns the error that an answer stands for which should have been a stream."""
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        found = "a web page" if body.lstrip()[:1] == b"<" else f"{body[:60]!r}"
        return EndpointError(
            f"{where} answered with {found} instead of a stream: check the address, it usually ends with /v1"
        )
    if isinstance(answer, dict) and not answer.get("error") and answer.get("choices"):
        return EndpointError(f"{where} answered in one piece: it does not stream, which a chat needs")
    return complaint(body, 0)


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

    def note(self, chunk: Chunk) -> None:
        """Keeps what a chunk says besides text."""
        self._model = chunk.model or self._model
        self._usage = chunk.usage or self._usage
        self._timings = chunk.timings or self._timings
        self.finish = chunk.finish or self.finish

    def seen(self, streamed: StreamedRound, began: float) -> None:
        """Counts a round at the moment it was received."""
        if self._ttft is None:
            self._ttft, self._first = streamed.at - began, streamed.at
            self._of_first = len(streamed.round.tokens)
        self._last = streamed.at
        self._rounds = self._rounds or streamed.number > 0
        self._counts.count(streamed.round)

    def ended(self) -> Ended:
        """Returns the end, with the server's own figures if it gave them, else those seen here."""
        usage, timings = self._usage, self._timings
        seen = (self._counts.n_tokens, self._counts.drafted, self._counts.accepted)
        n_seen, drafted, accepted = seen if self._rounds else (None, None, None)
        n = _first(whole(timings, "predicted_n"), whole(usage, "completion_tokens"), n_seen)
        cached = whole(mapped(usage, "prompt_tokens_details"), "cached_tokens")
        measured, estimated = number(timings, "speedup_measured"), number(timings, "speedup_estimated")
        prompt_ms = number(timings, "prompt_ms")
        return Ended(
            finish=self.finish or "stop",
            model=self._model,
            prompt_tokens=whole(usage, "prompt_tokens"),
            cached_tokens=_first(whole(timings, "cache_n"), cached),
            read_again=read_again(mapped(timings, "evaluated_again")),
            n_tokens=n,
            n_ctx=whole(timings, "n_ctx"),
            ttft_s=self._ttft,
            tpot_s=self._tpot(n),
            prompt_s=prompt_ms / 1000 if prompt_ms is not None else None,
            drafted=_first(whole(timings, "draft_n"), drafted),
            accepted=_first(whole(timings, "draft_n_accepted"), accepted),
            speedup=_first(measured, estimated),
            speedup_is="measured" if measured is not None else "estimated" if estimated is not None else None,
        )

    def _tpot(self, n: int | None) -> float | None:
        """Returns seconds per token after the first: by the server's clock, else by ours."""
        given = number(self._timings, "predicted_ms")
        seconds = given / 1000 if given else self._last - self._first
        after = (n or 0) - (1 if given else max(1, self._of_first))
        return seconds / after if after > 0 and seconds > 0 else None


def _first(*values: _T | None) -> _T | None:
    """Returns the first of them that is known."""
    return next((value for value in values if value is not None), None)


def read_again(why: Mapping[str, Any]) -> str:
    """Returns why much of a prompt was evaluated again, in a sentence; "" if it was not."""
    n, message = whole(why, "tokens"), whole(why, "message")
    was, now, cause = (str(why.get(name) or "") for name in ("was", "now", "cause"))
    if not n:
        return ""
    if cause == "room":
        return f"About {n:,} tokens were read again: they found no room (--cache-ram, --slots)."
    where = f" in message {message}" if message else ""
    who = "the chat template renders" if cause == "template" else "the client sent"
    return f"About {n:,} tokens were read again: {who} {now!r}{where}, where {was!r} was."
