"""Texts that were answered lately: their own tokens for what comes back, and why a prompt is read again.

An answer comes back as text, and its tokens may be others than the model chose: then all behind the first is
evaluated again. So where a prompt begins byte for byte as such a text, it gets that text's tokens, up to a
control token. What differs stays as it was sent, and what users wrote has the tokens that it always has.

They are in this process's memory, few of them, and a text is compared with those of its owner alone.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from edgespec.core.values import Broken
from edgespec.engine.borders import NEAR
from edgespec.llama.cuts import Cuts
from edgespec.llama.saved import same_beginning

LEAST = 64  # tokens evaluated again that are worth an explanation
MOST = 16  # texts
SAMPLES, WINDOW = 16, 16  # places of a prompt that are looked for in a text, and tokens there
ENOUGH = 0.75  # of the samples: this text it is
SHOWN = 30  # characters of what differs
NOTHING = np.empty(0, np.int32)
RAW = 20  # tokens that surely have so many characters, or nearly


@dataclass(frozen=True, slots=True)
class _Past:
    tokens: bytes  # of prompt and answer
    n_prompt: int
    owner: str
    spelt: bytes = b""  # empty where its tokens are not for others
    ends: NDArray[np.int32] = field(default_factory=lambda: NOTHING)  # of each token in it


class PastTexts:
    """The last texts of all owners. The engine's thread adds them; others may ask."""

    def __init__(self, piece: Callable[[int], bytes]) -> None:
        """piece: returns the bytes of a token, of control tokens as well."""
        self._piece = piece
        self._texts: tuple[_Past, ...] = ()

    def add(self, tokens: NDArray[np.int32], n_prompt: int, owner: str, *, replays: bool = False) -> None:
        """Remembers a text; it takes the place of its beginnings. replays: its prompt came as text."""
        new, kept, before = tokens.tobytes(), list[_Past](), _Past(b"", 0, owner)
        for old in self._texts:
            if old.owner == owner and new.startswith(old.tokens):
                before = max(before, old, key=lambda one: len(one.spelt))
            else:
                kept.append(old)
        spelt, ends = b"", NOTHING
        if replays and (tokens >= 0).all():
            pieces = [self._piece(token) for token in tokens[before.ends.size :].tolist()]
            spelt = before.spelt + b"".join(pieces)
            sizes = np.array([len(piece) for piece in pieces], np.int32)
            ends = np.concatenate([before.ends, len(before.spelt) + np.cumsum(sizes, dtype=np.int32)])
        self._texts = (*kept, _Past(new, n_prompt, owner, spelt, ends))[-MOST:]

    def replayed(
        self, text: bytes, owner: str, control: NDArray[np.bool_], cuts: Cuts
    ) -> tuple[NDArray[np.int32], int]:
        """Returns the tokens of the longest beginning of a text that was answered, and its bytes.

        control: which tokens no text contains. cuts: where texts may be cut.
        """
        best, most = NOTHING, 0
        for past in self._texts:
            if past.owner != owner or (shared := _same_bytes(past.spelt, text)) <= most:
                continue
            tokens = np.frombuffer(past.tokens, np.int32)
            n = int(np.searchsorted(past.ends, shared, side="right"))
            places = [n, *np.flatnonzero(control[tokens[:n]])[::-1].tolist()]
            n = next((n for n in places if n and cuts.may_cut(text, int(past.ends[n - 1]))), 0)
            if n and past.ends[n - 1] > most:
                best, most = tokens[:n], int(past.ends[n - 1])
        return best, most

    def explain(self, prompt: NDArray[np.int32], cached: int, owner: str) -> Broken | None:
        """Returns why tokens behind the first `cached` are evaluated though they were before.

        How many these are is estimated: by how many samples of them an earlier text has.
        """
        missing, text = prompt.size - cached, prompt.tobytes()
        mine = [past for past in reversed(self._texts) if past.owner == owner]
        if missing <= LEAST or not mine:
            return None
        if whole := max((len(past.tokens) // 4 for past in mine if text.startswith(past.tokens)), default=0):
            again = whole - cached  # it goes on from there, whatever the new part repeats
            return Broken(again, whole, "", "", "room") if again > LEAST else None
        places = np.linspace(cached, prompt.size - WINDOW, SAMPLES).astype(int).tolist()
        best, most = None, 0
        for past in mine:
            n = sum(past.tokens.find(text[4 * at : 4 * (at + WINDOW)]) >= 0 for at in places)
            if n > most:
                best, most = past, n
            if most >= ENOUGH * SAMPLES:
                break
        again = missing * most // SAMPLES
        if best is None or again <= LEAST:
            return None
        at = same_beginning(best.tokens, text)
        was, now = (self._shown(np.frombuffer(tokens, np.int32), at) for tokens in (best.tokens, text))
        if at == min(len(best.tokens) // 4, prompt.size) or at - cached > NEAR + LEAST:
            return Broken(again, at, "", "", "room")
        ahead = len(self._spell(prompt[:at].tolist()))
        return Broken(again, at, was, now, "template" if at == best.n_prompt else "client", ahead)

    def _shown(self, tokens: NDArray[np.int32], at: int) -> str:
        return self._spell(tokens[at : at + RAW].tolist())[:SHOWN]

    def _spell(self, tokens: Sequence[int]) -> str:
        return b"".join(self._piece(token) for token in tokens if token >= 0).decode("utf-8", "replace")


def _same_bytes(one: bytes, other: bytes) -> int:
    """Returns how many first bytes two texts share."""
    end = min(len(one), len(other))
    if one.startswith(memoryview(other)[:end]):
        return end
    return int((np.frombuffer(one, np.uint8, end) != np.frombuffer(other, np.uint8, end)).argmax())
