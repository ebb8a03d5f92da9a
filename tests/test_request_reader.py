"""Heavy requests are prepared by a few threads, and what was given up takes none of them."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from served import until

from edgespec.core.attachment import Attachment, Mixed
from edgespec.core.request import Request
from edgespec.engine import request_reader as taking
from edgespec.engine.outbox import Outbox
from edgespec.engine.request_reader import QUICK, THREADS, Ready, RequestReader
from edgespec.errors import GivenUpError
from edgespec.llama.cuts import Cuts
from edgespec.protocol.messages import (
    LONGEST_TEXT,
    MOST_TOKENS,
    Cancel,
    LargeBodies,
    Refused,
    Submit,
    Tokenize,
    Tokenized,
    packed,
)
from edgespec.system.limited_child import GIVEN_UP

LONG = "x" * (QUICK + 1)


class Target:
    """Turns text into tokens once it may."""

    n_vocab = 4
    control = np.zeros(4, bool)

    def __init__(self) -> None:
        self.go, self.asked = threading.Event(), 0

    def tokenize(self, text: bytes, *, special: bool, add_bos: bool) -> Any:
        self.asked += 1
        self.go.wait(20)
        return np.zeros(len(text), np.int32)

    def piece(self, token: int, *, special: bool) -> bytes:
        return b"x" * token


class Heard(Outbox):
    """Keeps what is sent."""

    def __init__(self) -> None:
        super().__init__(cast(Any, io.BytesIO()))
        self.said: list[Any] = []

    def send(self, message: object) -> None:
        self.said.append(message)


class Silent(io.BytesIO):
    """A pipe whose owner is there, and writes nothing."""

    def read(self, size: int | None = -1) -> bytes:
        threading.Event().wait()
        return b""


@pytest.fixture
def at_work(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[RequestReader, Target, Heard]]:
    monkeypatch.setattr(taking, "cuts_of", lambda model, special: Cuts([b"<cut>"]))
    target, heard = Target(), Heard()
    reader = RequestReader(Silent(), heard, most=64)
    streams = SimpleNamespace(prepare=lambda _: None, is_prepared=lambda _: True)
    reader.pair = cast(Any, SimpleNamespace(n_ctx=64, target=target, streams=streams))
    yield reader, target, heard
    target.go.set()
    until(lambda: not reader.busy)


def asked(id: str, text: str = LONG) -> Tokenize:
    return Tokenize(id, text, add_bos=False)


def submit(prompt: str) -> Submit:
    return Submit("a", prompt, False, Request(max_tokens=4, drafter="none"))


def test_given_up_requests_hold_no_thread(at_work: tuple[RequestReader, Target, Heard]) -> None:
    """Four of them that could not be stopped kept every later one waiting, for ever."""
    reader, target, heard = at_work
    for i in range(THREADS):
        reader.take(asked(f"old{i}"))
    until(lambda: target.asked == THREADS)
    reader.take(asked("queued"))
    reader.take(asked("dropped"))
    assert target.asked == THREADS
    for id in ("dropped", *(f"old{i}" for i in range(THREADS))):
        reader.take(Cancel(id))
    until(lambda: target.asked == THREADS + 1)
    target.go.set()
    until(lambda: heard.said)
    until(lambda: not reader.busy)
    assert [message.id for message in heard.said] == ["queued"] and reader.idle
    assert isinstance(heard.said[0], Tokenized) and target.asked == THREADS + 1


def test_pictures_that_wait_leave_threads_to_texts(at_work: tuple[RequestReader, Target, Heard]) -> None:
    """Four requests with pictures held all threads, and each waited for the one before it."""
    reader, target, heard = at_work
    target.go.set()
    encoding, done = threading.Event(), threading.Event()

    def media_pieces(attachment: Attachment) -> tuple[Any, ...]:
        encoding.set()
        assert done.wait(10)
        return ()

    cast(Any, reader.pair).media_pieces = media_pieces
    for i in range(THREADS + 1):
        reader.take(Tokenize(f"{i}", Mixed(("", ""), (Attachment("picture", b""),)), add_bos=False))
    assert encoding.wait(10)
    reader.take(asked("text"))
    until(lambda: heard.said)
    assert [message.id for message in heard.said] == ["text"] and len(reader._at_work) <= 2
    done.set()
    until(lambda: not reader.busy)
    assert [message.id for message in heard.said[1:]] == [f"{i}" for i in range(THREADS + 1)]


def test_the_trial_of_a_given_up_grammar_is_reported(at_work: tuple[RequestReader, Target, Heard]) -> None:
    reader, target, heard = at_work
    tried = threading.Event()

    def prepare(*_: object) -> None:
        tried.set()
        given_up = GIVEN_UP.get()
        assert given_up and given_up.wait(10)
        raise GivenUpError

    streams = SimpleNamespace(prepare=prepare, is_prepared=lambda _: False)
    reader.pair = cast(Any, SimpleNamespace(target=target, streams=streams))
    reader.take(submit(LONG))
    assert tried.wait(10)
    reader.take(Cancel("a"))
    until(lambda: not reader.busy)
    assert not heard.said


def test_work_next_to_the_engine_is_counted(at_work: tuple[RequestReader, Target, Heard]) -> None:
    reader, target, _ = at_work
    reader.take(LargeBodies(2))
    assert reader.own_work == 2
    reader.take(asked("a"))
    until(lambda: target.asked)
    assert reader.own_work == 3
    reader.take(LargeBodies(0))
    target.go.set()
    until(lambda: not reader.own_work)


def test_what_is_given_up_stops_at_its_next_piece(at_work: tuple[RequestReader, Target, Heard]) -> None:
    reader, target, heard = at_work
    reader.take(asked("a", (LONG + "<cut>") * 9))
    until(lambda: target.asked == 1)
    reader.take(Cancel("a"))
    target.go.set()
    until(lambda: not reader.busy)
    assert target.asked == 1 and not heard.said


def test_more_tokens_than_anybody_gets_are_only_counted(
    at_work: tuple[RequestReader, Target, Heard],
) -> None:
    """Sixteen megabytes of them that the owner refused held up all answers in the pipe for 0.15 seconds."""
    reader, target, produced = at_work
    target.go.set()
    for n in (MOST_TOKENS, MOST_TOKENS + 1):
        reader.take(asked(f"of {n}", "x" * n))
        until(lambda: not reader.busy)
    assert [(generated.n, len(generated.tokens)) for generated in produced.said] == [
        (MOST_TOKENS, MOST_TOKENS),
        (MOST_TOKENS + 1, 0),
    ]


def test_a_prompt_that_cannot_fit_is_refused_unread(at_work: tuple[RequestReader, Target, Heard]) -> None:
    reader, target, heard = at_work
    reader.take(submit(LONG))
    until(lambda: heard.said)
    assert isinstance(heard.said[0], Refused) and heard.said[0].kind == "too_long" and not target.asked
    assert "at least 10,923 tokens" in heard.said[0].message  # no token has more than 3 bytes
    reader.take(asked("b", "x" * (LONGEST_TEXT + 1)))
    until(lambda: len(heard.said) == 2)
    assert heard.said[1].kind == "setting" and "4,194,304 are read at once" in heard.said[1].message
    assert packed(heard.said[1])


@pytest.mark.parametrize("left", ["waiting", "preparing again", "never"])
def test_who_has_left_is_not_answered_though_its_grammar_was_evicted(
    left: str, at_work: tuple[RequestReader, Target, Heard]
) -> None:
    """It was prepared anew after its `Cancel` had been seen, and generated to its end for nobody."""
    reader, target, _ = at_work
    target.go.set()
    known, message = {"it": True}, submit("text")
    streams = SimpleNamespace(prepare=lambda _: known.update(it=True), is_prepared=lambda _: known["it"])
    reader.pair = cast(Any, SimpleNamespace(n_ctx=64, target=target, streams=streams))
    reader.take(message)
    assert isinstance(reader.items.get(timeout=10), Ready)
    known["it"] = False  # others' grammars have pushed it out
    if left == "waiting":
        reader.take(Cancel("a"))
    assert not reader.takes(message)
    if left == "preparing again":
        reader.take(Cancel("a"))
    until(lambda: not reader.busy)
    found = []
    while not reader.items.empty():
        found.append(reader.items.get())
    ready = [item.message for item in found if isinstance(item, Ready)]
    assert [reader.takes(message) for message in ready].count(True) == (left == "never")
    assert reader.idle
