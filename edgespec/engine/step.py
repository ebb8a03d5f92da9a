"""One step of several streams: steps of the draft until nobody is granted another, then one verification.

What each is granted its pace says, seeing what all the others hold by now (`joint_pace.Load`). Drawn
guesses are refused before they are drawn or not at all; free offers are cut at the end, all together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from edgespec.core.loop import NO_ROWS, Rows, Scorer, Want
from edgespec.core.pace.controller import Costs
from edgespec.core.pace.joint import LEAP, JointController, Load, Trust
from edgespec.core.values import ModelName, Reach, Round
from edgespec.engine.prefixes import Prefixes
from edgespec.engine.slots import Cache, Slot
from edgespec.errors import EdgeSpecError, EngineError, NoRoomError


class Step:
    """Runs one step of the slots given; `rounds` and `failures` say what came of it.

    A slot is in `failures` once at most, and then perhaps behind a round.
    """

    def __init__(
        self,
        slots: Sequence[Slot],
        contexts: Mapping[ModelName, Cache],
        costs: Costs,
        clock: Callable[[], float],
        prefixes: Prefixes,
        trust: Trust | None = None,
        scorers: Mapping[ModelName, Scorer] | None = None,
    ) -> None:
        """prefixes: where cells come from when they have run out.

        scorers: who evaluates, where that is not the contexts alone: the draft may read ahead.
        """
        self.suspended: list[Slot] = []  # for lack of cells; they go on where they stood
        self._prefixes = prefixes
        self.rounds: list[tuple[Slot, Round]] = []
        self.failures: list[tuple[Slot, EdgeSpecError]] = []
        self._slots = list(slots)
        self._contexts, self._costs, self._clock = contexts, costs, clock
        self._scorers: Mapping[ModelName, Scorer] = scorers or contexts
        self._trust = trust or Trust()
        self._expected = 0.0  # gain of a step that takes free offers
        self._aside = 0.0  # seconds in which the draft read old tokens

    def read(self, slot: Slot, want: Want) -> None:
        """Shows the target a piece of a prompt; its last piece brings a round."""
        whole = want.tokens.size + len(want.tail) == slot.request.ask.tokens.size + len(slot.request.ask.tail)
        rows = self._score("target", [want], [slot])
        if rows and whole and slot.request.ask.model == "target":
            self._end([slot], rows)
            for _, round_ in self.rounds:
                slot.request.pace.observe(round_)

    def speculate(self, most: int, left: int) -> None:
        """Drafts and verifies. most: tokens the evaluation may have; left: that the draft may read now."""
        began = self._clock()
        load = self._enter(most)
        while asking := [slot for slot in self._slots if slot.request.ask.model == "draft"]:
            drawing = [slot for slot in asking if not slot.request.ask.rows]
            if drawing:
                self._draw(drawing, load)
            else:
                left -= self._guess(asking, load, left)
        self._verify(load)
        seconds = self._clock() - began - self._aside
        self._settle(load, seconds)

    def _enter(self, most: int) -> Load:
        """Begins the step for all: what does it hold without any guess?"""
        target = self._contexts["target"]
        least = {}
        for slot in self._slots:
            ask = slot.request.ask
            first = slot.request.first and ask.model == "target"
            least[slot.seq] = target.missing(slot.want()) - slot.request.drawn if first else 1
            if slot.request.stream.grammar and not first:  # what it settled is read with what follows
                least[slot.seq] = target.missing(Want(ask.tokens, (), 1, slot.seq))
        n_ctx = sum(slot.request.ask.tokens.size for slot in self._slots) // max(len(self._slots), 1)
        load = Load(self._costs, least, most, n_ctx)
        for slot in self._slots:
            pace = slot.request.pace
            load.guesses[slot.seq] = slot.request.drawn  # before it was suspended
            if isinstance(pace, JointController):
                pace.enter(load, slot.request.stream.record(len(self._slots)))
        return load

    # ---- drafting ----------------------------------------------------------------------------------------

    def _draw(self, slots: Sequence[Slot], load: Load) -> None:
        """Says who may draw a guess, those first whose guess is worth most."""
        drawing = [slot for slot in slots if slot.request.ask.reach]
        for slot in [slot for slot in slots if slot not in drawing]:  # they ask whether to guess at all
            looks = slot.request.pace.grants_step(slot.request.ask, 0)
            self._advance(slot, NO_ROWS if looks else None)
        for slot in _by_worth(drawing):
            ask = slot.request.ask
            granted = load.room > 0 and slot.request.pace.grants_step(ask, 0)
            if granted:
                load.granted(slot.seq, ask.reach[0])
            self._advance(slot, NO_ROWS if granted else None)

    def _guess(self, asking: Sequence[Slot], load: Load, left: int) -> int:
        """Evaluates the draft once for all who are granted a guess; returns how many tokens it read."""
        wants, lags = {}, {}
        read = 0
        for slot in _by_worth(asking):
            want, lag = self._wanted(slot)
            if lag <= max(left - read, 2):
                wants[slot.seq], lags[slot.seq] = want, lag
                read += lag if lag > _usual(slot) else 0
            elif read < left and _would_read(slot, lag, load):
                self._show(slot, want, lag, left - read)
                read = left
        chosen = self._choose([slot for slot in asking if slot.seq in wants], lags, load)
        for slot in asking:
            if slot not in chosen:
                self._advance(slot, None)
        if chosen:
            self._evaluate(chosen, [wants[slot.seq] for slot in chosen], lags, load)
        return read

    def _wanted(self, slot: Slot) -> tuple[Want, int]:
        """Returns what a slot wants of the draft, and how many tokens of it are missing there."""
        running, draft = slot.request, self._scorers["draft"]
        ask = running.ask
        if running.read_from is None:
            lag = draft.missing(Want(ask.tokens, ask.tail, ask.rows, slot.seq, ask.skipped))
            allowed = running.pace.window(lag) if lag else 0
            running.read_from = 0 if allowed >= lag else ask.skipped + ask.tokens.size - allowed
        window = ask.tokens[max(0, running.read_from - ask.skipped) :]
        left_out = ask.skipped + ask.tokens.size - window.size
        want = Want(window, ask.tail, ask.rows, slot.seq, left_out)
        return want, 1 if ask.tail else draft.missing(want)

    def _show(self, slot: Slot, want: Want, lag: int, left: int) -> None:
        """Shows the draft a piece of what it has not read; it may guess when it has read all."""
        started = self._clock()
        end = want.tokens.size - lag + min(left, lag - 1)
        self._score("draft", [Want(want.tokens[:end], (), 1, slot.seq, want.before)], [slot])
        self._set_aside([slot], self._clock() - started)

    def _choose(self, asking: Sequence[Slot], lags: Mapping[int, int], load: Load) -> list[Slot]:
        """Returns who may guess. Fewer of them share the evaluation than asked, so they are asked twice."""
        chosen = _by_worth(asking)
        for _ in range(2):
            load.together, load.tries = max(len(chosen), 1), 0
            granted = []
            for slot in chosen:
                if load.room > 0 and slot.request.pace.grants_step(slot.request.ask, lags[slot.seq]):
                    granted.append(slot)
                    load.tries += 1
            if len(granted) == len(chosen):
                break
            chosen = granted
        return granted

    def _evaluate(self, slots: list[Slot], wants: list[Want], lags: Mapping[int, int], load: Load) -> None:
        draft, started = self._contexts["draft"], self._clock()
        before = draft.evaluated
        load.together = len(slots)
        rows = self._score("draft", wants, slots)
        if rows is None:
            for slot in slots:
                self._advance(slot, None)
            return
        for slot, answer in zip(slots, rows, strict=True):
            self._advance(slot, answer)
        seconds = self._clock() - started
        step = self._costs.draft.seconds(len(slots), load.n_ctx)
        if draft.evaluated > before:  # else it was read ahead
            self._costs.draft.learn(draft.evaluated - before, load.n_ctx, seconds)
            load.drafting += step
        for slot in slots:
            if isinstance(slot.request.pace, JointController):
                slot.request.pace.drafted()
        readers = [slot for slot in slots if lags[slot.seq] > _usual(slot)]
        if readers:
            self._set_aside(readers, max(0.0, seconds - step))

    def _set_aside(self, readers: Sequence[Slot], seconds: float) -> None:
        """Keeps the seconds of reading out of what the step is charged with."""
        self._aside += seconds
        for slot in readers:
            if isinstance(slot.request.pace, JointController):
                slot.request.pace.read(seconds / len(readers))

    # ---- verification ------------------------------------------------------------------------------------

    def _verify(self, load: Load) -> None:
        """Evaluates the rows of all in one call, and has each judged."""
        offers: dict[int, Reach] = {}
        for slot in self._slots:
            ask, pace = slot.request.ask, slot.request.pace
            if not ask.reach:
                continue
            if not isinstance(pace, JointController):
                load.guesses[slot.seq] = min(pace.grants_rows(ask), max(load.room, 0))
            elif pace.takes_offers:
                offers[slot.seq] = ask.reach
        lengths, gain = load.allot(offers, self._trust.factor)
        load.guesses.update(lengths)
        self._expected = gain / self._trust.factor if lengths else 0.0
        for slot in self._slots:
            pace = slot.request.pace
            if isinstance(pace, JointController):
                pace.took(lengths[slot.seq], gain)
        if not self._slots:
            return
        target, started = self._contexts["target"], self._clock()
        before = target.evaluated
        slots = list(self._slots)
        wants = [slot.want(load.guesses[slot.seq]) for slot in slots]
        rows = self._score("target", wants, slots)
        if rows is None:
            return
        self._end(slots, rows)
        together = len(wants) == 1 or target.batches  # what a row costs beside others is seen only there
        if together and target.evaluated - before == sum(want.rows for want in wants):
            self._costs.target.learn(target.evaluated - before, load.n_ctx, self._clock() - started)

    def _end(self, slots: Sequence[Slot], rows: Sequence[Rows]) -> None:
        """Answers the loops with their rows, takes their rounds, and goes on to what they ask next."""
        for slot, answer in zip(slots, rows, strict=True):
            round_ = self._advance(slot, answer)
            if round_ is None:
                continue
            self.rounds.append((slot, round_))
            try:
                slot.request.go_on()
            except EdgeSpecError as error:
                self._fail(slot, error)

    def _settle(self, load: Load, seconds: float) -> None:
        """Charges each stream with its part of the seconds, and tells what had been expected of its round."""
        shares = {}
        for slot, _ in self.rounds:
            pace = slot.request.pace
            shares[slot.seq] = (
                pace.share() if isinstance(pace, JointController) else load.share(slot.seq, 0.0)
            )
        whole = sum(shares.values())
        if self._expected:
            tokens = sum(round_.accepted + 1 for _, round_ in self.rounds)
            self._trust.note(self._expected, max(tokens * load.one / seconds, self._expected / LEAP))
        else:
            self._trust.rest()
        for i, (slot, round_) in enumerate(self.rounds):
            pace = slot.request.pace
            if isinstance(pace, JointController) and load.least[slot.seq] == 1:
                pace.charge(seconds * shares[slot.seq] / whole)
            self.rounds[i] = slot, replace(round_, gain=pace.observe(round_))

    # ---- what may fail -----------------------------------------------------------------------------------

    def _score(self, model: ModelName, wants: list[Want], slots: list[Slot]) -> list[Rows] | None:
        """Returns the rows of all; None where the draft has no cells, or where llama.cpp failed, for all.

        Where cells run out, idle sequences give theirs. Of the target's, the youngest then waits: it is taken
        out of both lists.
        """
        while slots:
            try:
                return self._scorers[model].score(wants)
            except NoRoomError:
                if self._prefixes.make_room():
                    continue
                if model == "draft":  # whoever asked does without
                    return None
                youngest = max(slots, key=lambda slot: slot.request.number)
                self.suspended.append(youngest)
                del wants[slots.index(youngest)]
                slots.remove(youngest)
                if youngest in self._slots:
                    self._slots.remove(youngest)
                self._prefixes.put_aside(youngest)
            except EngineError as error:
                for slot in list(slots):
                    self._fail(slot, error)
                return None
        return None

    def _advance(self, slot: Slot, answer: Rows | None) -> Round | None:
        if slot not in self._slots:  # it failed in this step
            return None
        try:
            return slot.request.advance(answer)
        except EdgeSpecError as error:
            self._fail(slot, error)
            return None

    def _fail(self, slot: Slot, error: EdgeSpecError) -> None:
        self.failures.append((slot, error))
        if slot in self._slots:
            self._slots.remove(slot)


def _by_worth(slots: Sequence[Slot]) -> list[Slot]:
    return sorted(slots, key=lambda slot: -slot.request.ask.reach[0])


def _usual(slot: Slot) -> int:
    """Returns how many tokens a draft may have to read before any round."""
    pace = slot.request.pace
    return pace.usual if isinstance(pace, JointController) else 2


def _would_read(slot: Slot, lag: int, load: Load) -> bool:
    """May the draft be shown more tokens than can be read in one step?"""
    pace, ask = slot.request.pace, slot.request.ask
    if isinstance(pace, JointController):
        return pace.would_read(ask, lag)
    return load.room > 0 and pace.grants_step(ask, lag)
