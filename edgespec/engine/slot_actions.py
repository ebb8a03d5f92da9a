"""What clients of llama-server ask for a slot: its text saved to a file, restored from one, or forgotten.

The file is one of llama.cpp's own (a sequence's tokens and state), and at its end it says which model,
settings and build it belongs to, with a checksum. Files are read and written beside the engine, which copies
a state when the slot is free.
"""

import struct
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np

from edgespec.engine.engine import Engine
from edgespec.engine.messages import Refused, SlotAction, SlotDone
from edgespec.engine.outbox import Outbox
from edgespec.engine.request_reader import SlotRead
from edgespec.errors import EdgeSpecError, SettingError
from edgespec.llama.saved import Saved
from edgespec_models.kept_file import replacing

_HEAD = struct.Struct("<III")  # llama.cpp's magic, its version, words of tokens
_MAGIC, _VERSION = 0x67677371, 3  # LLAMA_STATE_SEQ_MAGIC, LLAMA_STATE_SEQ_VERSION
_PACKED = struct.Struct("<iII")  # before tokens, in llama-server's files: no token, version, tokens
_END = struct.Struct("<8s32sI")  # ours, the key of the model, checksum of the state
_OURS = b"EDGESLOT"


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
            self._beside(action, lambda: done(SlotRead(action, *read_slot(Path(action.path), self._key()))))
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
            self._beside(action, lambda: self._write(action, copied, began))
            return
        n = self._engine.fill_slot(action.slot, read.saved if read else None)
        self._outbox.send(SlotDone(action.id, n, read.n_bytes if read else 0, time.monotonic() - began))

    def _write(self, action: SlotAction, saved: Saved, began: float) -> None:
        size = write_slot(Path(action.path), saved, self._key())
        self._outbox.send(SlotDone(action.id, len(saved.tokens) // 4, size, time.monotonic() - began))

    def _beside(self, action: SlotAction, work: Callable[[], None]) -> None:
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


def write_slot(path: Path, saved: Saved, key: bytes) -> int:
    """Writes a slot's file, whole or not at all; returns its size. Raises OSError."""
    n = len(saved.tokens) // 4
    tokens = _PACKED.pack(-1, 1, n) + saved.tokens + bytes(4)  # no pictures
    with replacing(path, private=True, sync=False) as aside, aside.open("wb") as file:
        file.write(_HEAD.pack(_MAGIC, _VERSION, len(tokens) // 4) + tokens)
        file.write(saved.state.data)
        file.write(_END.pack(_OURS, key, zlib.crc32(saved.state.data)))
        return file.tell()


def read_slot(path: Path, key: bytes) -> tuple[Saved, int]:
    """Returns what is in a slot's file, and its size. Raises SettingError for a wrong one, and OSError."""

    def wrong(why: str) -> SettingError:
        return SettingError(f"{path.name} cannot be restored: {why}")

    if not path.is_file():
        raise wrong("there is no such file")
    data = np.fromfile(path, np.uint8)
    if data.size < _HEAD.size + _END.size:
        raise wrong("it is no slot's file")
    magic, version, n_words = _HEAD.unpack(data[: _HEAD.size].tobytes())
    ours, of, checksum = _END.unpack(data[-_END.size :].tobytes())
    start = _HEAD.size + 4 * n_words
    if (magic, version, ours) != (_MAGIC, _VERSION, _OURS) or start > data.size - _END.size:
        raise wrong("it is not one that EdgeSpec has saved")
    if of != key:
        raise wrong("it was saved with another model, other settings or another build of llama.cpp")
    state = data[start : -_END.size]
    if zlib.crc32(state.data) != checksum:
        raise wrong("it is damaged")
    words = data[_HEAD.size : start].tobytes()
    if words[:4] == b"\xff" * 4:  # as llama-server packs them; else tokens alone
        words = words[_PACKED.size :][: 4 * _PACKED.unpack_from(words)[2]]
    return Saved(words, state, 0), data.size
