"""Which part of which prompt is read next: whole chunks alone, with others what a short pause allows."""

from collections.abc import Sequence

from edgespec.core.loop import Want
from edgespec.core.media import whole_after, whole_before
from edgespec.core.pace.costs import Costs
from edgespec.engine.prefixes import chunk_of
from edgespec.engine.slots import Cache, Slot

PAUSE_S = 0.4  # longest that running streams should pause, rounds excluded; or as long as one round
LONGEST_PAUSE_S = 1.5  # while long prompts wait, whose reading the rounds between pauses would draw out
PAUSES = 8  # what waits is read in so many of them, if they get no longer than that
SOON_S = 4.0  # seconds of reading that come before the draft reads for running streams
PATIENCE = 8.0  # times as long as reading its prompt takes: who waited so long goes before all later ones
TILE = 64  # llama.cpp sums in tiles of so many tokens: whole ones compute as in a longer chunk
FADE = 0.7  # weight of earlier chunks in the speed of reading, with each new one


class PromptReader:
    """Limits the time of reading, by measured speed. Counts in tokens."""

    def __init__(self, target: Cache, costs: Costs, *, chunk: int, n_rows: int) -> None:
        """chunk: most tokens that are read at once, however fast; n_rows: that several sequences share."""
        self._target, self._draft, self._chunk, self._n_rows = target, costs.draft, chunk, n_rows
        self._least_pause_s = self._pause_s = max(PAUSE_S, costs.target.seconds(1))
        self._token_s = costs.target.seconds(chunk) / chunk
        self._fade = 0.0  # FADE, once a chunk was read
        self._used = 0  # tokens read since the last round

    @property
    def _left(self) -> int:
        """Tokens that may be read before the next round."""
        return max(0, self._in_a_pause - self._used)

    @property
    def _in_a_pause(self) -> int:
        """Tokens that fit into one pause, at least 1."""
        return max(1, min(self._chunk, int(self._pause_s / self._token_s)))

    def next_chunk(
        self, running: Sequence[Slot], joining: list[tuple[Slot, Want]]
    ) -> tuple[Slot, Want] | None:
        """Returns which chunk of a new prompt the target reads by itself; None if a round is due.

        The prompt that is read soonest comes first, while nobody loses patience. A short last chunk joins
        the evaluation of all, which then comes before what follows it. If not even a tile can be read
        in a pause, parts of prompts join it too: they are added to `joining`. A medium joins none that has
        no room for all of it: it is read by itself, once between two rounds.
        """
        lags = {slot: self._target.missing(slot.want()) for slot in running if slot.request.reading}
        waiting_s = sum(lags.values()) * self._token_s
        self._pause_s = max(self._least_pause_s, min(waiting_s / PAUSES, LONGEST_PAUSE_S))
        alone = len(lags) == len(running)  # nobody waits for more of an answer
        slow = not alone and self._in_a_pause < min(TILE, self._chunk)
        room, due = self._n_rows - len(running), False
        if alone:
            self._used = 0
        else:
            drawn = max(slot.request.drawn for slot in running if slot not in lags)
            room = min(room - drawn, self._left)
        for slot in sorted(lags, key=lambda slot: self._latest(slot, lags[slot])):
            want, lag = slot.want(), lags[slot]
            if lag <= room + 1:
                room -= lag - 1
                slot.request.reading, due = False, True
            elif slow and room > 0:
                if part := self._before_media(want, lag, room):
                    joining.append((slot, self._beginning(slot, want, lag, part)))
                    room = 0
                elif not (due or joining or self._used):
                    return slot, self._by_itself(slot, want, lag, 1)
            elif not (due or slow):
                size = chunk_of(lag, self._chunk)
                if alone:
                    return slot, self._beginning(slot, want, lag, size)
                if size > self._left:
                    size = self._left // TILE * TILE
                return (slot, self._by_itself(slot, want, lag, size)) if size else None
        return None

    def _before_media(self, want: Want, lag: int, room: int) -> int:
        """Returns how many tokens of the `lag` that are still to be read fit into `room`, no medium cut."""
        begin = want.tokens.size + len(want.tail) - lag
        return max(0, whole_before(want.tokens, begin + room) - begin)

    def _by_itself(self, slot: Slot, want: Want, lag: int, size: int) -> Want:
        """Returns a want for a part that is read while others wait, and counts its tokens."""
        part = self._beginning(slot, want, lag, size)
        self._used += part.tokens.size + len(part.tail) - (want.tokens.size + len(want.tail) - lag)
        return part

    def _latest(self, slot: Slot, lag: int) -> tuple[float, int]:
        """Returns when a prompt should be read at the latest, and its number."""
        return slot.request.since + PATIENCE * lag * self._token_s, slot.request.number

    def _beginning(self, slot: Slot, want: Want, lag: int, size: int) -> Want:
        """Returns a want for the next `size` of the `lag` tokens that are still to be read.

        A medium is not cut: it makes a part longer.
        """
        end = want.tokens.size + len(want.tail)
        size = whole_after(want.tokens, end - lag + size) - end + lag
        if size == self._chunk and slot.whole + lag == end:
            slot.whole += size
        slot.request.reading = size < lag
        return Want(want.tokens[: end - lag + size], (), 1, slot.seq) if size < lag else want

    def note(self, n: int, seconds: float) -> None:
        """Learns from an evaluation that read prompts; small ones say little."""
        if n >= TILE // 2:
            fade, self._fade = self._fade, FADE
            self._token_s = fade * self._token_s + (1 - fade) * seconds / n

    def end_pause(self, waiting: int = 0) -> int:
        """Starts anew after a round; returns how many tokens the draft may read in that.

        waiting: tokens of prompts that the target has not read before that. If it soon will have, the
        draft reads none before.
        """
        left, self._used = self._left, 0
        if 0 < waiting * self._token_s < SOON_S:
            return 0
        if left == self._chunk == self._in_a_pause:  # the usual case, and rounds may be short
            return self._chunk
        rest = left * self._token_s
        return min(self._chunk, max(TILE, int(rest * self._chunk / self._draft.seconds(self._chunk))))
