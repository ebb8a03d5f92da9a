"""The engine with slots: several streams on one loaded pair, evaluated together.

`core.loop.generate` runs once for each stream, and `Engine.step` gathers all their asks; one stream is the
engine with one slot. A step is either a chunk of a new prompt, or a round of all: steps of the draft, one
evaluation for all who want one, until nobody is granted another; then one evaluation of the target with
the rows of all. Requests join and leave between steps.

Prompts are read one chunk at a time, so that a first token is sent before anything else is evaluated. Between
two rounds as much of them is read as a short pause allows (`PromptReader`): running streams wait no longer.
If the machine is too slow for that, parts of prompts join the evaluations of running streams. Otherwise a
prompt is read in the chunks it would be read in alone, or in whole tiles of them, and evaluations of several
sequences stay below 64 tokens: so the arithmetic is the same as alone, as far as the order of cells
in the cache allows.
"""

import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from edgespec.core.loop import Scorer, Want
from edgespec.core.pace.costs import Costs
from edgespec.core.pace.record import Trust
from edgespec.core.request import Request
from edgespec.core.values import (
    LONGEST_DRAFT,
    Ask,
    Emitted,
    EngineEvent,
    Failed,
    ModelName,
    PromptProgress,
    Round,
    Started,
)
from edgespec.engine.adapter_turns import AdapterTurns
from edgespec.engine.lanes import Lanes
from edgespec.engine.loaded_pair import LoadedPair
from edgespec.engine.past_texts import PastTexts
from edgespec.engine.prefixes import Prefixes
from edgespec.engine.prompt_files import PromptFiles
from edgespec.engine.prompt_reader import PromptReader
from edgespec.engine.slots import Running, Slot
from edgespec.engine.step import Step
from edgespec.errors import EngineError, NoRoomError, QueueFullError, SettingError
from edgespec.llama.saved import PrefixStore, Saved

DISK_S = 0.02  # how long an idle engine waits for the disk at once
STUCK = 64  # steps in a row in which nothing happens
CHUNK = 512  # most tokens of a prompt that are read at once, as in a context


