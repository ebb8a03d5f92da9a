"""Medusa heads: each guesses one position further, all from one hidden row of the target, in numpy.

Head i guesses the token i + 2 places behind the token whose row it reads: the row, plus a SiLU of a linear
map of it, then the output matrix that all heads share. Its rows do not depend on what was drawn before: they
are marginals. Each guess is drawn from its own, so verification needs no change (Medusa, arXiv 2401.10774).

The row is what the target's output matrix reads. llama.cpp shows it of any architecture, but only where it
computes logits of all tokens, so it is kept of verifications and single tokens, not of prompts: the first
round of an answer has no guess. llama.cpp has no graph for these heads; numpy takes the weights as they are
in the file (float32).
"""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import llama_cpp as C
import numpy as np
from numpy.typing import NDArray

from edgespec.core.loop import Rows, Want
from edgespec.errors import ModelFileError
from edgespec.llama.context import Context
from edgespec.llama.heads.head_cache import NoCache
from edgespec.llama.heads.hidden_rows import HiddenRow
from edgespec.llama.heads.taps import tap_outputs
from edgespec.llama.settings import ContextSettings
from edgespec.system.closing import Closing
from edgespec_models.gguf.header import read_file

KEPT = 64  # rows: as many as one evaluation has
Floats = NDArray[np.float32]


class MedusaModel(Closing):
    """The weights, with a model's interface."""

    metadata: Mapping[str, str] = {}
    on_gpu = has_recurrent_state = False
    layers: Counter[str] = Counter()  # that llama.cpp has somewhere: none
    rules: tuple[Any, ...] = ()
    overridden: tuple[Any, ...] = ()
    adapters: tuple[Any, ...] = ()

    def __init__(self, path: Path, n_vocab: int) -> None:
        """n_vocab: of the target. The header has been checked. Raises ModelFileError for a file cut short."""
        self.path, self.n_vocab = path, n_vocab
        header = read_file(path)
        tensors = {tensor.name: tensor for tensor in header.tensors}

        def weights(name: str, kind: type[np.generic]) -> NDArray[Any]:
            tensor, at = tensors[name], len(header.raw) + tensors[name].offset
            try:
                return np.memmap(path, kind, "r", at, tensor.shape[::-1])
            except ValueError:
                raise ModelFileError(f"{path} ends in the middle: make or download it again") from None

        n = header.of_architecture("head_count") or 0
        self.maps = [weights(f"head.{i}.weight", np.float32) for i in range(n)]
        self.biases = [weights(f"head.{i}.bias", np.float32) for i in range(n)]
        self.output: Floats = weights("output.weight", np.float32)
        every = slice(len(self.output))
        self.tokens: NDArray[np.int64] | slice = weights("d2t", np.int64) if "d2t" in tensors else every

    def close(self) -> None:
        """Has nothing to free."""

    def logits(self, place: int, states: Floats) -> Floats:
        """Returns the logits of one head for hidden rows (n, D): (n, n_vocab).

        On one thread: what numpy's `@` starts beside llama.cpp's threads takes 0.1 ms or 8 for the same.
        """
        inner = np.einsum("nd,ed->ne", states, self.maps[place]) + self.biases[place]
        states = states + inner / (1 + np.exp(-inner))
        found = np.full((len(states), self.n_vocab), -np.inf, np.float32)
        found[:, self.tokens] = np.einsum("nd,vd->nv", states, self.output)
        return found


class MedusaContext(NoCache):
    """Answers as a draft's context does, and keeps nothing. The counters are those of a `Context`."""

    kind = "medusa"
    tried = 0.0  # numpy evaluates: no other number of threads is tried

    def __init__(self, model: MedusaModel, target: Context, settings: ContextSettings) -> None:
        """target: whose rows it reads."""
        self.model, self.settings, self.n_ctx, self.n_vocab = model, settings, settings.n_ctx, model.n_vocab
        self.seconds, self.calls, self.evaluated, self.first_s = 0.0, 0, 0, 0.0
        self._target = target
        width = int(C.llama_model_n_embd(target.model.handle))
        tap, switch = tap_outputs(target.handle, width)
        self._rows = target.keep_hidden(tap, width, switch=switch, kept=KEPT)
        self.rehearse(1)  # reads the weights
        self.seconds = 0.0
        self.rehearse(1)
        self.first_s = self.seconds
        self.seconds, self.calls, self.evaluated = 0.0, 0, 0

    def missing(self, want: Want) -> int:
        """Returns how many heads `score` would evaluate for this."""
        return 1

    def score(self, wants: Sequence[Want]) -> list[Rows]:
        """Returns for each want float32 (1, n_vocab): the marginal at the position after its tail.

        All of it is NaN if there is no head for that position, or no hidden row to guess from.
        """
        answers: list[Rows] = [np.full((1, self.n_vocab), np.nan, np.float32) for _ in wants]
        places: dict[int, list[tuple[int, HiddenRow]]] = {}
        for i, want in enumerate(wants):
            place, row = self._reads(want)
            if row is not None and place < len(self.model.maps):
                places.setdefault(place, []).append((i, row))
        for place, asked in places.items():
            found = self._evaluate(place, np.stack([row for _, row in asked]))
            for (i, _), logits in zip(asked, found, strict=True):
                answers[i] = logits[None]
        return answers

    def _reads(self, want: Want) -> tuple[int, HiddenRow | None]:
        """Returns which head's turn it is, and the hidden row that it reads."""
        tokens = want.tokens.tobytes()
        if want.before:
            before = self._target.held(want.seq)[: want.before].tobytes()
            tokens = before.ljust(4 * want.before, b"\0") + tokens
        last = len(tokens) // 4 - 1  # it comes right behind the row, so nobody need guess it
        known = min(self._target.holds(want.seq, tokens), last)
        return last - known + len(want.tail), self._rows.row(want.seq, known - 1)

    def _evaluate(self, place: int, states: Floats) -> Floats:
        started = time.perf_counter()
        found = self.model.logits(place, states)
        self.seconds += time.perf_counter() - started
        self.calls += 1
        self.evaluated += len(states)
        return found

    def rehearse(self, n: int) -> None:
        """Evaluates what a guess after n tokens takes, whatever n is: one head."""
        self._evaluate(0, np.zeros((1, self._rows.width), np.float32))
