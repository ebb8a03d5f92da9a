"""Which part of which prompt is read next: whole chunks alone, beside others what a short pause allows."""

from __future__ import annotations

from collections.abc import Sequence

from edgespec.core.loop import Want
from edgespec.core.pace.costs import Costs
from edgespec.engine.prefixes import chunk_of
from edgespec.engine.slots import Cache, Slot

PAUSE_S = 0.4  # longest that running streams should stand still, a round apart from that; or as long as one
SOON_S = 4.0  # seconds of reading that come before the draft reads for those who run
PATIENCE = 8.0  # times as long as reading its prompt takes: who waited so long goes before all who came later
TILE = 64  # llama.cpp adds up in tiles of so many tokens: whole ones are as in a longer chunk
FADE = 0.7  # of what earlier chunks say of the speed of reading, with each new one


class PromptReader:
    """Bounds reading in time, by what it was seen to take. Counted is in tokens."""

    def __init__(self, target: Cache, costs: Costs, *, chunk: int, n_rows: int) -> None:
        """chunk: tokens that are read at once at most, however fast; n_rows: that several sequences share."""
        self._target, self._draft, self._chunk, self._n_rows = target, costs.draft, chunk, n_rows
        self._pause_s = max(PAUSE_S, costs.target.seconds(1))
        self._token_s = costs.target.seconds(chunk) / chunk
        self._fade = 0.0  # FADE, once a chunk was read
        self._used = 0  # tokens read since the last round

    @property
    def _left(self) -> int:
        """Tokens that may be read before the next round."""
        return max(0, self._in_a_pause - self._used)

    @property
    def _in_a_pause(self) -> int:
        """What one pause has room for, 1 at least."""
        return max(1, min(self._chunk, int(self._pause_s / self._token_s)))

    def next_chunk(
        self, running: Sequence[Slot], joining: list[tuple[Slot, Want]]
    ) -> tuple[Slot, Want] | None:
        """Returns which chunk of a new prompt the target is shown by itself; None where a round is due.

        Who is read soonest comes first, as long as nobody loses patience. A last chunk that is short joins
        the evaluation of all, which then comes before what is behind it. Where not even a tile can be read
        in a pause, parts of prompts join it, too: they are added to `joining`.
        """
        lags = {slot: self._target.missing(slot.want()) for slot in running if slot.request.reading}
        alone = len(lags) == len(running)  # nobody waits for what he has begun to hear
        slow = not alone and self._in_a_pause < min(TILE, self._chunk)
        room, due = self._n_rows - len(running), False
        if alone:
            self._used = 0
        else:
            room = min(room, self._left)
        for slot in sorted(lags, key=lambda slot: self._latest(slot, lags[slot])):
            want, lag = slot.want(), lags[slot]
            if lag <= room + 1:
                room -= lag - 1
                slot.request.reading, due = False, True
            elif slow and room > 0:
                joining.append((slot, self._beginning(slot, want, lag, room)))
                room = 0
            elif not (due or slow):
                size = chunk_of(lag, self._chunk)
                if not alone:
                    if size > self._left:
                        size = self._left // TILE * TILE
                    self._used += size
                return (slot, self._beginning(slot, want, lag, size)) if size else None
        return None

    def _latest(self, slot: Slot, lag: int) -> tuple[float, int]:
        """Returns when a prompt is to be read at the latest, and its number."""
        return slot.request.since + PATIENCE * lag * self._token_s, slot.request.number

    def _beginning(self, slot: Slot, want: Want, lag: int, size: int) -> Want:
        """Returns a want for the next `size` of the `lag` tokens that are still to be read."""
        end = want.tokens.size + len(want.tail)
        if size == self._chunk and slot.whole + lag == end:
            slot.whole += size
        slot.request.reading = size < lag
        return Want(want.tokens[: end - lag + size], (), 1, slot.seq) if size < lag else want

    def note(self, n: int, seconds: float) -> None:
        """Takes note of an evaluation that read prompts; small ones say little."""
        if n >= TILE // 2:
            fade, self._fade = self._fade, FADE
            self._token_s = fade * self._token_s + (1 - fade) * seconds / n

    def end_pause(self, waiting: int = 0) -> int:
        """Begins anew behind a round; returns how many tokens the draft may read in that.

        waiting: tokens of prompts that the target has not read before that. Where it soon will have, the
        draft reads none before.
        """
        left, self._used = self._left, 0
        if 0 < waiting * self._token_s < SOON_S:
            return 0
        if left == self._chunk == self._in_a_pause:  # the usual case, and rounds may be short
            return self._chunk
        rest = left * self._token_s
        return min(self._chunk, max(TILE, int(rest * self._chunk / self._draft.seconds(self._chunk))))
