"""What the worker keeps of its requests, and what it reports of their tokens."""

from __future__ import annotations

import io
import queue
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from edgespec.core.request import Request
from edgespec.core.values import Emitted, Failed, Round
from edgespec.engine.outbox import Outbox
from edgespec.engine.request_reader import Ready, RequestReader, refused
from edgespec.engine.text_log import TextLog
from edgespec.engine.worker import Worker
from edgespec.errors import EngineError
from edgespec.protocol.messages import Refused, StepReport, Submit, receive

SAID, CONTROL = 1, 7


def spelling(shown: tuple[str, ...]) -> Any:
    return lambda token: {SAID: "é".encode(), CONTROL: b"<call>" if "<call>" in shown else b""}[token]


PAIR: Any = SimpleNamespace(
    streams=SimpleNamespace(spelling=spelling),
    n_ctx=64,
    busy=lambda: (0.0, 0.0),
    costs=lambda: SimpleNamespace(target=SimpleNamespace(seconds=lambda n: 0.1)),
)


class FakeEngine:
    """Takes every request, or fails over it."""

    fails = False

    def submit(self, id: str, tokens: Any, request: Any, borders: Any, owner: str, *, replays: bool) -> None:
        if self.fails:
            raise KeyError(id)


def worker(
    text_log: TextLog | None = None, clock: Callable[[], float] = time.monotonic
) -> tuple[Worker, FakeEngine, io.BytesIO]:
    out, engine = io.BytesIO(), FakeEngine()
    reader = SimpleNamespace(takes=lambda message: True, items=queue.SimpleQueue())
    outbox = Outbox(cast(Any, out))
    made = Worker(PAIR, cast(Any, engine), cast(RequestReader, reader), outbox, text_log, clock)
    return made, engine, out


def submitted(id: str) -> Ready:
    message = Submit(id, "a", False, Request(max_tokens=4, drafter="none", shown=("<call>",)), pieces=True)
    return Ready(message, cast(Any, (1, 2)))


def received(out: io.BytesIO) -> Any:
    out.seek(0)
    messages = []
    while (message := receive(cast(Any, out))) is not None:
        messages.append(message)
    return messages


def test_control_tokens_that_are_shown_are_part_of_their_tokens_texts() -> None:
    """They counted nothing, so that `text_offset` was too small behind the first."""
    one, _, out = worker()
    one.take(submitted("a"))
    one.report(0.0, [Emitted("a", Round((SAID, CONTROL), "é<call>", 0, 0, ()))])
    step = received(out)[-1]
    assert isinstance(step, StepReport) and cast(Any, step.events[0]).pieces == ("é", "<call>")


def test_nothing_is_kept_of_a_request_that_failed() -> None:
    one, _, _ = worker()
    one.take(submitted("a"))
    assert one._pieces
    one.report(0.0, [Failed("a", EngineError("it cannot go on"))])
    assert not one._pieces


def test_a_fault_of_ours_refuses_the_request_alone() -> None:
    one, engine, out = worker()
    engine.fails = True
    one.take(submitted("a"))
    engine.fails = False
    one.take(submitted("b"))
    first, second = received(out)
    assert isinstance(first, Refused) and first.kind == "fault" and "KeyError" in first.message
    assert second.id == "b" and refused("c", ValueError()).kind == "fault"


def round_of(text: str, **more: Any) -> Emitted:
    return Emitted("a", Round((SAID,), text, 0, 0, ("target",), **more))


def texts(out: io.BytesIO) -> list[str]:
    steps = [step for step in received(out) if isinstance(step, StepReport)]
    return [said.round.text for step in steps for said in step.events if isinstance(said, Emitted)]


class Steps:
    """Lets a worker tell rounds of steps that take as long as is said."""

    def __init__(self) -> None:
        self.worker, _, self.out = worker(clock=lambda: self.now)
        self.now = 100.0
        self.worker.take(submitted("a"))

    def take(self, ms: float, *happenings: Any) -> str:
        """Returns the texts that have been told behind a step."""
        began, self.now = self.now, self.now + ms / 1000
        self.worker.report(began, happenings)
        return "".join(texts(self.out))


def test_rounds_that_follow_one_another_quickly_are_reported_together() -> None:
    """Each message wakes the web process and its client beside the evaluation."""
    steps = Steps()
    assert steps.take(7, round_of("1")) == "1", "the first is told at once"
    assert steps.take(7, round_of("2")) == "1"
    assert steps.take(7, round_of("3")) == "1"
    assert steps.take(7, round_of("4")) == "1234", "with the next one the second would be told too late"
    assert steps.take(7, round_of("5")) == "1234"
    assert steps.take(7, round_of("6", finish="stop")) == "123456", "nothing waits behind the end"
    assert steps.take(7, round_of("7")) == "1234567", "another request of this name has a first round again"


def test_a_round_of_a_large_model_is_reported_at_once() -> None:
    steps = Steps()
    assert [steps.take(21, round_of(text)) for text in "1234"] == ["1", "12", "123", "1234"]


def test_what_is_held_goes_with_whatever_comes_next(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = Steps()
    steps.take(7, round_of("1"))
    assert steps.take(7, round_of("2")) == "1"
    steps.worker.take(submitted("b"))
    assert "".join(texts(steps.out)) == "12", "a prompt may be read now, which takes long"
    assert steps.take(7, round_of("3")) == "12"
    assert steps.take(7) == "123", "a step that tells nothing may be followed by others"
    assert steps.take(7, round_of("4")) == "123"
    steps.take(7, Failed("a", EngineError("it cannot go on")))
    *_, round_, failure = received(steps.out)
    assert round_.events[0].round.text == "4"
    assert isinstance(failure.events[0], Refused)
