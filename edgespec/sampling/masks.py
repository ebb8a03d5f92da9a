"""Which tokens a grammar allows after each position of one text: masks, for target and draft alike.

As with caches, there is one operation: a matcher is synced to a list of tokens. The shared beginning
is kept, the rest is taken back, what is missing is consumed. So a rejected guess needs no care, and the
mask of a position is computed once, whoever asks first: the draft before it draws, the target before it
judges.

A guess may ask more of a matcher than any emitted text would, and what breaks one breaks all that share
its grammar. So a matcher that fails is made anew and asked once more; it fails for good if the text itself
is at fault. Guesses end there (`strained`), because they might be to blame.

EXACTNESS: a mask has every token with which some allowed text continues, however that is split into tokens.
A token is forced if it is the only one; a text that can only continue in one way may still be written with
several tokens, and the target decides which.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from edgespec.errors import GrammarError
from edgespec.sampling.distribution import Ids

FEW = 8  # if less than a FEWth of the vocabulary is allowed, the others are not looked at
KEPT = 64  # positions before the newest whose masks are kept: no draft is longer
History = Sequence[int] | NDArray[np.int32]
_Found = TypeVar("_Found")


@dataclass(slots=True)
class Allowed:
    """The tokens that may come next: flags, (n_vocab,) bool."""

    flags: NDArray[np.bool_]
    count: int
    _ids: Ids | None = field(default=None, repr=False)

    @property
    def ids(self) -> Ids:
        """The same as ascending ids."""
        if self._ids is None:
            self._ids = np.flatnonzero(self.flags)
        return self._ids

    @property
    def few(self) -> bool:
        return self.count * FEW < self.flags.size


class Matcher(Protocol):
    """A grammar and what was consumed of it. Tokens are those of one vocabulary."""

    @property
    def broken(self) -> bool:
        """True if it has given up, and will never answer again."""

    def begin_anew(self) -> None:
        """Starts anew, with nothing consumed and not broken. Raises GrammarError if that takes too long."""

    def mask(self) -> NDArray[np.uint32] | None:
        """Returns a bit for each token, the lowest first; None if any may follow.

        Raises GrammarError if it gives up, or where nothing may follow.
        """

    def takes(self, token: int) -> bool:
        """Consumes a token; False, and nothing consumed, if the grammar forbids it, or it is broken."""

    def take_back(self, n: int) -> None:
        """Takes back the last n tokens."""

    def only_text(self) -> bytes:
        """Returns the bytes with which every allowed text continues."""


class Masks:
    """The masks of one text. Not thread-safe."""

    def __init__(
        self, matcher: Matcher, *, n_vocab: int, start: int, end_tokens: frozenset[int] = frozenset()
    ) -> None:
        """start: tokens of the prompt, to which the grammar does not apply. end_tokens: they end the text."""
        self.banned: frozenset[int] = frozenset()  # by a logit bias of the request
        self.strained = False  # the matcher has failed; nobody guesses any more
        self.n_vocab, self.end_tokens = n_vocab, end_tokens
        self._matcher, self._start = matcher, start
        self._held = np.empty(256, np.int32)
        self._n = 0  # tokens held, by matcher and record alike
        self._known: dict[int, Allowed | None] = {}  # by the number of tokens held
        self._words: NDArray[np.uint32] | None = None
        self._newest: Allowed | None = None

    def after(self, history: History) -> Allowed | None:
        """Returns what may follow; None if anything may, and after an end token, or a forbidden one.

        history: prompt and text so far. Raises GrammarError if the grammar turns out too complex, or
        leads to where nothing may follow.
        """
        try:
            return self._after(history)
        except GrammarError as error:
            return self._once_more(error, lambda: self._after(history))

    def _after(self, history: History) -> Allowed | None:
        if not self._sync(history):
            return None
        if self._n not in self._known:
            self._known[self._n] = self._look()
            if len(self._known) > 2 * KEPT:
                self._known = {n: mask for n, mask in self._known.items() if n > self._n - KEPT}
        return self._known[self._n]

    def forced(self, history: History, room: int) -> list[int]:
        """Returns the tokens that must follow, up to `room`: each the only one that may.

        No end token, and no banned one: the sampler reports that nothing is left.
        """
        out: list[int] = []
        while len(out) < room:
            allowed = self.after(np.append(history, np.array(out, np.int32)) if out else history)
            if allowed is None or allowed.count != 1:
                break
            if (token := allowed.ids.item(0)) in self.end_tokens or token in self.banned:
                break
            out.append(token)
        return out

    def ended(self, history: History) -> bool:
        """True if nothing may follow but the end."""
        return self.end_after(history) is not None

    def end_after(self, history: History) -> int | None:
        """Returns an end token if nothing may follow but the end."""
        allowed = self.after(history)
        if allowed is None or allowed.count > len(self.end_tokens):
            return None
        ids = allowed.ids.tolist()
        return ids[0] if all(token in self.end_tokens for token in ids) else None

    def fitting(self, history: History, guesses: Sequence[int]) -> int:
        """Returns how many first guesses the grammar allows, an end token included."""
        try:
            return self._fitting(history, guesses)
        except GrammarError as error:
            return self._once_more(error, lambda: self._fitting(history, guesses))

    def _fitting(self, history: History, guesses: Sequence[int]) -> int:
        for n, token in enumerate(guesses):
            if not self._sync(np.append(history, np.array(guesses[:n], np.int32)) if n else history):
                return n
            if token in self.end_tokens:
                allowed = self.after(np.append(history, np.array(guesses[:n], np.int32)))
                return n + (allowed is None or bool(allowed.flags[token]))
            if not (token < self.n_vocab and self._take(token)):
                return n
        return len(guesses)

    def only_text(self, history: History) -> bytes:
        """Returns the bytes that must follow, whatever tokens they are written with."""
        try:
            return self._only_text(history)
        except GrammarError as error:
            return self._once_more(error, lambda: self._only_text(history))

    def _only_text(self, history: History) -> bytes:
        return self._matcher.only_text() if self._sync(history) else b""

    def _once_more(self, error: GrammarError, ask: Callable[[], _Found]) -> _Found:
        """Asks again after an error, which others may have caused; raises it if they have not."""
        first, self.strained = not self.strained, True
        if not (first or self._matcher.broken):
            raise error
        try:
            self._matcher.begin_anew()
        except GrammarError:  # what it gave up on tells more
            raise error from None
        self._n, self._known = 0, {}
        return ask()

    def _sync(self, history: History) -> bool:
        """Makes the matcher hold the text of `history`; False if it does not lead there."""
        wanted = np.asarray(history[self._start :], np.int32)
        m = min(self._n, wanted.size)
        differs = (self._held[:m] != wanted[:m]).nonzero()[0]
        keep = differs.item(0) if differs.size else m
        if keep < self._n:
            self._matcher.take_back(self._n - keep)
            for n in [n for n in self._known if n > keep]:
                del self._known[n]
            self._n = keep
        for token in wanted[keep:].tolist():
            if token in self.end_tokens:
                return False
            if not self._take(token):
                self._matcher.mask()  # a broken one refuses every token, and says why only here
                return False
        return True

    def _take(self, token: int) -> bool:
        if not self._matcher.takes(token):
            return False
        if self._n == self._held.size:
            self._held = np.concatenate([self._held, np.empty_like(self._held)])
        self._held[self._n] = token
        self._n += 1
        return True

    def _look(self) -> Allowed | None:
        words = self._matcher.mask()
        if words is None:
            return None
        if self._newest is not None and self._words is not None and np.array_equal(words, self._words):
            return self._newest  # inside a string, one mask after another is the same
        flags = np.unpackbits(words.view(np.uint8), bitorder="little")[: self.n_vocab].view(np.bool_)
        self._words, self._newest = words.copy(), Allowed(flags, int(np.count_nonzero(flags)))
        return self._newest
