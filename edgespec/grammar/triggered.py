"""A matcher that leaves a text free until an opening tag, and lets a grammar govern what follows.

The grammar begins with the tag. When nothing more may follow in it, the text is free again. Free text is not
masked at all: it keeps the target's distribution, and costs nothing. Only a token that would run past the end
of a tag into what the grammar forbids is masked there.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from edgespec.errors import GrammarError
from edgespec.grammar.grammar import CONTROL, Triggers
from edgespec.sampling.masks import Matcher


@dataclass(frozen=True, slots=True)
class _State:
    """What is known after a token."""

    tail: bytes = b""  # the end of free text, in which a tag may have begun
    begun: bool = False  # free text has something other than white space
    until: tuple[bytes, ...] = ()  # within reasoning: what closes it
    calls: int = 0  # begun so far
    inside: bool = False  # the latest of them has not ended


class CallMatcher(Matcher, Protocol):
    """Matches one call, from its tag on."""

    @property
    def ended(self) -> bool:
        """True if nothing may follow in it."""


class Vocabulary:
    """The texts of tokens, and which of them run past the end of a tag. pieces: bytes of every token."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self.pieces = pieces
        self._past: dict[bytes, list[tuple[int, bytes]]] = {}
        self._around: dict[bytes, list[int]] = {}

    def past(self, end: bytes) -> list[tuple[int, bytes]]:
        """Returns the tokens that begin with the end of a tag, and what they have behind it."""
        if end not in self._past:
            found = (i for i, piece in enumerate(self.pieces) if piece.startswith(end))
            self._past[end] = [(i, self.pieces[i][len(end) :]) for i in found if self.pieces[i] != end]
        return self._past[end]

    def around(self, tag: bytes) -> list[tuple[int, bytes]]:
        """Returns the tokens that have a whole tag behind other text, and what they have behind the tag."""
        if tag not in self._around:
            self._around[tag] = [i for i, piece in enumerate(self.pieces) if piece.find(tag) > 0]
        parts = ((i, self.pieces[i].partition(tag)[2]) for i in self._around[tag])
        return [(i, rest) for i, rest in parts if rest]


class Triggered:
    """A matcher of such texts: `masks.Matcher`."""

    def __init__(
        self,
        triggers: Triggers,
        vocabulary: Vocabulary,
        begun_with: Callable[[bytes], CallMatcher | None],
        again: Callable[[], None],
    ) -> None:
        """begun_with: returns a matcher that has consumed a text, or None if the grammar forbids that.

        again: lets `begun_with` return matchers that share nothing with earlier ones; raises GrammarError.
        """
        self._tags = tuple(tag.encode() for tag in triggers.tags)
        self._first = tuple(tag.encode() for tag in triggers.first)
        self._thoughts = {a.encode(): b.encode() for a, b in triggers.thoughts}
        self._vocabulary, self._begun_with, self._again = vocabulary, begun_with, again
        sought = (*self._tags, *self._first, *self._thoughts, *self._thoughts.values())
        self._kept = max(map(len, sought)) - 1
        self._opened = triggers.opened
        self._failures = 0
        self._reset()

    def _reset(self) -> None:
        self._calls: list[CallMatcher] = []
        self._states = [_State(until=tuple(self._thoughts.values()) if self._opened else ())]

    @property
    def broken(self) -> bool:
        return bool(self._states[-1].inside and self._calls[-1].broken)

    def begin_anew(self) -> None:
        self._failures += 1
        try:
            if self._failures > 1:
                raise GrammarError("it was too complex twice")
            self._again()
        except GrammarError:  # better a call that is not checked than none
            self._tags = self._first = ()
        self._reset()

    def mask(self) -> NDArray[np.uint32] | None:
        state = self._states[-1]
        if state.inside:
            return self._calls[-1].mask()
        forbidden = [
            token for token, tag, rest in self._crossing(state) if self._begun_with(tag + rest) is None
        ]
        if not forbidden:
            return None
        allowed = np.full((len(self._vocabulary.pieces) + 31) // 32, 0xFFFFFFFF, np.uint32)
        for token in forbidden:
            allowed[token // 32] &= ~np.uint32(1 << token % 32)
        return allowed

    def _crossing(self, state: _State) -> list[tuple[int, bytes, bytes]]:
        """Returns the tokens that would complete a tag and go on, with the tag and what follows it."""
        found = []
        for tag in (*self._tags, *(() if state.begun or state.until else self._first)):
            found += [(token, tag, rest) for token, rest in self._vocabulary.around(tag)]
            for n in range(len(tag)):
                if state.tail.endswith(tag[:n]):
                    found += [(token, tag, rest) for token, rest in self._vocabulary.past(tag[n:])]
        return found

    def takes(self, token: int) -> bool:
        state = self._states[-1]
        if state.inside:
            call = self._calls[-1]
            if not call.takes(token):
                return False
            self._states.append(replace(state, inside=not call.ended))
            return True
        piece = self._vocabulary.pieces[token]
        new = self._read(state, b"" if piece.startswith(CONTROL) else piece)
        if new is None:
            return False
        self._states.append(new)
        return True

    def _read(self, state: _State, piece: bytes) -> _State | None:
        """Returns the state after a piece of free text; None if it begins a call that the grammar forbids."""
        text = state.tail + piece
        if state.until:
            ends = [(text.find(end), end) for end in state.until if end in text]
            tags = [text.find(tag) for tag in self._tags if tag in text]
            if tags and (not ends or min(tags) < min(ends)[0]):  # it is one if the reasoning is never closed
                return self._begin(state, text[min(tags) :])
            if not ends:
                return replace(state, tail=self._tail(text))
            place, end = min(ends)
            return self._read(_State(calls=state.calls), text[place + len(end) :])
        if not state.begun:
            bare = text.lstrip()
            opening = next((tag for tag in self._thoughts if bare.startswith(tag.lstrip())), None)
            if opening is not None:
                rest = bare[len(opening.lstrip()) :]
                return self._read(replace(state, tail=b"", until=(self._thoughts[opening],)), rest)
            if any(bare.startswith(first) for first in self._first):
                return self._begin(state, bare)
            if any(one.lstrip().startswith(bare) for one in (*self._thoughts, *self._first)):
                return replace(state, tail=bare)  # it may become one
        places = [(text.find(tag), tag) for tag in self._tags if tag in text]
        if places:
            return self._begin(state, text[min(places)[0] :])
        return replace(state, tail=self._tail(text), begun=True)

    def _begin(self, state: _State, text: bytes) -> _State | None:
        """Begins a call with this text; None if the grammar forbids it."""
        if (call := self._begun_with(text)) is None:
            return None
        self._calls = [*self._calls[: state.calls], call]
        return _State(begun=True, until=state.until, calls=state.calls + 1, inside=not call.ended)

    def _tail(self, text: bytes) -> bytes:
        return text[-self._kept :] if self._kept else b""

    def take_back(self, n: int) -> None:
        for _ in range(n):
            self._states.pop()
            state = self._states[-1]
            del self._calls[state.calls :]
            if state.inside:
                self._calls[-1].take_back(1)

    def only_text(self) -> bytes:
        return self._calls[-1].only_text() if self._states[-1].inside else b""
