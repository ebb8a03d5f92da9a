"""The values that flow between loop, drafters, drivers and readers. Values only: nothing here acts.

A round of speculation (Leviathan et al., ICML 2023, arXiv 2211.17192): a drafter makes a `Draft`, the
loop asks the target for the rows that judge it (`Ask`), a rule turns them into a verdict, and what was
emitted goes out as a `Round`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from edgespec.sampling import Distribution

ModelName = Literal["target", "draft"]
FinishReason = Literal["stop", "length", "cancelled"]


@dataclass(frozen=True, slots=True)
class Ask:
    """A request for logits: "what follows these tokens, on this model?"

    The answer is a float32 array of shape (rows, n_vocab), valid until the next ask to the same model,
    or None where the driver refuses (only asks to the draft may be refused). A driver may answer an ask
    to the target with fewer rows; the draft is then cut to rows - 1 tokens.
    """

    model: ModelName
    tokens: NDArray[np.int32]  # (n,) settled tokens
    tail: tuple[int, ...]  # drafted tokens behind them, not settled yet
    rows: int  # logits wanted for the last `rows` positions of tokens + tail
    worth: float = 1.0  # probability, by the drafter's own reckoning, that the next guess is reached


@dataclass(frozen=True, slots=True)
class Draft:
    """A guess: tokens, and for each the distribution that it was really drawn from.

    A deterministic guess (lookup, greedy) has point masses. `source` names who guessed each token.
    """

    tokens: tuple[int, ...] = ()
    probs: tuple[Distribution, ...] = ()
    sources: tuple[str, ...] = ()

    def cut(self, length: int) -> Draft:
        """Returns the first `length` tokens. Exact only where `length` does not depend on the tokens."""
        if length >= len(self.tokens):
            return self
        return Draft(self.tokens[:length], self.probs[:length], self.sources[:length])


@dataclass(frozen=True, slots=True)
class Round:
    """What one evaluation of the target brought.

    `tokens` are those that stay (without the end token, and cut at a stop string); `drafted` and
    `accepted` count what was verified; `sources` says for each of `tokens` who produced it: a drafter's
    name, or "target" for the recovered or bonus token.
    """

    tokens: tuple[int, ...]
    text: str
    drafted: int
    accepted: int
    sources: tuple[str, ...]
    finish: FinishReason | None = None
