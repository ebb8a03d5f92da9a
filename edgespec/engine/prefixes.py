"""Where a request starts: in the slot, or after the saved prefix, that spares most of its prompt.

A beginning may be in a free slot, which is then used as it is; in another slot, busy or too good to be
overwritten, whose cells are then shared; or in host memory, or on disk, from where it is copied back. A
request that comes while another reads the same beginning (choices of one prompt, agents that start together)
waits for it. A slot's content is saved before it is overwritten. If cells run out, idle slots are emptied
first, the least recently used before others; the same happens when nobody waits (`tidy`), because texts
written at the same time are interleaved in the cells, and reading among them takes longer. Then, too, texts
are written to disk.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from edgespec.core.loop import Want
from edgespec.core.values import ModelName, Origin
from edgespec.engine.prompt_files import Fetch, PromptFiles, checkpoints_of
from edgespec.engine.slots import Cache, Running, Slot
from edgespec.errors import EngineError, NoRoomError
from edgespec.llama.saved import PrefixStore, Saved, same_beginning
from edgespec.pairs.adapters import Scales

WORTH_MOVING = 64  # tokens: fewer are evaluated as quickly, and keep the arithmetic as it is alone
MOSTLY = 0.5  # a slot of which less would be reused is not overwritten if another can be
LONG_TAIL = 1024  # nor one that would lose so many tokens: a sub-agent begins as its coordinator does


def chunk_of(lag: int, chunk: int) -> int:
    """Returns how many of the tokens still to be read come next: the last chunk of a long prompt is whole."""
    return min(chunk, lag - chunk) if lag > chunk else lag


class Prefixes:
    """All prompts evaluated before: in slots and, if there is a store, in host memory."""

    def __init__(
        self,
        slots: Sequence[Slot],
        contexts: Mapping[ModelName, Cache],
        store: PrefixStore | None,
        chunk: int = 512,
        files: PromptFiles | None = None,
        own: Scales = (),
    ) -> None:
        """chunk: tokens of a prompt that are read at once. files: what is kept on disk. own: the scales of
        the pair's adapters; only what was read with these is moved to host memory and disk."""
        self._own = own
        self._slots, self._contexts, self.store, self._chunk = slots, contexts, store, chunk
        self._files = files
        self._fetch: Fetch | None = None  # the last one
        self._written: dict[int, int] = {}  # when each slot was used last whose text is on disk
        self._unmoved = -1  # when the slot was used last whose text is too long for the store
        for name, context in contexts.items():
            if context.checkpoints:
                context.checkpoints.keep_in(store, name)

    def place_fresh(self, prompt: NDArray[np.int32], adapters: Scales = ()) -> tuple[Slot, int, Origin]:
        """Returns what `place` does, for a prompt that may reuse only chunks read from nothing.

        Other tokens were evaluated in other company, and differ in last digits from a fresh reading.
        """
        free = [slot for slot in self._slots if not slot.running]
        best = max(free, key=lambda slot: (self._whole(slot, prompt, adapters), not slot.holds, -slot.used))
        n = self._whole(best, prompt, adapters)
        self.keep(best)
        self._adapt(best, adapters)
        self.expect(best, None)
        target = self._contexts["target"]
        target.cut(best.seq, n)
        if target.held(best.seq).size != n:
            target.clear(best.seq)
        best.whole = self._held("target", best)
        return best, best.whole, "slot"

    def _whole(self, slot: Slot, prompt: NDArray[np.int32], adapters: Scales) -> int:
        """Returns how many tokens of a prompt a slot holds in the chunks of a reading from nothing."""
        if slot.adapters != adapters:
            return 0
        shared = min(slot.whole, same_beginning(self._tokens(slot), prompt.tobytes()))
        n = 0
        while n + self._chunk <= shared and chunk_of(prompt.size - n, self._chunk) == self._chunk:
            n += self._chunk
        return min(n, prompt.size - 1) // self._chunk * self._chunk

    def place(
        self,
        prompt: NDArray[np.int32],
        adapters: Scales = (),
        fetch: Fetch | None = None,
        wish: int | None = None,
    ) -> tuple[Slot, int, Origin]:
        """Returns a free slot for a prompt, how many of its tokens the target holds there, and from where.

        fetch: what was read from the disk for it. wish: the number of the slot that it would like to have.
        """
        free = [slot for slot in self._slots if not slot.running]
        for slot in free:  # a checkpoint serves texts of its scales alone
            self.expect(slot, () if slot.adapters == self._own else None)
        liked = [slot for slot in free if slot.seq == wish and self._contexts["target"].batches]
        slot, cached, origin = self._place(liked or free, prompt, adapters, fetch)
        slot.whole = min(slot.whole, cached // self._chunk * self._chunk)
        back = cached and cached < self._held("target", slot) and not self._contexts["target"].batches
        return slot, cached, "checkpoint" if back and origin == "slot" else origin

    def _place(
        self, free: Sequence[Slot], prompt: NDArray[np.int32], adapters: Scales, fetch: Fetch | None
    ) -> tuple[Slot, int, Origin]:
        own = {
            slot: self._spared("target", slot, prompt) if slot.adapters == adapters else 0
            for slot in self._slots
        }
        best = max(free, key=lambda slot: (own[slot], self._spared_draft(slot, prompt, own), -slot.used))
        held = self._held("target", best)
        lost = held - own[best]
        stays = lost < WORTH_MOVING  # so few are not worth keeping
        stays |= own[best] > MOSTLY * held and (lost < LONG_TAIL or len(free) == 1)
        source = max(self._slots, key=lambda slot: own[slot])
        store = self.store if adapters == self._own else None
        saved, n_saved = store.best(prompt.tobytes()) if store else (None, 0)
        n_fetched = fetch.useful(prompt.tobytes()) if fetch else 0
        most = max(own[source], n_saved, n_fetched)
        if most < own[best] + WORTH_MOVING and (stays or most < WORTH_MOVING):
            if not stays:
                best = self._least_missed(free)
                if self._held("target", best) >= WORTH_MOVING:
                    self.keep(best)
            self._adapt(best, adapters)
            return best, self._spared("target", best, prompt), "slot"
        into = self._least_missed([slot for slot in free if slot is not source] or free)
        restores: Mapping[ModelName, Sequence[Saved]] = {}
        origin: Origin = "slot"
        if fetch and n_fetched > max(own[source], n_saved):
            restores, origin = fetch.found, "disk"
            if self.store is not None:
                for name, checkpoint in fetch.checkpoints.items():
                    self.store.put_checkpoint(name, checkpoint)
        elif saved and self.store and n_saved > own[source]:
            self.store.use(saved)  # first: saving may push out the least recently used
            restores, origin = {name: [whole] for name, whole in saved.items()}, "memory"
        self.keep(into)
        self._adapt(into, adapters)
        into.whole = 0  # its new content was evaluated elsewhere
        if restores:
            for name, context in self._contexts.items():
                if not self._restored(context, into, restores.get(name, ())):
                    context.clear(into.seq)
        elif source is not into:
            for name, context in self._contexts.items():
                n = self._spared(name, source, prompt)
                if n < WORTH_MOVING or not context.share(source.seq, into.seq, n):
                    context.clear(into.seq)
        into.holds = True
        return into, self._spared("target", into, prompt), origin

    def _adapt(self, slot: Slot, adapters: Scales) -> None:
        """Gives a slot to a request with these adapters: what the target read with others goes."""
        if slot.adapters != adapters:
            slot.adapters, slot.whole = adapters, 0
            self._contexts["target"].clear(slot.seq)

    def expect(self, slot: Slot, borders: tuple[int, ...] | None) -> None:
        """Has checkpoints made at these places of the text that a slot reads; None: uses none there."""
        for context in self._contexts.values():
            if context.checkpoints:
                context.checkpoints.expect(slot.seq, borders)
                if borders and self.store is not None and context is self._contexts["target"]:
                    slot.whole = -1  # chunks end where a checkpoint is due

    def is_being_read(self, prompt: NDArray[np.int32], adapters: Scales = ()) -> bool:
        """Returns whether a running slot is about to hold so much of a prompt that waiting for it pays."""
        slots = [slot for slot in self._slots if slot.adapters == adapters]
        reading = [slot for slot in slots if slot.running and slot.request.reading]
        if not reading:
            return False
        tokens = prompt[:-1].tobytes()
        held = {slot: same_beginning(self._tokens(slot), tokens) for slot in slots}
        coming = {slot: same_beginning(slot.request.ask.tokens.tobytes(), tokens) for slot in reading}
        if not self._contexts["target"].batches:  # a recurrent state is shared where a checkpoint is made
            held = {slot: self._spared("target", slot, prompt) for slot in slots}
            if self.store is None:
                return False
            for slot, n in coming.items():
                coming[slot] = max((at for at in slot.request.borders if at <= n), default=0)
        reader = max(reading, key=coming.__getitem__)
        elsewhere = max((held[slot] for slot in slots if slot is not reader), default=0)
        return coming[reader] > held[reader] and coming[reader] >= elsewhere + WORTH_MOVING

    def is_coming(self, running: Running) -> bool:
        """Returns whether a prompt waits until what the disk has of it is read; begins that if it pays.

        One is read at a time: what comes for another may be what this one needs.
        """
        if self._files is None or running.adapters != self._own:
            return False
        if running.fetch is None:
            if self._files.looking:
                return True
            prompt, tokens = running.ask.tokens, running.ask.tokens.tobytes()
            slots = [slot for slot in self._slots if slot.adapters == self._own]
            held = [0, *(self._spared("target", slot, prompt) for slot in slots)]
            held += [self.store.best(tokens)[1]] if self.store else []
            fetch = self._files.find(tokens, max(held) + WORTH_MOVING, checkpoints=self.store is not None)
            if not fetch.done.is_set():
                if self._fetch and self._fetch.waits:
                    return True
                self._files.read(fetch)
                self._fetch = fetch
            running.fetch = fetch
        if not (running.fetch.done.is_set() or running.fetch.waits):  # it is read again
            running.fetch = Fetch({})
            running.fetch.done.set()
        return not running.fetch.done.is_set()

    def wait(self, seconds: float) -> None:
        """Waits until the disk is read, at most so long."""
        if self._files and self._files.looking:
            self._files.wait(seconds)
        elif self._fetch:
            self._fetch.done.wait(seconds)

    def write_some(self) -> bool:
        """Has the next piece of an idle text written to disk; False if all are there."""
        files = self._files
        for slot in self._slots if files and not files.looking else ():
            if not files or slot.running or not slot.holds or self._written.get(slot.seq) == slot.used:
                continue
            if slot.adapters != self._own:
                continue
            for name, context in self._contexts.items():
                if files.full:
                    return True
                held, parts = context.held(slot.seq), context.parts
                before = next(iter(np.flatnonzero(held < 0).tolist()), held.size)  # a picture
                text = held[:before] if parts or before == held.size else held[:0]
                if piece := files.unwritten(files.roots[name], text.tobytes(), parted=parts is not None):
                    parent, start, end = piece
                    with suppress(EngineError, MemoryError):  # then it is evaluated again some day
                        saved = parts.save(slot.seq, start, end) if parts else context.save(slot.seq)
                        files.write(parent, start, saved)
                        return True
                root = checkpoints_of(files.roots[name])
                for saved in context.checkpoints.within(text.tobytes()) if context.checkpoints else ():
                    if files.unwritten(root, saved.tokens, parted=False):
                        files.write(root, 0, saved)
                        return True
            self._written[slot.seq] = slot.used
        return False

    def fill(self, slot: Slot, saved: Saved | None) -> int:
        """Makes a free slot hold what was saved, or nothing; returns how many tokens it holds, or has lost.

        Raises NoRoomError.
        """
        lost = self._held("target", slot)
        self.keep(slot) if saved else None
        slot.adapters, slot.whole = self._own, 0
        for context in self._contexts.values():
            context.clear(slot.seq)
        if saved is None:
            return lost
        if not self._restored(self._contexts["target"], slot, [saved]):
            raise NoRoomError("the KV cache has no room for it: raise --ctx or --cache-tokens")
        slot.holds = True
        return self._held("target", slot)

    def keep(self, slot: Slot) -> None:
        """Saves what a slot holds, if that is worth it and not done yet."""
        store = self.store
        if store is None or slot.adapters != self._own:
            return
        tokens = self._tokens(slot)
        if len(tokens) < 4 * WORTH_MOVING or store.holds(tokens):
            return
        prefix: dict[ModelName, Saved] = {}
        try:
            for name, context in self._contexts.items():
                if self._held(name, slot) >= WORTH_MOVING:
                    prefix[name] = context.save(slot.seq)
        except (EngineError, MemoryError):  # then it is evaluated again some day
            return
        store.put(prefix)

    def make_room(self) -> bool:
        """Empties the least recently used idle slot; False if there is none."""
        holding = [slot for slot in self._slots if not slot.running and slot.holds]
        if not holding:
            return False
        slot = min(holding, key=lambda slot: slot.used)
        self.put_aside(slot)
        return True

    def tidy(self) -> bool:
        """Writes a piece to disk, or moves the least recently used text to host memory.

        False if there is nothing to do.

        The last one stays, because it is the likeliest to continue; and all stay if half of the memory is
        taken, because what was saved before is worth as much.
        """
        if self.write_some():
            return True
        idle = (slot for slot in self._slots if not slot.running and slot.holds)
        holding = sorted((slot for slot in idle if slot.adapters == self._own), key=lambda slot: slot.used)
        if self.store is None or 2 * self.store.n_bytes > self.store.budget or len(holding) < 2:
            return False
        slot, tokens = holding[0], self._tokens(holding[0])
        if slot.used == self._unmoved:
            return False
        self.keep(slot)
        if len(tokens) >= 4 * WORTH_MOVING and not self.store.holds(tokens):
            self._unmoved = slot.used
            return False
        self.put_aside(slot)
        return True

    def put_aside(self, slot: Slot) -> None:
        """Moves what a slot holds to host memory, if there is a store for it."""
        self.keep(slot)
        slot.holds = False
        for context in self._contexts.values():
            context.clear(slot.seq)

    def _restored(self, context: Cache, into: Slot, parts: Sequence[Saved]) -> bool:
        into.holds = False
        for i, saved in enumerate(parts):
            put = context.parts.add if i and context.parts else context.restore
            while not put(into.seq, saved):
                if not self.make_room():
                    return False
        return bool(parts)

    def _least_missed(self, free: Sequence[Slot]) -> Slot:
        return min(free, key=lambda slot: (self._held("target", slot) > 0, slot.used))

    def _tokens(self, slot: Slot) -> bytes:
        return self._contexts["target"].held(slot.seq).tobytes()

    def _held(self, name: ModelName, slot: Slot) -> int:
        return int(self._contexts[name].held(slot.seq).size)

    def _spared(self, name: ModelName, slot: Slot, prompt: NDArray[np.int32]) -> int:
        """Returns how many tokens of a prompt need not be evaluated again in a slot."""
        return prompt.size - self._contexts[name].missing(Want(prompt, seq=slot.seq))

    def _spared_draft(self, slot: Slot, prompt: NDArray[np.int32], own: Mapping[Slot, int]) -> int:
        return self._spared("draft", slot, prompt) if own[slot] and "draft" in self._contexts else 0
