"""Ways of guessing the target's next tokens. One file each; verification knows nothing of them.

A drafter is entered with `yield from`: it yields an `Ask` for every evaluation it needs, stops if the
answer is None, and returns a `Draft`. A free guesser evaluates nothing and makes an `Offer` at once.

EXACTNESS: a token that was drawn is never withdrawn after looking at it. A drafter may stop by the shape
of the distribution that it is about to draw from, or after a token it keeps; both leave the output exact,
while dropping unlikely-looking tokens from the tail does not (total variation up to 0.25). Only a guess
that is deterministic as a whole may be cut anywhere. A `Guesser` cannot break this: its guess is a point mass
and never sees the randomness of the rule.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from edgespec.core.pace.odds import Odds
from edgespec.core.values import NO_DRAFT, Ask, Draft, Judged, Reach
from edgespec.core.verify import Rule
from edgespec.sampling.sampler import point_mass

Drafting = Generator[Ask, "NDArray[np.float32] | None", Draft]
Piece = Callable[[int], bytes]  # the text of a token
HOPELESS = 0.03  # a guess that counts less often than this is not made

certain = lru_cache(maxsize=4096)(point_mass)  # the same tokens are guessed again and again


class Drafter(Protocol):
    """Something that guesses. It may keep state, which it syncs to the given tokens."""

    def draft(self, tokens: NDArray[np.int32], limit: int, rule: Rule) -> Drafting:
        """Guesses at most `limit` tokens after `tokens` ((n,) int32, prompt and output so far)."""
        ...

    def learn(self, judged: Judged) -> None:
        """Learns from a verification."""
        ...


class NoDrafter:
    """Never guesses: plain decoding through the same loop."""

    def draft(self, tokens: NDArray[np.int32], limit: int, rule: Rule) -> Drafting:
        return NO_DRAFT
        yield  # a generator, as the protocol wants

    def learn(self, judged: Judged) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Offer:
    """A guess that cost nothing."""

    tokens: tuple[int, ...] = ()  # the first len(reach) of them are offered, the rest only watched
    confidence: tuple[float, ...] = ()  # how sure the guesser is of each
    reach: Reach = ()  # the probability that each counts


def offer(tokens: Sequence[int], confidence: Sequence[float], odds: Odds) -> Offer:
    """Returns an offer that ends where it becomes hopeless, and before a cell of a picture or sound.

    Its first token is watched even then: otherwise nobody would notice that a guesser has
    become right.
    """
    tokens = tokens[: next((i for i, token in enumerate(tokens) if token < 0), len(tokens))]
    reach, out = 1.0, []
    for sure in confidence[: len(tokens)]:
        reach *= odds.of(sure)
        if reach < HOPELESS:
            break
        out.append(reach)
    n = max(len(out), 1)
    return Offer(tuple(tokens[:n]), tuple(confidence[:n]), tuple(out))


class Guesser(Protocol):
    """Something that offers guesses without evaluating anything.

    The text may have negative numbers in it: cells of pictures and sounds (`core/media.py`), which index no
    table and are never guessed. Made by `offer` of this module, a guess ends before one.
    """

    name: str  # its name in statistics and on screens
    odds: Odds  # acceptance of its guesses, by its confidence; kept between starts

    def for_text(self) -> Guesser:
        """Returns a guesser for a new text: another one, or one that shares what this one learned.

        Its `odds` can be replaced without touching this one's: each kind of request has its own.
        """
        ...

    def offer(self, tokens: NDArray[np.int32], limit: int) -> Offer:
        """Offers at most `limit` tokens after `tokens`; deterministic, given what it learned.

        confidence: any number in [0, 1]; equal numbers should be equally likely to be right.
        """
        ...

    def learn(self, judged: Judged) -> None:
        """Learns from a verification."""
        ...