class Engine:
    """Runs requests on one loaded pair. Not thread-safe."""

    def __init__(
        self,
        pair: LoadedPair,
        *,
        slots: int,
        queue: int = 64,
        chunk: int = CHUNK,
        clock: Callable[[], float] = time.perf_counter,
        cache_ram: int = 0,
        files: PromptFiles | None = None,
        costs: Costs | None = None,
        scorers: Mapping[ModelName, Scorer] | None = None,
        past: PastTexts | None = None,
        ahead: int = LONGEST_DRAFT + 1,
    ) -> None:
        """slots: requests evaluated at once, at most as many as the pair has; queue: requests that may wait.

        cache_ram: bytes of host memory for prompts that are in no slot. files: those kept on disk.
        costs: instead of the pair's. scorers: what evaluates, if not its contexts alone. past: remembers the
        texts. ahead: tokens for which a new request should find room, beyond its own.
        """
        if not 1 <= slots <= pair.slots:
            raise SettingError(f"{slots} slots were asked for: the pair was loaded with {pair.slots}")
        self._pair, self._contexts, self._ahead = pair, pair.contexts, ahead
        self._costs = costs or pair.costs()  # now, because measuring needs the caches
        self._scorers = scorers or self._contexts
        own = self._own_scales = pair.scales(Request())
        self._slots = [Slot(seq, adapters=own) for seq in range(slots)]
        self._adapter_turns = AdapterTurns(own, pair.adapt) if own else None
        for context in self._contexts.values():  # an engine with more slots may have left texts
            for seq in range(slots, pair.slots):
                context.clear(seq)
        store = PrefixStore(cache_ram) if cache_ram else None
        self.prefixes = Prefixes(self._slots, self._contexts, store, chunk, files, own)
        self._past = past
        self._queue: deque[Running] = deque()
        self._longest_queue, self._clock = queue, clock
        self._reader = PromptReader(self._contexts["target"], self._costs, chunk=chunk, n_rows=pair.n_rows)
        self._lanes = Lanes(clock)
        self._pending: list[EngineEvent] = []
        self._trust = defaultdict[int, Trust](Trust)  # in free offers, by the number of streams
        self._submitted = self._steps = 0
        self._still = 0  # steps in a row in which nothing happened
        self.in_slots = 0  # requests that had a slot in the last step

    @property
    def idle(self) -> bool:
        """True where `step` would do nothing."""
        return not (self._queue or self._pending or self._running())

    def submit(
        self,
        id: str,
        prompt: NDArray[np.int32],
        request: Request,
        borders: tuple[int, ...] = (),
        owner: str = "",
        *,
        replays: bool = False,
    ) -> None:
        """Queues a request. borders: places of its prompt where later ones may differ. owner: whose it is.
        replays: its tokens are for others of this owner that begin with the same text.

        Raises QueueFullError, PromptTooLongError or SettingError at once.
        """
        if any(id == running.id for running in self._known()):
            raise SettingError(f"request {id!r} is being answered: choose another id")
        if len(self._queue) >= self._longest_queue + len(self._slots) - len(self._running()):
            raise QueueFullError(f"{len(self._queue)} requests are already waiting: try again later")
        stream = self._pair.stream(prompt, request)
        ask = next(stream.loop)  # this evaluates nothing, but checks prompt and settings
        assert isinstance(ask, Ask)
        self._submitted += 1
        running = Running(id, prompt, request, stream, ask, self._submitted, self._clock())
        running.adapters = self._pair.scales(request)
        running.borders, running.owner = () if request.fresh else borders, owner
        running.replays = replays
        self._queue.append(running)

    def cancel(self, id: str) -> None:
        """Ends a request; its last round comes with the next step. An unknown one is ignored."""
        for running in self._known():
            if running.id == id:
                last = Round((), running.stream.text.flush(), 0, 0, (), "cancelled")
                self._pending.append(Emitted(id, last))
                self._leave(running)
                return

    def step(self) -> list[EngineEvent]:
        """Does one step, and returns what happened in it."""
        events, self._pending = self._pending, []
        before = self._evaluated()
        self._step(events)
        self._still = 0 if events or self._evaluated() != before or not self._running() else self._still + 1
        if self._still == STUCK:
            self._still = 0
            self._end_stuck(events)
        return events

    def _evaluated(self) -> int:
        return sum(context.evaluated for context in self._contexts.values())

    def _end_stuck(self, events: list[EngineEvent]) -> None:
        """Ends the request that has waited longest in its slot, or such steps would go on for ever."""
        stuck = min((slot.request for slot in self._running()), key=lambda running: running.served)
        sentence = f"nothing was evaluated in {STUCK} steps: a fault of EdgeSpec's own; ask again"
        events.append(Failed(stuck.id, EngineError(sentence)))
        self._leave(stuck)

    def _step(self, events: list[EngineEvent]) -> None:
        self._steps += 1
        if self._queue:
            self._admit(events)
        running = self._running()
        if self._queue and not running:
            self.prefixes.wait(DISK_S)
        self.in_slots = len(running)
        self._keep_cells(len(running) + len(self._queue) > 1)
        running = self._lanes.taking_part(running)
        if self._adapter_turns:
            running = self._adapter_turns.taking_part(running)
        target, reading = self._contexts["target"], [slot for slot in running if slot.request.reading]
        joining: list[tuple[Slot, Want]] = []
        if reading and (chunk := self._reader.next_chunk(running, joining)):
            self._show(*chunk, events)
            return
        left = self._reader.end_pause(sum(target.missing(slot.want()) for slot in reading))
        ready = [slot for slot in running if not slot.request.reading]
        ready = self._fitting(ready, sum(target.missing(want) for _, want in joining))
        if ready:
            for slot in [*ready, *(slot for slot, _ in joining)]:
                slot.request.served = self._steps
            trust = self._trust[1 << (len(ready) - 1).bit_length()]
            step = Step(ready, self._contexts, self._costs, self._clock, self.prefixes, trust, self._scorers)
            step.speculate(self._pair.n_rows, left, joining)
            if reading:
                self._reader.note(*step.verified)
            self._tell_reading(step, joining, events)
            self._tell(step, events)

    def _keep_cells(self, on: bool) -> None:
        """on: several sequences are written in turn."""
        for context in self._contexts.values():
            context.keep_cells(on)

    def tidy(self) -> bool:
        """Does work that saves later requests time, while nobody waits; False if nothing is left to do."""
        return self.idle and self.prefixes.tidy()

    @property
    def n_slots(self) -> int:
        """How many requests are evaluated at once."""
        return len(self._slots)

    def is_free(self, slot: int) -> bool:
        """Returns whether nobody is answered in a slot."""
        return not self._slots[slot].running

    def slot_state(self, slot: int) -> Saved:
        """Returns a copy of what the target holds in a slot. Raises EngineError, SettingError."""
        target, seq = self._contexts["target"], self._slots[slot].seq
        if (target.held(seq) < 0).any():
            raise SettingError(f"slot {slot} holds a picture or sound, which cannot be saved: erase it first")
        if self._slots[slot].adapters != self._own_scales:
            raise SettingError(f"slot {slot} was read with other LoRA scales than the pair's: erase it first")
        return target.save(seq)

    def fill_slot(self, slot: int, saved: Saved | None) -> int:
        """Makes a free slot hold what was saved, or nothing; returns how many tokens it holds, or has lost.

        Raises NoRoomError.
        """
        return self.prefixes.fill(self._slots[slot], saved)

    def _tell(self, step: Step, events: list[EngineEvent]) -> None:
        """Reports what a step brought; finished requests leave."""
        ended = []
        for slot, round_ in step.rounds:
            events.append(Emitted(slot.request.id, round_, (), self._lanes.charge(slot)))
            slot.request.written += round_.tokens
            if round_.finish:
                ended.append(slot)
        for slot, error in step.failures:
            events.append(Failed(slot.request.id, error))
            ended.append(slot)
        for slot in step.suspended:
            running, slot.running = slot.request, None
            if not self._running():
                events.append(Failed(running.id, NoRoomError("the KV cache is too small for one request")))
                continue
            running.reading = running.first = True
            running.read_from = 0
            self._queue.appendleft(running)
        for slot in ended:
            self._leave(slot.request)

    # ---- coming and going --------------------------------------------------------------------------------

    def _running(self) -> list[Slot]:
        return [slot for slot in self._slots if slot.running]

    def _known(self) -> list[Running]:
        return [*(slot.request for slot in self._running()), *self._queue]

    def _admit(self, events: list[EngineEvent]) -> None:
        """Gives free slots to those who wait, first come, first served.

        A request whose beginning another is reading waits until it can be shared; others go first.
        """
        for running in list(self._queue):
            if all(slot.running for slot in self._slots) or not self._fits(running):
                return
            prompt, fresh = (running.ask.tokens, running.adapters), running.wanted.fresh
            if not fresh and (self.prefixes.is_being_read(*prompt) or self.prefixes.is_coming(running)):
                continue
            self._queue.remove(running)
            if fresh:
                slot, cached, origin = self.prefixes.place_fresh(*prompt)
            else:
                slot, cached, origin = self.prefixes.place(*prompt, running.fetch, running.wanted.slot)
                running.fetch = None
            if not fresh and running.adapters == self._own_scales:
                self.prefixes.expect(slot, running.borders)
            slot.lend(running)
            if not running.reported:
                running.reported = True
                known = min(cached, running.prompt.size)  # a grammar may have settled the tokens after it
                past, owner = self._past, running.owner
                broken = past.explain(running.prompt, known, owner) if past and not fresh else None
                timings = {"queued_ms": (self._clock() - running.since) * 1000}
                events.append(Started(running.id, running.prompt.size, known, timings, origin, broken))

    def _fits(self, running: Running) -> bool:
        """Returns whether one more fits with the running ones. Idle sequences do not count."""
        others = [slot.request for slot in self._running()]
        wanted = sum(one.ask.tokens.size + self._ahead for one in [running, *others])
        return not others or wanted <= self._pair.cells

    def _fitting(self, ready: list[Slot], rows: int) -> list[Slot]:
        """Returns who takes part in the next evaluation, with `rows`: as many as fit, at least one.

        Where not all do, who has waited longest goes first.
        """
        if len(ready) < 2:
            return ready
        wanted = {slot: slot.least_rows(self._contexts["target"]) for slot in ready}
        if rows + sum(wanted.values()) <= self._pair.n_rows:
            return ready
        fitting: list[Slot] = []
        for slot in sorted(ready, key=lambda slot: slot.request.served):
            if not fitting or rows + wanted[slot] <= self._pair.n_rows:
                rows += wanted[slot]
                fitting.append(slot)
        return [slot for slot in ready if slot in fitting]

    def _leave(self, running: Running) -> None:
        """Takes a request out of slot or queue; the slot keeps its tokens."""
        running.stream.loop.close()
        for slot in self._slots:
            if slot.running is running:
                slot.running, slot.used, slot.holds = None, self._steps, True
                if self._past and not running.reading:
                    text = np.append(running.prompt, np.array(running.written, np.int32))
                    size, owner = running.prompt.size, running.owner
                    self._past.add(text, size, owner, replays=running.replays)
        if running in self._queue:
            self._queue.remove(running)
        if not (self._running() or self._queue):
            self._keep_cells(False)
            for context in self._contexts.values():
                context.give_back_cells()

    # ---- prompts -----------------------------------------------------------------------------------------

    def _show(self, slot: Slot, want: Want, events: list[EngineEvent]) -> None:
        """Has the target read a chunk of a prompt, by itself."""
        step = Step([slot], self._contexts, self._costs, self._clock, self.prefixes)
        n, began = self._contexts["target"].missing(want), self._clock()
        slot.request.served = self._steps
        step.read(slot, want)
        self._reader.note(n, self._clock() - began)
        self._tell_reading(step, [(slot, want)], events)
        self._tell(step, events)

    def _tell_reading(
        self, step: Step, parts: Sequence[tuple[Slot, Want]], events: list[EngineEvent]
    ) -> None:
        """Reports progress on prompts that are not fully read."""
        fallen = [*step.suspended, *(slot for slot, _ in step.failures)]
        for slot, want in parts:
            request = slot.request
            if request.reading and slot not in fallen:
                events.append(PromptProgress(request.id, min(want.tokens.size, request.prompt.size)))
