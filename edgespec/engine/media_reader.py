"""Pictures and sounds become what a target reads: decoded in one child, encoded in another, and kept.

Both work on strangers' files, and llama.cpp's projectors end their process on what they did not expect. So
neither runs in the engine: a fault there costs one sentence and no stream, and streams go on. A
medium is known by the hash of its file, so one that comes again (in the next turn, in another's conversation)
is not encoded again while its rows are kept; its cells may be held in caches for longer.
"""

from __future__ import annotations

import base64
import hashlib
import pickle
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from edgespec.core.attachment import LARGEST, Attachment
from edgespec.core.media import cells
from edgespec.errors import EngineError, GivenUpError, ModelUnsupportedError, SettingError
from edgespec.llama.medium import Medium
from edgespec.system.closing import Closing
from edgespec.system.json_child import ChildDiedError, JsonChild
from edgespec.system.limited_child import GIVEN_UP, LOOK_S, REFUSED, TEXT, TOO_MUCH, Limits
from edgespec.system.limited_children import LimitedChildren

BUDGET = 2**29  # bytes of rows that are kept
LONGEST_S = 300.0  # for encoding one medium
SHIPPED_EYE = {"sees": 1, "hears": 0, "at_once": 0, "buffers": 73_400}  # the embedded pair's projector
PICTURE = Limits(cpu_s=20.0, wall_s=60.0, memory=2**30, text=2**27)
Tokens = NDArray[np.int32]
Piece = Tokens | Medium


class MediaReader(Closing):
    """The projector of a target. Thread-safe; close it, or use it in a `with`."""

    def __init__(
        self, projector: Path, target: Path, *, on_gpu: bool, known: Mapping[str, int] | None = None
    ) -> None:
        """Raises ModelUnsupportedError if the projector cannot be used, in one sentence.

        known: what `_about` would say; then it is loaded with the first picture.
        """
        self.projector = projector
        self._files = {"projector": str(projector), "target": str(target), "on_gpu": on_gpu}
        self._turn = threading.Lock()
        self.encoder = JsonChild("edgespec.llama.projector_child", longest_s=LONGEST_S)
        self.decoder = LimitedChildren("edgespec.engine.picture_child")
        self._known: OrderedDict[bytes, tuple[Piece, ...]] = OrderedDict()  # the last used at the end
        self.by_cell: MutableMapping[int, Medium] = WeakValueDictionary()
        self.encoded = 0  # media, so far
        with open(projector, "rb") as file:
            self._name = hashlib.sha256(file.read(2**20) + str(projector.stat().st_size).encode()).digest()
        try:
            about = known or self._about()
        except BaseException:
            self.close()
            raise
        self.sees, self.hears = bool(about["sees"]), bool(about["hears"])
        self.at_once = int(about["at_once"])  # cells of the largest picture that is evaluated at once
        self.buffers = int(about["buffers"])  # bytes of RAM that encoding takes, and nothing fills before

    def close(self) -> None:
        """Ends the children."""
        self.encoder.close()
        self.decoder.close()

    def _about(self) -> dict[str, Any]:
        """Returns what the projector can do, which loads and tries it: on the processor if no card can."""
        for on_gpu in dict.fromkeys((self._files["on_gpu"], False)):
            self._files["on_gpu"] = on_gpu
            try:
                about = self.encoder.ask(self._files)
            except ChildDiedError as error:
                about = {"error": f"the projector {self.projector.name} cannot be used: {error}"}
            if "error" not in about:
                return about
        raise ModelUnsupportedError(about["error"])

    def pieces(self, attachment: Attachment) -> tuple[Piece, ...]:
        """Returns what stands for a medium in a prompt: tokens, and media that `by_cell` knows from then on.

        Raises SettingError for what cannot be read, and GivenUpError.
        """
        kind = attachment.kind
        if not (self.sees if kind == "picture" else self.hears):
            raise SettingError(f"this model reads no {kind}s: leave the {kind} out, or load one that does")
        if len(attachment.data) > LARGEST[kind]:
            most = LARGEST[kind] >> 20
            raise SettingError(
                f"the {kind} has {len(attachment.data) / 2**20:.1f} MiB: {most} are read at most"
            )
        content = hashlib.sha256(self._name + attachment.data).digest()
        with self._waiting():
            if content not in self._known:
                sent = self._encoded(attachment)
                self._known[content] = tuple(self._made(content, i, one) for i, one in enumerate(sent))
                self.encoded += 1
            self._known.move_to_end(content)
            found = self._known[content]
            while len(self._known) > 1 and self._n_bytes() > BUDGET:
                self._known.popitem(last=False)
        return found

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        given_up = GIVEN_UP.get()
        while not self._turn.acquire(timeout=LOOK_S if given_up else -1):
            if given_up and given_up.is_set():
                raise GivenUpError
        try:
            yield
        finally:
            self._turn.release()

    def _n_bytes(self) -> int:
        return sum(piece.n_bytes for of in self._known.values() for piece in of if isinstance(piece, Medium))

    def _encoded(self, attachment: Attachment) -> list[dict[str, Any]]:
        data, size = attachment.data, {}
        if attachment.kind == "picture":
            width, height, rgb = self.decoded(data).split(" ")
            data, size = base64.b64decode(rgb), {"width": int(width), "height": int(height)}
        try:
            answer = self.encoder.ask({**self._files, **size}, data)
        except ChildDiedError as error:
            raise SettingError(f"the {attachment.kind} could not be encoded: {error}") from None
        if "error" in answer:
            why = "" if answer["setting"] else f"the {attachment.kind} could not be encoded: "
            raise SettingError(why + answer["error"])
        found: list[dict[str, Any]] = answer["pieces"]
        return found

    def decoded(self, file: bytes) -> str:
        """Returns width, height and RGB bytes, in words. Raises SettingError and GivenUpError."""
        kind, text = self.decoder.answer(pickle.dumps(file), PICTURE)
        if kind == TEXT:
            return text
        if kind == REFUSED:
            raise SettingError(text)
        raise SettingError(f"the picture {text}" if kind == TOO_MUCH else "the picture is damaged")

    def _made(self, content: bytes, i: int, sent: dict[str, Any]) -> Piece:
        """Returns a piece as the child sent it. i: its number, within its medium."""
        if "tokens" in sent:
            return np.array(sent["tokens"], np.int32)
        n = int(sent["n"])
        if sent["causal"] is False and n > self.at_once:
            raise SettingError(f"the picture takes {n:,} tokens, and {self.at_once:,} can be read at once")
        rows, places, moves = (base64.b64decode(sent[name]) for name in ("rows", "places", "moves"))
        medium = Medium(
            cells(content + i.to_bytes(4, "little"), n, int(sent["n_positions"])),
            np.frombuffer(rows, np.float32).reshape(n, -1),
            np.frombuffer(places, np.int32).reshape(-1, n),
            np.frombuffer(moves, np.int32).reshape(-1, n),
            sent["causal"],
            sent["numbered"],
        )
        if self.by_cell.setdefault(medium.cells.item(0), medium) is not medium:
            known = self.by_cell[medium.cells.item(0)]
            if not np.array_equal(known.cells, medium.cells):  # once in 2**28
                raise EngineError("two pictures cannot be told apart: send one of them in another size")
            return known
        return medium
