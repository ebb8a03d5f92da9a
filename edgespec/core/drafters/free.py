"""The free guessers: one of each name in `core.values.FreeName`. They compete if no drafter is chosen."""

from importlib import import_module

from edgespec.core.drafters import Guesser
from edgespec.core.values import FREE


def free_guessers(n_vocab: int) -> list[Guesser]:
    """Returns what `guesser` makes in the file of each name. n_vocab: tokens of the target."""
    return [import_module(f"edgespec.core.drafters.{name}").guesser(n_vocab) for name in FREE]
