"""Medusa heads: each guesses one position further, all from the target's last hidden state, in numpy.

A head's logits do not depend on the guesses before it: its rows are marginals, each guess
is drawn from its own, and verification needs no change. They read nothing and keep nothing, so
there is no cache. The state is that of the last token that the target has evaluated; after a prompt it is
unknown before the first verification, and the first round has no guess.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import llama_cpp as C
import numpy as np
from numpy.typing import NDArray

from edgespec.core.loop import Rows, Want
from edgespec.llama.context import Context
from edgespec.llama.heads.taps import tap_outputs
from edgespec.llama.saved import Saved
from edgespec.llama.settings import ContextSettings
from edgespec_models.gguf.heads import Head
from edgespec_models.gguf.medusa import MedusaHead, load

Floats = NDArray[np.float32]


class MedusaModel:
    """The weights, with a model's interface. Raises ModelFileError for a damaged file."""

    metadata: Mapping[str, str] = {}
    on_gpu = has_recurrent_state = False
    layers: Counter[str] = Counter()  # that llama.cpp has somewhere: none

    def __init__(self, path: Path, n_vocab: int) -> None:
        """n_vocab: of the target."""
        self.path, self.n_vocab = path, n_vocab
        self.heads, self.tokens = load(path)


class MedusaContext:
    """Evaluates Medusa heads; it answers as a draft's context does. The counters are those of a `Context`."""

    kind = "medusa"
    batches = True
    fills = False

    def __init__(self, model: MedusaModel, target: Context, settings: ContextSettings, head: Head) -> None:
        """target: whose rows it reads."""
        self.model, self.settings, self.n_ctx = model, settings, settings.n_ctx
        self.seconds, self.calls, self.evaluated, self.first_s = 0.0, 0, 0, 0.0
        self._target = target
        width = int(C.llama_model_n_embd(target.model.handle))
        tap, switch = tap_outputs(target.handle, width)
        self._rows = target.keep_hidden(tap, width, switch=switch)
        self.rehearse(1)
        self.seconds = 0.0
        self.rehearse(1)
        self.first_s = self.seconds
        self.seconds, self.calls, self.evaluated = 0.0, 0, 0

    def close(self) -> None:
        """Has nothing to free."""

    @property
    def n_vocab(self) -> int:
        """Vocabulary size of its rows."""
        return self.model.n_vocab

    def missing(self, want: Want) -> int:
        """Returns how many heads `score` would evaluate for this."""
        return 1

    def score(self, wants: Sequence[Want]) -> list[Rows]:
        """Returns for each want float32 (1, n_vocab): the marginal at the position after its tail.

        All of a row is NaN if there is no head for that position, or no hidden state to guess from.
        """
        answers: list[Rows] = [np.full((1, self.n_vocab), np.nan, np.float32) for _ in wants]
        places: dict[int, list[tuple[int, Floats]]] = {}
        for i, want in enumerate(wants):
            place, state = self._stands(want)
            if state is not None and place < len(self.model.heads):
                places.setdefault(place, []).append((i, state))
        for place, asked in places.items():
            rows = self._evaluate(self.model.heads[place], np.stack([state for _, state in asked]))
            for (i, _), row in zip(asked, rows, strict=True):
                answers[i] = row[None]
        return answers

    def _stands(self, want: Want) -> tuple[int, Floats | None]:
        """Returns which head's turn it is, and the state that it reads."""
        tokens = want.tokens.tobytes()
        if want.before:
            before = self._target.held(want.seq)[: want.before].tobytes()
            tokens = before.ljust(4 * want.before, b"\0") + tokens
        last = len(tokens) // 4 - 1  # the token after the state is known already
        known = min(self._target.holds(want.seq, tokens), last)
        return last - known + len(want.tail), self._rows.row(want.seq, known - 1)

    def _evaluate(self, head: MedusaHead, states: Floats) -> Floats:
        """Returns the logits of a head: (n, n_vocab)."""
        started = time.perf_counter()
        for weight, bias in head.blocks:
            inner = states @ weight.T + bias
            states = states + inner / (1 + np.exp(-inner))
        found = states @ head.output.T
        if self.model.tokens is not None or found.shape[1] < self.n_vocab:
            every = np.full((len(found), self.n_vocab), -np.inf, np.float32)
            every[:, slice(found.shape[1]) if self.model.tokens is None else self.model.tokens] = found
            found = every
        self.seconds += time.perf_counter() - started
        self.calls += 1
        self.evaluated += len(states)
        return found

    def rehearse(self, n: int) -> None:
        """Evaluates what a guess after n tokens takes, whatever n is: one head."""
        self._evaluate(self.model.heads[0], np.zeros((1, self._rows.width), np.float32))

    # ---- what a cache would do -------------------------------------------------------------------------

    def held(self, seq: int = 0) -> NDArray[np.int32]:
        """Returns no tokens."""
        return np.empty(0, np.int32)

    def clear(self, s: int = 0) -> None:
        """Has nothing to forget."""

    def cut(self, s: int, n: int) -> None:
        """Has nothing to forget."""

    def save(self, s: int) -> Saved:
        """Returns nothing."""
        return Saved(b"", np.empty(0, np.uint8), 0)

    def restore(self, s: int, saved: Saved) -> bool:
        """Has nothing to restore."""
        return True

    def share(self, source: int, s: int, n: int) -> bool:
        """Has nothing to share."""
        return True

    @property
    def tried(self) -> float:
        """Returns 0: numpy evaluates."""
        return 0.0

    def keep_cells(self, on: bool) -> None:
        """Has no cells."""

    def give_back_cells(self) -> bool:
        """Returns False: none are kept."""
        return False
