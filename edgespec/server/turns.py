"""Rounds of a generation -> the parts of an assistant's turn, for whatever dialect says them then."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field

from edgespec.conversation import Composed
from edgespec.events import Round
from edgespec.families.deltas import CallArguments, CallBegun, Content, Delta, Reasoning, Turn
from edgespec.families.reader import Parser


@dataclass(slots=True)
class TurnReader:
    """Reads one choice. apart: thoughts are no content. several: calls may be more than one."""

    parser: Parser
    apart: bool = True
    several: bool = True
    turn: Turn = field(default_factory=Turn)
    reasoning_tokens: int = 0  # of rounds that told thoughts and nothing else

    def feed(self, round_: Round) -> list[Delta]:
        """Returns what a round says, and, where it is the last, what was held back."""
        deltas = self.parser.feed(round_.text) if round_.text else []
        if round_.finish:
            deltas += self.parser.finish()
        if deltas and all(isinstance(delta, Reasoning) for delta in deltas):
            self.reasoning_tokens += len(round_.tokens)
        return self._kept(deltas)

    def _kept(self, deltas: Iterable[Delta]) -> list[Delta]:
        kept: list[Delta] = []
        for delta in deltas:
            if isinstance(delta, Reasoning) and not self.apart:
                delta = Content(delta.text)
            if isinstance(delta, CallBegun):
                delta = CallBegun(delta.index, delta.name, delta.id or call_id())
            if isinstance(delta, CallBegun | CallArguments) and delta.index and not self.several:
                continue
            self.turn.add([delta])
            kept.append(delta)
        return kept

    def finish(self, finish: str | None) -> str | None:
        """Returns why a turn ended, as OpenAI says it: a turn that calls ends for that."""
        return "tool_calls" if finish == "stop" and self.turn.calls else finish


def call_id() -> str:
    """Returns an id for a call: letters and digits, as every template takes it."""
    return "call_" + secrets.token_hex(12)


def readers(composed: Composed, n: int, *, apart: bool = True, several: bool = True) -> list[TurnReader]:
    """Returns a reader for each of n choices."""
    return [TurnReader(composed.parser(), apart, several) for _ in range(n)]
