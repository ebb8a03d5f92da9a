"""The free guessers: one of each name in `core.values.FreeName`. They compete if no drafter is chosen."""

from importlib import import_module

from edgespec.core.drafters import Guesser, Piece
from edgespec.core.values import FREE


def free_guessers(n_vocab: int, piece: Piece) -> list[Guesser]:
    """Returns what `guesser` makes in the file of each name, from the target's vocabulary."""
    return [import_module(f"edgespec.core.drafters.{name}").guesser(n_vocab, piece) for name in FREE]
