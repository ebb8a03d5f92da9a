"""The streams that take part in a step, and those that drop out of it: by an error, or for lack of cells."""

import traceback
from collections.abc import Mapping, Sequence

from edgespec.core.loop import Rows, Scorer, Want
from edgespec.core.values import Ask, ModelName, Round
from edgespec.engine.prefixes import Prefixes
from edgespec.engine.slots import Slot
from edgespec.errors import EdgeSpecError, EngineError, NoRoomError

NO_MEMORY = EngineError("the memory of this machine has run out: ask again, or close other programs")


class ActiveStreams:
    """Evaluates for the streams, and gives each its answer. A slot is in `failures` once at most."""

    def __init__(
        self, slots: Sequence[Slot], scorers: Mapping[ModelName, Scorer], prefixes: Prefixes
    ) -> None:
        """prefixes: frees cells when they have run out."""
        self.slots = list(slots)
        self.failures: list[tuple[Slot, EdgeSpecError]] = []
        self.suspended: list[Slot] = []  # for lack of cells; they continue where they were
        self._scorers, self._prefixes = scorers, prefixes

    def score(self, model: ModelName, wants: list[Want], slots: list[Slot]) -> list[Rows] | None:
        """Returns the rows of all; None if the draft has no cells, or if it or the target failed for all.

        If cells run out, idle sequences are emptied. Of the target's, the youngest then waits: it is removed
        from both lists, as are those for which the target fails.
        """
        while slots:
            try:
                return self._scorers[model].score(wants)
            except NoRoomError:
                if any(want.filling for want in wants):
                    wants[:] = [want._replace(filling=0) for want in wants]
                    continue
                if self._prefixes.make_room():
                    continue
                if model == "draft":  # its stream continues without guesses
                    return None
                youngest = max(slots, key=lambda slot: slot.request.number)
                self.suspended.append(youngest)
                del wants[slots.index(youngest)]
                slots.remove(youngest)
                if youngest in self.slots:
                    self.slots.remove(youngest)
                self._prefixes.put_aside(youngest)
            except (EdgeSpecError, MemoryError) as error:
                if model == "draft":
                    self._leave_draft(slots, error)
                    return None
                if len(slots) > 1:
                    return self._each_alone(wants, slots)
                self.fail(slots.pop(), error if isinstance(error, EdgeSpecError) else NO_MEMORY)
                wants.clear()
        return None

    def _each_alone(self, wants: list[Want], slots: list[Slot]) -> list[Rows] | None:
        """Has the target evaluate for each by itself: the fault of one ends none of the others."""
        rows, left = [], []
        for want, slot in zip(list(wants), list(slots), strict=True):
            if found := self.score("target", [want], [slot]):
                rows.append(found[0].copy())
                left.append((want, slot))
        wants[:], slots[:] = [want for want, _ in left], [slot for _, slot in left]
        return rows or None

    def advance(self, slot: Slot, answer: Rows | None) -> Round | None:
        """Answers a stream's ask; returns the round that this ends, or None if it asks again."""
        if slot not in self.slots:  # it failed in this step
            return None
        request = slot.request
        item = self._sent(slot, answer)
        if item is None:
            return None
        if isinstance(item, Round):
            request.first = False
            return item._replace(notice=request.notice) if request.notice else item
        request.ask = item
        return None

    def go_on(self, slot: Slot) -> None:
        """Continues from a round to the next ask, if there is one."""
        if item := self._sent(slot, None):
            assert isinstance(item, Ask)
            slot.request.ask = item

    def _sent(self, slot: Slot, answer: Rows | None) -> Ask | Round | None:
        """Returns what a stream says to an answer; None if it ends or fails."""
        try:
            return slot.request.stream.loop.send(answer)
        except StopIteration:
            return None
        except Exception as error:  # ours, too: the others know nothing of it
            self.fail(slot, error)
            return None

    def _leave_draft(self, slots: Sequence[Slot], error: EdgeSpecError | MemoryError) -> None:
        """Has streams go on without the draft, or head, to their end; later ones ask it again.

        So a cause that passes is forgotten, and one that stays costs each answer one evaluation.
        """
        why = str(error) or "memory has run out"
        for slot in slots:
            slot.request.notice = f"guessing failed, so this answer goes on without the draft: {why}"

    def fail(self, slot: Slot, error: Exception) -> None:
        """Ends a stream. An error that is none of EdgeSpec's is a bug, of which others know nothing."""
        if not isinstance(error, EdgeSpecError):
            traceback.print_exception(error)
            error = EngineError(f"a fault of EdgeSpec's own ({type(error).__name__}): the log has more")
        self.failures.append((slot, error))
        if slot in self.slots:
            self.slots.remove(slot)
