"""The draft's part of one step: it is evaluated until nobody is granted another guess."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from edgespec.core.loop import NO_ROWS, Scorer, Want
from edgespec.core.pace.batch_plan import BatchPlan
from edgespec.core.pace.costs import Costs
from edgespec.engine.active_streams import ActiveStreams
from edgespec.engine.slots import Cache, Slot


class Drafting:
    """Has the streams of a step draw their guesses. Each one's pace decides what it is granted."""

    def __init__(
        self,
        active: ActiveStreams,
        draft: Cache,
        scorer: Scorer,
        batch: BatchPlan,
        costs: Costs,
        clock: Callable[[], float],
    ) -> None:
        """scorer: what evaluates for the draft: its context, or one that reads ahead."""
        self._active, self._draft, self._scorer = active, draft, scorer
        self._batch, self._costs, self._clock = batch, costs, clock
        self.aside = 0.0  # seconds that no round is charged with

    def run(self, left: int) -> None:
        """Drafts. left: tokens that the draft may read now."""
        while asking := [slot for slot in self._active.slots if slot.request.ask.model == "draft"]:
            if drawing := [slot for slot in asking if not slot.request.ask.rows]:
                self._draw(drawing)
            else:
                left -= self._guess(asking, left)

    def _draw(self, slots: Sequence[Slot]) -> None:
        """Says who may draw a guess, those first whose guess is worth most."""
        for slot in slots if len(slots) < 2 else _by_worth(slots):
            reach = slot.request.ask.reach
            granted = self._grants(slot, 0)
            if granted:
                self._batch.granted(slot.seq, reach[0])
            self._active.advance(slot, NO_ROWS if granted else None)

    def _guess(self, asking: Sequence[Slot], left: int) -> int:
        """Evaluates the draft once for all who are granted a guess; returns how many tokens it read."""
        wants: dict[Slot, tuple[Want, int]] = {}
        read = 0
        for slot in asking if len(asking) < 2 else _by_worth(asking):
            if slot.request.notice:
                continue
            want, lag = self._wanted(slot)
            # a head reads its last round again, whoever else is reading
            usual = slot.request.pace.usual if lag > 1 else 1
            if lag <= usual or lag <= left - read:
                wants[slot] = want, lag
                read += lag if lag > usual else 0
            elif read < left and self._grants(slot, lag):
                self._show(slot, want, lag, left - read)
                read = left
        chosen = self._choose(wants)
        for slot in asking:
            if slot not in chosen:
                self._active.advance(slot, None)
        if chosen:
            self._evaluate(chosen, wants)
        return read

    def _wanted(self, slot: Slot) -> tuple[Want, int]:
        """Returns what a slot wants of the draft, and how many tokens of it are missing there."""
        running, ask = slot.request, slot.request.ask
        if running.read_from > ask.skipped:
            window, before = ask.tokens[running.read_from - ask.skipped :], running.read_from
        else:
            window, before = ask.tokens, ask.skipped
        want = Want(window, ask.tail, ask.rows, slot.seq, before)
        if ask.tail:
            return want, 1
        lag = self._scorer.missing(want)
        goes_on, running.catching_up = running.catching_up, False
        if not goes_on and (allowed := running.pace.window(lag)) < lag:
            window = ask.tokens[ask.tokens.size - allowed :]  # earlier tokens are left out from now on
            running.read_from = ask.skipped + ask.tokens.size - allowed
            return Want(window, (), ask.rows, slot.seq, running.read_from), allowed
        return want, lag

    def _show(self, slot: Slot, want: Want, lag: int, left: int) -> None:
        """Has the draft read a chunk of what it has not read; it may guess when it has read all."""
        slot.request.catching_up = True
        started = self._clock()
        end = want.tokens.size - lag + min(left, lag - 1)
        self._active.score("draft", [(slot, Want(want.tokens[:end], (), 1, slot.seq, want.before))])
        self._set_aside([slot], self._clock() - started)

    def _choose(self, wants: Mapping[Slot, tuple[Want, int]]) -> list[Slot]:
        """Returns who may guess. Fewer of them share the evaluation than asked, so they are asked twice."""
        chosen = list(wants)
        for _ in range(2):
            self._batch.together, self._batch.tries = max(len(chosen), 1), 0
            granted = []
            for slot in chosen:
                if self._grants(slot, wants[slot][1]):
                    granted.append(slot)
                    self._batch.tries += 1
            if len(granted) == len(chosen):
                break
            chosen = granted
        return granted

    def _evaluate(self, slots: list[Slot], wants: Mapping[Slot, tuple[Want, int]]) -> None:
        """Evaluates the draft for all of them, and says who may draw."""
        draft, started = self._draft, self._clock()
        before, tried = draft.evaluated, draft.tried
        self._batch.together = len(slots)
        apart = self._read_apart(slots, wants)
        rows = self._active.score("draft", [(slot, wants[slot][0]) for slot in slots]).rows
        readers, drawing = [], []
        for i, slot in enumerate(slots):
            self._active.advance(slot, rows[i] if rows else None)
            ask = slot.request.ask
            if not ask.rows:
                drawing.append(slot)
            if (lag := wants[slot][1]) > 1 and lag > slot.request.pace.usual:
                readers.append(slot)
        if not rows:
            return
        if self._batch.weighed:
            tried = draft.tried - tried
            self.aside += tried
            evaluated, seconds, step = (
                draft.evaluated - before,
                self._clock() - started - tried,
                self._batch.evaluation(),
            )
            if evaluated:  # else it was read ahead
                self._costs.draft.learn(max(1, evaluated // apart), self._batch.n_ctx, seconds / apart)
                self._batch.drafting += step * len(slots)
            for slot in slots:
                slot.request.pace.drafted()
                self._batch.drafted(slot.seq, step)
            if readers:
                self._set_aside(readers, max(0.0, seconds - step * len(slots)))
        self._draw(drawing)

    def _read_apart(self, slots: list[Slot], wants: Mapping[Slot, tuple[Want, int]]) -> int:
        """Has the draft read the first of two tokens alone, if one after the other is cheaper than at once.

        As after each draft that was accepted whole; on a card, where evaluations that follow another size are
        dearer, always. Returns in how many evaluations the tokens are read.
        """
        want, lag = wants[slots[0]]
        draft, costs = self._draft, self._costs.draft
        if len(slots) > 1 or lag != 2 or not draft.fills:
            return 1
        weighed, n_ctx = self._batch.weighed, self._batch.n_ctx
        if not costs.settling and (not weighed or costs.seconds(2, n_ctx) <= 2 * costs.seconds(1, n_ctx)):
            return 1
        first = want._replace(tokens=np.append(want.tokens, np.array(want.tail, np.int32))[:-1], tail=())
        return 2 if self._active.score("draft", [(slots[0], first)]).rows else 1

    def _set_aside(self, readers: Sequence[Slot], seconds: float) -> None:
        """Excludes the seconds of reading from what the step is charged with."""
        self.aside += seconds
        for slot in readers:
            slot.request.pace.read(seconds / len(readers))

    def _grants(self, slot: Slot, lag: int) -> bool:
        """Returns whether a slot may guess one token more, after `lag` tokens that the draft reads first."""
        running = slot.request
        return self._batch.total < self._batch.most and running.pace.grants_step(running.ask, lag)


def _by_worth(slots: Sequence[Slot]) -> Sequence[Slot]:
    """Returns those first whose next guess is likeliest to count; those whose reach is unknown before all."""
    return sorted(slots, key=lambda slot: -(*slot.request.ask.reach, 1.0)[0])
