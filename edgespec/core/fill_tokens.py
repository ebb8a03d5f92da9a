"""The tokens between which a model fills in text, as its vocabulary names them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FillTokens:
    """The tokens between which a model fills in text. repository, separator: -1 if it has none."""

    prefix: int
    suffix: int
    middle: int
    repository: int = -1
    separator: int = -1
