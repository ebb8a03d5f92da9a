"""How much of new prompts is read between two rounds of the streams that run: what a short pause allows."""

from __future__ import annotations

from edgespec.core.pace.costs import Costs

PAUSE_S = 0.36  # longest that running streams should stand still, a round apart from that; or as long as one
TILE = 64  # llama.cpp adds up in tiles of so many tokens: whole ones are as in a longer piece
FADE = 0.7  # of what earlier pieces say of the speed of reading, with each new one


class Pauses:
    """Bounds reading in time, by what it was seen to take. Counted is in tokens."""

    def __init__(self, costs: Costs, piece: int) -> None:
        """piece: tokens that are read at most, however fast."""
        self._piece, self._draft = piece, costs.draft
        self._pause_s = max(PAUSE_S, costs.target.seconds(1))
        self._token_s = costs.target.seconds(piece) / piece
        self.left = self.tokens  # that may be read before the next round

    @property
    def tokens(self) -> int:
        """What one pause has room for, 1 at least."""
        return max(1, min(self._piece, int(self._pause_s / self._token_s)))

    @property
    def joins(self) -> bool:
        """True where not even a tile can be read in a pause: parts of prompts then join each evaluation."""
        return self.tokens < min(TILE, self._piece)

    def read(self, n: int, seconds: float) -> None:
        """Takes note of a piece that was read by itself; small ones say little."""
        self.left -= n
        if n >= TILE:
            self._token_s = FADE * self._token_s + (1 - FADE) * seconds / n

    def part(self, whole: int) -> int:
        """Returns how many of a piece of `whole` tokens may be read now: all, whole tiles, or 0."""
        return whole if whole <= self.left else max(self.left, 0) // TILE * TILE

    def end(self) -> int:
        """Begins anew behind a round; returns how many tokens the draft may read in that."""
        if self.left == self._piece == self.tokens:  # the usual case, and rounds may be short
            return self._piece
        rest = max(self.left, 0) * self._token_s
        self.left = self.tokens
        return min(self._piece, max(TILE, int(rest * self._piece / self._draft.seconds(self._piece))))
