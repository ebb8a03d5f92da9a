"""Rounds of a generation -> the parts of an assistant's turn, for any dialect."""

import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from edgespec.chat.families.deltas import AssembledTurn, CallArguments, CallBegun, Content, Delta, Reasoning
from edgespec.chat.families.reader import Parser
from edgespec.core.values import Round


@dataclass(slots=True)
class TurnReader:
    """Reads one choice."""

    parser: Parser
    apart: bool = True  # reasoning is not content
    several: bool = True  # calls may be more than one
    forced: bool = False  # it is a call and nothing else: what looks otherwise is the beginning of one
    turn: AssembledTurn = field(default_factory=AssembledTurn)
    note: Callable[[str, str], None] = lambda name, arguments: None  # is given each call
    reasoning_tokens: int = 0  # a round with other parts too counts by its characters
    _silent: int = 0  # tokens of rounds that have shown nothing yet

    def feed(self, round_: Round) -> list[Delta]:
        """Returns the parts of a round and, if it is the last, what was held back."""
        deltas = self.parser.feed(round_.text) if round_.text else []
        if round_.finish:
            deltas += self.parser.finish(cut=round_.finish != "stop")
        self._count(deltas, len(round_.tokens))
        kept = self._kept(deltas)
        for call in self.turn.calls if round_.finish else ():
            self.note(call.name, call.arguments)
        return kept

    def _count(self, deltas: Sequence[Delta], n_tokens: int) -> None:
        """Counts the tokens of reasoning, including those held back."""
        self._silent += n_tokens
        if not deltas:
            return
        texts = [delta.text for delta in deltas if isinstance(delta, Content | Reasoning | CallArguments)]
        thought = sum(len(delta.text) for delta in deltas if isinstance(delta, Reasoning))
        if thought:
            self.reasoning_tokens += round(self._silent * thought / sum(map(len, texts)))
        self._silent = 0

    def _kept(self, deltas: Iterable[Delta]) -> list[Delta]:
        kept: list[Delta] = []
        for delta in deltas:
            if isinstance(delta, Content) and self.forced:
                continue
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
        """Returns why a turn ended, in OpenAI's terms: a turn with calls ends for them."""
        return "tool_calls" if finish == "stop" and self.turn.calls else finish


def call_id() -> str:
    """Returns an id for a call: letters and digits, which every template accepts."""
    return "call_" + secrets.token_hex(12)
