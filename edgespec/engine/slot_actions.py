"""What clients of llama-server ask for a slot: its text saved to a file, restored from one, or forgotten.

Files (`state_file.py`) are read and written in the background; the engine copies a state when
the slot is free.
"""

import threading
import time
from collections.abc import Callable
from pathlib import Path

from edgespec.engine.engine import Engine
from edgespec.engine.outbox import Outbox
from edgespec.engine.request_reader import SlotRead
from edgespec.engine.state_file import NotAStateError, read_head, read_state, write_state
from edgespec.errors import EdgeSpecError, SettingError
from edgespec.llama.saved import Saved
from edgespec.protocol.messages import Refused, SlotAction, SlotDone


class SlotActions:
    """The actions that wait for their slot, or for a file."""

    def __init__(self, engine: Engine, outbox: Outbox, key: Callable[[], bytes]) -> None:
        """key: returns what states of the target depend on."""
        self._engine, self._outbox, self._key = engine, outbox, key
        self._waiting: list[SlotAction | SlotRead] = []

    def take(self, action: SlotAction, done: Callable[[SlotRead], None]) -> None:
        """Begins an action. done: called in another thread with a file that was read."""
        if not 0 <= action.slot < self._engine.n_slots:
            sentence = f"there is no slot {action.slot}: the slots are 0 to {self._engine.n_slots - 1}"
            self._outbox.send(Refused(action.id, "setting", sentence))
        elif action.action == "restore":
            self._in_background(
                action, lambda: done(SlotRead(action, *read_slot(Path(action.path), self._key())))
            )
        else:
            self._waiting.append(action)

    def has_read(self, read: SlotRead) -> None:
        """Goes on with a file that was read."""
        self._waiting.append(read)

    def work(self) -> None:
        """Does what waits for slots that are free now."""
        for item in list(self._waiting):
            action = item.action if isinstance(item, SlotRead) else item
            if self._engine.is_free(action.slot):
                self._waiting.remove(item)
                try:
                    self._do(action, item if isinstance(item, SlotRead) else None)
                except EdgeSpecError as error:
                    self._outbox.send(Refused(action.id, "setting", str(error)))

    def _do(self, action: SlotAction, read: SlotRead | None) -> None:
        began = time.monotonic()
        if action.action == "save":
            copied = self._engine.slot_state(action.slot)
            self._in_background(action, lambda: self._write(action, copied, began))
            return
        n = self._engine.fill_slot(action.slot, read.saved if read else None)
        self._outbox.send(SlotDone(action.id, n, read.n_bytes if read else 0, time.monotonic() - began))

    def _write(self, action: SlotAction, saved: Saved, began: float) -> None:
        file = write_state(Path(action.path), self._key(), 0, saved)
        self._outbox.send(SlotDone(action.id, len(saved.tokens) // 4, file.size, time.monotonic() - began))

    def _in_background(self, action: SlotAction, work: Callable[[], None]) -> None:
        """Works in another thread; what fails refuses the action."""

        def careful() -> None:
            try:
                work()
            except EdgeSpecError as error:
                self._outbox.send(Refused(action.id, "setting", str(error)))
            except (OSError, MemoryError) as error:
                reason = error.strerror if isinstance(error, OSError) else "there is too little memory"
                sentence = f"slot {action.slot}: {Path(action.path).name}: {reason}"
                self._outbox.send(Refused(action.id, "setting", sentence))

        threading.Thread(target=careful, daemon=True).start()


def read_slot(path: Path, key: bytes) -> tuple[Saved, int]:
    """Returns what is in a slot's file, and its size. Raises SettingError for a wrong one, and OSError."""
    why = "there is no such file"
    if path.is_file():
        try:
            kept = read_head(path)
            if kept.parent == key and kept.before == 0:
                return read_state(kept, copied=True), kept.size
            why = "it was saved with another model, other settings or another build of llama.cpp"
        except NotAStateError as error:
            why = str(error)
    raise SettingError(f"{path.name} cannot be restored: {why}")
