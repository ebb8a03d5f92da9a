"""The streams that take part in a step, and those that drop out of it: by an error, or for lack of cells."""

import traceback
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from edgespec.core.loop import Rows, Scorer, Want
from edgespec.core.values import Ask, ModelName, Round
from edgespec.engine.prefixes import Prefixes
from edgespec.engine.slots import Slot
from edgespec.errors import EdgeSpecError, EngineError, NoRoomError

NO_MEMORY = EngineError("the memory of this machine has run out: ask again, or close other programs")


class Scored(NamedTuple):
    """What an evaluation brought: who is left of those who asked, what for, and the rows of each."""

    asked: Sequence[tuple[Slot, Want]]
    rows: Sequence[Rows]


NOTHING = Scored((), ())


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

    def score(self, model: ModelName, asked: Sequence[tuple[Slot, Want]]) -> Scored:
        """Returns the rows of all who asked; none if the draft has no cells, or fails.

        If cells run out, idle sequences are emptied. Of the target's, the youngest then waits: it is left
        out, as are those for which the target fails.
        """
        while asked:
            slots, wants = [slot for slot, _ in asked], [want for _, want in asked]
            try:
                return Scored(asked, self._scorers[model].score(wants))
            except NoRoomError:
                if any(want.filling for want in wants):
                    asked = [(slot, want._replace(filling=0)) for slot, want in asked]
                    continue
                if self._prefixes.make_room():
                    continue
                if model == "draft":  # its stream continues without guesses
                    return NOTHING
                youngest = max(slots, key=lambda slot: slot.request.number)
                self.suspended.append(youngest)
                asked = [one for one in asked if one[0] is not youngest]
                if youngest in self.slots:
                    self.slots.remove(youngest)
                self._prefixes.put_aside(youngest)
            except (EdgeSpecError, MemoryError) as error:
                if model == "draft":
                    self._leave_draft(slots, error)
                    return NOTHING
                if len(slots) > 1:
                    return self._each_alone(asked)
                self.fail(slots[0], error if isinstance(error, EdgeSpecError) else NO_MEMORY)
                return NOTHING
        return NOTHING

    def _each_alone(self, asked: Sequence[tuple[Slot, Want]]) -> Scored:
        """Has the target evaluate for each by itself: the fault of one ends none of the others."""
        left, rows = list[tuple[Slot, Want]](), list[Rows]()
        for one in asked:
            found = self.score("target", [one])
            left += found.asked
            rows += [row.copy() for row in found.rows]
        return Scored(left, rows)

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
        """Returns what a stream yields for an answer; None if it ends or fails."""
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
