"""The free guessers, a line each: those listed here compete if no drafter is chosen."""

from __future__ import annotations

from edgespec.core.drafters import Guesser
from edgespec.core.drafters.lookahead import Lookahead
from edgespec.core.drafters.recycling import TokenRecycling
from edgespec.core.drafters.suffix_lookup import SuffixLookup


def free_guessers(n_vocab: int) -> list[Guesser]:
    """Returns one of each, in their state at a pair's first request. n_vocab: tokens of the target."""
    return [
        SuffixLookup(),
        TokenRecycling(n_vocab),
        Lookahead(),
    ]
