"""A head's working state: it answers as a draft model's context does, and reads the target's hidden rows.

A head (MTP, EAGLE-3) reads each token together with a hidden row of the previous position: the target's,
if the target has evaluated that position; otherwise, after the settled tokens, the row that the
head itself made there. So a round begins with the tokens that were accepted, read once more in the target's
rows, and continues from the head's own, one token at a time.

Cells are synced to tokens and rows, as those of a `Context` are to tokens. The head cannot read rows that
are no longer kept (`HiddenRows`); then it starts anew after the gap, with less context. No text depends
on that: guesses are verified.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import llama_cpp as C
import numpy as np
from numpy.typing import NDArray

from edgespec.core.loop import Rows, Want
from edgespec.errors import FatalDecodeError, ModelUnsupportedError
from edgespec.llama.context import Context
from edgespec.llama.heads.head_cache import HeadCache, Held
from edgespec.llama.heads.head_settings import head_settings
from edgespec.llama.heads.row_batch import RowBatch, RowPart
from edgespec.llama.heads.taps import tap_end, tap_layers
from edgespec.llama.log import last_complaint
from edgespec.llama.model import Model
from edgespec.llama.saved import same_beginning
from edgespec.llama.settings import ContextSettings
from edgespec_models.gguf.heads import Head

FAR = 16  # settled but unevaluated tokens, above which a head starts anew after them


@dataclass(slots=True)
class ReadPlan:
    """What to read for one want."""

    seq: int
    tokens: bytes  # from position 0 on
    at: int  # the next position to be read
    readable: int  # positions before it are read in the target's rows, those from it on in the head's own
    end: int
    anew: bool  # cells before `at` are useless

    @property
    def done(self) -> bool:
        return self.at == self.end


class HeadContext(HeadCache):
    """Evaluates a head. Logits it returns are views, valid until the next `score`.

    It has a `Context`'s counters. Close it before its target's context.
    """

    def __init__(
        self,
        model: Model,
        target: Context,
        settings: ContextSettings,
        head: Head,
    ) -> None:
        """model: the target's own, loaded with its MTP blocks, or the head's. target: whose rows it reads.

        Raises ModelUnsupportedError if llama.cpp shows no hidden rows or makes no context of the head.
        """
        settings = head_settings(settings, head)
        super().__init__(model, target, settings, head)
        self._width = int(C.llama_model_n_embd(model.handle))
        self._batch = RowBatch(settings.chunk, self._width)
        self._first = 0 if head.kind == "mtp" else 1  # its first position: EAGLE-3 wants a row before it
        self._features: RowBatch | None = None  # rows of several layers, which the head fuses
        try:
            if head.kind == "mtp":
                width = int(C.llama_model_n_embd_out(target.model.handle))
                self._rows = target.keep_hidden(tap_end(target.handle, width), width)
            else:
                width = int(C.llama_model_n_embd(target.model.handle))
                tap = tap_layers(target.handle, head.layers, width)
                self._rows = target.keep_hidden(tap, width * len(head.layers))
                self._features = RowBatch(settings.chunk, self._rows.width)
            self._find_way()
            self._warm_up()
        except BaseException:
            self.close()
            raise

    def missing(self, want: Want) -> int:
        """Returns how many tokens `score` would evaluate for this."""
        plan = self._plan(want)
        return plan.end - plan.at

    def _scored(self, wants: Sequence[Want]) -> list[Rows]:
        plans = [self._begun(want) for want in wants]
        answers: list[Rows] = [np.empty((0, 0), np.float32)] * len(wants)
        while todo := [i for i, plan in enumerate(plans) if not plan.done]:
            found = self._read([plans[i] for i in todo])
            more = not all(plan.done for plan in plans)
            for i, row in zip(todo, found, strict=True):
                if plans[i].done:
                    answers[i] = row.copy() if more else row
        return answers

    def _plan(self, want: Want) -> ReadPlan:
        """Returns what would be read for a want, with the cache as it is."""
        seq, held = want.seq, self._held[want.seq]
        tokens, known = self._settled(want)
        settled = len(tokens) // 4
        readable = min(known + 1, settled)
        tokens += np.array(want.tail, np.int32).tobytes()
        end = len(tokens) // 4
        if settled - readable > FAR:
            return ReadPlan(seq, tokens, settled - 1, settled - 1, end, anew=True)
        at = self._reached(held, tokens, readable)
        kept = at >= readable or self._rows.reaches(seq, max(at - 1, 0), readable - 1)
        if at > held.start >= self._first and at >= want.before and kept:
            return ReadPlan(seq, tokens, at, readable, end, anew=False)
        oldest = self._rows.begin(seq, readable - 1)
        start = max(oldest + 1 if oldest else self._first, want.before)
        return ReadPlan(seq, tokens, min(start, readable - 1), readable, end, anew=True)

    def _reached(self, held: Held, tokens: bytes, readable: int) -> int:
        """Returns the first position to read."""
        at = min(same_beginning(held.tokens, tokens), len(tokens) // 4 - 1)
        if held.read < readable:  # the target has by now evaluated what the head went on with by itself
            at = min(at, held.read)
        if at >= readable and (at < held.end or not held.made):  # the head's own row is unknown
            at = min(at, readable) - 1
        return at

    def _begun(self, want: Want) -> ReadPlan:
        """Frees the cells that are useless for a want; returns what to read."""
        plan = self._plan(want)
        if plan.anew:
            self.clear(plan.seq)
            held = self._held[plan.seq]
            held.tokens += plan.tokens[: 4 * plan.at]
            held.start = held.read = plan.at
        else:
            self.cut(plan.seq, plan.at)
        return plan

    def _read(self, plans: Sequence[ReadPlan]) -> list[Rows]:
        """Reads as much of each plan as one evaluation can hold; returns the logits after it."""
        share, parts = self.settings.chunk // len(plans), []
        shown = [p for p in plans if p.at < p.readable]
        sizes = [min(share, p.readable - p.at) for p in shown]
        rows = [self._shown(p.seq, p.at, n) for p, n in zip(shown, sizes, strict=True)]
        fused = iter(np.split(self._fuse(np.concatenate(rows)), np.cumsum(sizes)[:-1]) if rows else [])
        for plan in plans:
            made = self._held[plan.seq].made
            alone = made[-1] if made else np.zeros(self._width, np.float32)
            inputs = next(fused) if plan.at < plan.readable else alone[None]
            tokens = plan.tokens[4 * plan.at : 4 * (plan.at + len(inputs))]
            parts.append(RowPart(plan.seq, plan.at, inputs, tokens))
        found = self._decode(parts)
        for plan, part in zip(plans, parts, strict=True):
            plan.at += part.size
            self._held[plan.seq].read = min(plan.at, plan.readable)
        return found

    def _shown(self, seq: int, at: int, n: int) -> NDArray[np.float32]:
        """Returns the target's rows with which n positions are read: those one before them."""
        if at and self._rows.row(seq, at - 1) is not None:
            return self._rows.between(seq, at - 1, at - 1 + n)
        blank = np.zeros((1, self._rows.width), np.float32)
        return np.concatenate([blank, self._rows.between(seq, at, at + n - 1)])

    def _fuse(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """Returns what the head reads of the target's rows: (n, width)."""
        if self._features is None:
            return rows
        first = int(C.llama_memory_seq_pos_max(self._memory, 0)) + 1  # meaningless, but required
        self._features.fill([RowPart(0, first, rows)], outputs=None)
        started = time.perf_counter()
        code = C.llama_encode(self._handle, self._features.struct)
        if code != 0:
            raise FatalDecodeError(f"llama.cpp failed with code {code} on a head: {last_complaint()}")
        fused = np.stack([self._own_row(i, self._width) for i in range(len(rows))])
        self.seconds += time.perf_counter() - started
        return fused

    def _decode(self, parts: Sequence[RowPart]) -> list[Rows]:
        """Evaluates parts in one call and keeps the record true; returns the logits after each."""
        self._evaluate(parts)
        found, at = [], -1
        for part in parts:
            at += part.size
            self.evaluated += part.size
            held = self._held[part.seq]
            held.tokens += part.tokens or b""
            held.made = [self._own_row(at, self._width)]
            found.append(self._logits(at))
        return found

    def _evaluate(self, parts: Sequence[RowPart]) -> None:
        """Evaluates parts in one call."""
        self._batch.fill(parts, outputs=None if self._features else 1)
        self._run(self._batch.struct)

    def rehearse(self, n: int) -> None:
        """Evaluates n empty rows, as for reading n tokens; the first sequence is empty then."""
        self.clear(0)
        rows = self._fuse(np.zeros((n, self._rows.width), np.float32))
        self._decode([RowPart(0, 0, rows, bytes(4 * n))])
        self.clear(0)

    def _find_way(self) -> None:
        """Finds how llama.cpp returns the hidden row after a reading; its graphs of MTP blocks differ.

        Some leave out the rows that want no logits and some do not, while the copying goes by a setting.
        """
        rows = np.random.default_rng(0).standard_normal((2, self._width)).astype(np.float32)
        tap_end(self._handle, self._width, outputs_only=True)
        if self.kind != "mtp":
            return
        self._decode([RowPart(0, 0, rows[:1], bytes(4))])
        self._decode([RowPart(0, 1, rows[1:], bytes(4))])
        right = self._held[0].made
        for outputs_only in (True, False):
            tap_end(self._handle, self._width, outputs_only=outputs_only)
            self.clear(0)
            self._decode([RowPart(0, 0, rows, bytes(8))])
            found = self._held[0].made
            if np.abs(found[0] - right[0]).max() < 0.05 * np.abs(right[0]).max():
                return
        raise ModelUnsupportedError(
            f"llama.cpp gives no hidden rows of the MTP blocks of {self.model.path.name}: run with --no-draft"
        )
