"""One step of the streams: steps of the draft until nobody is granted another, then one verification.

Each one's pace decides what it is granted, seeing what all the others hold by now (`BatchPlan`). Drawn
guesses are refused before they are drawn or not at all; free offers are cut at the end, all together.
"""

from collections.abc import Callable, Mapping, Sequence

from edgespec.core.loop import Rows, Scorer, Want
from edgespec.core.pace.batch_plan import BatchPlan
from edgespec.core.pace.costs import Costs
from edgespec.core.pace.record import Trust
from edgespec.core.values import ModelName, Reach, Round
from edgespec.engine.active_streams import ActiveStreams
from edgespec.engine.drafting import Drafting
from edgespec.engine.prefixes import Prefixes
from edgespec.engine.slots import Cache, Slot
from edgespec.errors import EdgeSpecError


class Step:
    """Runs one step of the given slots; `rounds`, `failures` and `suspended` have the results.

    `verified` is what the target evaluated at the end, in tokens and seconds.
    A slot may be in `failures` after a round.
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
        """prefixes: see `ActiveStreams`. trust: in free offers, among as many streams.

        scorers: what evaluates, if not the contexts alone.
        """
        self.rounds: list[tuple[Slot, Round]] = []
        self.verified = 0, 0.0
        self._scorers: Mapping[ModelName, Scorer] = scorers or contexts
        self._active = ActiveStreams(slots, self._scorers, prefixes)
        self._contexts, self._costs, self._clock = contexts, costs, clock
        self._trust = trust or Trust()
        self._prompts: set[int] = set()  # slots whose prompt is evaluated with this step
        self._joining: Sequence[tuple[Slot, Want]] = ()  # parts of prompts of others, read along with it
        self._expected = 0.0  # gain of a step that takes free offers
        self._entering = 0.0  # seconds before anything was drafted
        self._aside = 0.0  # seconds that no round is charged with

    @property
    def failures(self) -> Sequence[tuple[Slot, EdgeSpecError]]:
        """Those that ended by an error."""
        return self._active.failures

    @property
    def suspended(self) -> Sequence[Slot]:
        """Those that wait for cells."""
        return self._active.suspended

    def read(self, slot: Slot, want: Want) -> None:
        """Has the target read a chunk of a prompt; its last chunk brings a round."""
        whole = want.tokens.size + len(want.tail) == slot.request.ask.tokens.size + len(slot.request.ask.tail)
        if whole:
            self._enter(0)
        scored = self._active.score("target", [(slot, want)])
        self._costs.note_size(0)
        if scored.rows and whole and slot.request.ask.model == "target":
            self._end([slot], scored.rows)
            for _, round_ in self.rounds:
                slot.request.pace.observe(round_, 0.0)

    def speculate(self, most: int, left: int, joining: Sequence[tuple[Slot, Want]] = ()) -> None:
        """Drafts and verifies. most: tokens the evaluation may have; left: that the draft may read now.

        Nobody guesses while somebody waits for a first token: guesses would delay it.
        joining: parts of the prompts of others, read in the same evaluation; they bring no round.
        """
        began, self._joining = self._clock(), joining
        batch = self._enter(most)
        self._entering = self._clock() - began
        if "draft" in self._contexts:
            draft, scorer = self._contexts["draft"], self._scorers["draft"]
            drafting = Drafting(self._active, draft, scorer, batch, self._costs, self._clock)
            drafting.run(left)
            self._aside += drafting.aside
        self._verify(batch)
        self._settle(batch, self._clock() - began - self._aside)

    def _enter(self, most: int) -> BatchPlan:
        """Begins the step for all, without any guess."""
        target, least, n_ctx = self._contexts["target"], {}, 0
        for slot in self._active.slots:
            request, ask = slot.request, slot.request.ask
            least[slot.seq] = 1
            n_ctx += ask.tokens.size
            if request.first and ask.model == "target":
                self._prompts.add(slot.seq)
                least[slot.seq] = target.missing(slot.want()) - request.drawn
            elif request.wanted.grammar:  # what it settled is read with what follows
                least[slot.seq] = target.missing(Want(ask.tokens, (), 1, slot.seq))
        reading = sum(target.missing(want) for _, want in self._joining)
        fills = target.fills and not self._joining
        batch = BatchPlan(self._costs, least, most, n_ctx // max(len(least), 1), reading, fills=fills)
        for slot in self._active.slots:
            if slot.request.first:  # it may have drawn before it was suspended
                batch.take(slot.seq, slot.request.drawn)
            slot.request.pace.enter(batch, slot.seq)
        if self._prompts:
            batch.most = batch.total
        return batch

    def _verify(self, batch: BatchPlan) -> None:
        """Evaluates the rows of all in one call, and has each judged."""
        self._allot(batch)
        if not self._active.slots:
            return
        target, started = self._contexts["target"], self._clock()
        before, tried = target.evaluated, target.tried
        asked = [(slot, slot.want(batch.guesses[slot.seq])) for slot in self._active.slots]
        if filling := batch.filling():
            asked[0] = asked[0][0], asked[0][1]._replace(filling=filling)
        scored = self._active.score("target", [*asked, *self._joining])
        if not scored.rows:
            return
        slots = [slot for slot, _ in scored.asked]
        self.verified = target.evaluated - before, self._clock() - started
        self._costs.note_size(target.evaluated - before)
        n = len(self._active.slots)  # first, and as many rows: who joins is asked nothing
        self._end(slots[:n], scored.rows[:n])
        if batch.weighed and not self._joining:
            self._aside += (tried := target.tried - tried)
            seconds = self._clock() - started - tried + self._entering
            wants = [want for _, want in scored.asked]
            self._learn(batch, slots, wants, target.evaluated - before, seconds, filling)

    def _allot(self, batch: BatchPlan) -> None:
        """Cuts the free offers, all together."""
        offers: dict[int, Reach] = {}
        for slot in self._active.slots:
            ask = slot.request.ask
            if ask.reach:
                taken, weighed = slot.request.pace.offer(ask)
                batch.take(slot.seq, min(taken, max(batch.room, 0)))
                if weighed:
                    offers[slot.seq] = weighed
            elif len(ask.tail) > batch.guesses[slot.seq]:  # drawn by a drafter that asked nobody: kept whole
                batch.take(slot.seq, len(ask.tail) - batch.guesses[slot.seq])
        if not offers:
            return
        lengths, gain = batch.allot(offers, self._trust.factor)
        for slot in self._active.slots:
            if n := lengths[slot.seq]:
                batch.take(slot.seq, n)
                slot.request.pace.took(n, gain)
        self._expected = gain / self._trust.factor if lengths else 0.0

    def _learn(
        self,
        batch: BatchPlan,
        slots: Sequence[Slot],
        wants: Sequence[Want],
        evaluated: int,
        seconds: float,
        filling: int,
    ) -> None:
        """Learns the evaluation's cost; what a recurrent target evaluated again is nobody's round."""
        wanted = batch.total + filling
        if len(slots) < len(batch.least):  # somebody had to wait
            return
        plain, costs = batch.total == batch.streams, self._costs  # a light target's: see `Costs.note_plain`
        if plain and not costs.settled or costs.light and evaluated == 1:
            return
        together = len(wants) == 1 or self._contexts["target"].batches  # else rows cost as if alone
        going_on = [slot for slot in slots if slot.seq not in self._prompts]
        if evaluated == wanted and together and len(going_on) == len(slots):
            self._costs.target.learn(evaluated, batch.n_ctx, seconds, plain=plain)
        elif evaluated > wanted and going_on:
            table, sizes = self._costs.target, [want.rows for want in wants]
            expected = sum(table.seconds(n, batch.n_ctx) for n in ([sum(sizes)] if together else sizes))
            again = max(0.0, seconds - expected)
            self._aside += again
            for slot in going_on:
                slot.request.pace.rewound(again / len(going_on))

    def _end(self, slots: Sequence[Slot], rows: Sequence[Rows]) -> None:
        """Answers the loops with their rows, takes their rounds, and continues to their next asks."""
        for slot, answer in zip(slots, rows, strict=True):
            round_ = self._active.advance(slot, answer)
            if round_ is None:
                continue
            self.rounds.append((slot, round_))
            self._active.go_on(slot)

    def _settle(self, batch: BatchPlan, seconds: float) -> None:
        """Charges each stream with its share of the seconds, and reports the expected gain of its round."""
        if not batch.weighed:
            for slot, round_ in self.rounds:
                slot.request.pace.observe(round_, 0.0)
            if batch.total == 1 and not self._prompts:
                self._costs.note_plain(batch.n_ctx, seconds)
            return
        if not self._expected:
            self._trust.rest()
        elif not (self.failures or self.suspended):  # tokens of theirs were expected, too
            tokens = sum(round_.accepted + 1 for _, round_ in self.rounds)
            self._trust.note(self._expected, tokens * batch.one / seconds)
        parts = batch.parts(seconds, [slot.seq for slot, _ in self.rounds])
        for i, (slot, round_) in enumerate(self.rounds):
            part = 0.0 if slot.seq in self._prompts else parts[slot.seq]
            gain = slot.request.pace.observe(round_, part)
            if gain != round_.gain:  # making a round anew takes its time
                self.rounds[i] = slot, round_._replace(gain=gain)
