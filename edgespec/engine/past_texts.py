"""Texts that were answered lately, to explain why much of a prompt is evaluated again.

They are tokens in this process's memory, few of them, and a text is compared with those of its owner alone.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgespec.core.values import Broken
from edgespec.engine.borders import NEAR
from edgespec.llama.saved import same_beginning

LEAST = 64  # tokens evaluated again that are worth an explanation
MOST = 16  # texts
SAMPLES, WINDOW = 16, 16  # places of a prompt that are looked for in a text, and tokens there
ENOUGH = 0.75  # of the samples: this text it is
SHOWN = 30  # characters of what differs
RAW = 20  # tokens that surely have so many characters, or nearly


@dataclass(frozen=True, slots=True)
class _Past:
    tokens: bytes  # of prompt and answer
    n_prompt: int
    owner: str


class PastTexts:
    """The last texts of all owners."""

    def __init__(self, spell: Callable[[Sequence[int]], str]) -> None:
        """spell: returns the text of tokens."""
        self._spell = spell
        self._texts: deque[_Past] = deque(maxlen=MOST)

    def add(self, tokens: NDArray[np.int32], n_prompt: int, owner: str) -> None:
        """Remembers a text; it takes the place of its beginnings."""
        new = _Past(tokens.tobytes(), n_prompt, owner)
        kept = [old for old in self._texts if old.owner != owner or not new.tokens.startswith(old.tokens)]
        self._texts = deque([*kept, new], maxlen=MOST)

    def explain(self, prompt: NDArray[np.int32], cached: int, owner: str) -> Broken | None:
        """Returns why tokens behind the first `cached` are evaluated though they were before.

        How many these are is estimated: by how many samples of them an earlier text has.
        """
        missing, text = prompt.size - cached, prompt.tobytes()
        if missing <= LEAST or not self._texts:
            return None
        places = np.linspace(cached, prompt.size - WINDOW, SAMPLES).astype(int).tolist()
        best, most = None, 0
        for past in reversed(self._texts):
            if past.owner != owner:
                continue
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
