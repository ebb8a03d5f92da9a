"""Gemma 4's assistant: a head without a cache of its own, which attends to the keys and values of its target.

It reads one token at a time, with the target's hidden row of the previous position or, after the settled
tokens, with the row that it made there itself. What it reads leaves nothing in the cache, so all guesses of a
draft are made at one position, the first that the target has not evaluated (as in llama.cpp's
common/speculative.cpp).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import llama_cpp as C
import numpy as np

from edgespec.core.loop import Rows, Want
from edgespec.llama.context import Context
from edgespec.llama.heads.head_cache import HeadCache, Held, NoCache
from edgespec.llama.heads.hidden_rows import HiddenRow
from edgespec.llama.heads.row_batch import RowBatch, RowPart
from edgespec.llama.heads.taps import tap_end
from edgespec.llama.model import Model
from edgespec.llama.saved import Saved, same_beginning
from edgespec.llama.settings import ContextSettings
from edgespec_models.gguf.heads import Head

FAR = 16  # settled but unevaluated tokens, above which only the last of them is read


@dataclass(frozen=True, slots=True)
class _Plan:
    """What to read for one want."""

    seq: int
    tokens: bytes  # from position 0 on
    position: int  # tokens before it are in the target's cache
    first: int  # the first token after them, as far as it is read
    at: int  # the next token to be read
    end: int


class AssistantContext(HeadCache):
    """Evaluates an assistant; it holds only the rows that it made of the last draft."""

    held, save = NoCache.held, NoCache.save

    def __init__(self, model: Model, target: Context, settings: ContextSettings, head: Head) -> None:
        """model: the assistant's. target: whose cache and rows it reads. Raises what `HeadContext` does."""
        super().__init__(model, target, settings, head)
        self._width = int(C.llama_model_n_embd_out(model.handle))
        self._batch = RowBatch(settings.n_seq, self._width)
        try:
            self._rows = target.keep_hidden(tap_end(target.handle, self._width), self._width)
            tap_end(self._handle, self._width, outputs_only=True)
            self._warm_up()
        except BaseException:
            self.close()
            raise

    def restore(self, s: int, saved: Saved) -> bool:
        """Has nothing to restore."""
        self.clear(s)
        return True

    def missing(self, want: Want) -> int:
        """Returns how many tokens `score` would evaluate for this."""
        plan = self._plan(want)
        return plan.end - plan.at

    def _scored(self, wants: Sequence[Want]) -> list[Rows]:
        """The target forgets what it holds of a sequence that is not in its want."""
        plans = [self._begun(want) for want in wants]
        answers = {plan.seq: np.zeros((1, self.n_vocab), np.float32) for plan in plans}
        for step in range(max([plan.end - plan.at for plan in plans])):
            answers |= self._read([plan for plan in plans if plan.at + step < plan.end], step)
        return [answers[want.seq] for want in wants]

    def _plan(self, want: Want) -> _Plan:
        tokens, known = self._settled(want)
        last = len(tokens) // 4 - 1
        position = min(known, last)
        first = position if last - position <= FAR else last
        tokens += np.array(want.tail, np.int32).tobytes()
        end, held = len(tokens) // 4, self._held[want.seq]
        if not position:  # without keys, attention has no value
            return _Plan(want.seq, tokens, 0, end, end, end)
        same = min(same_beginning(held.tokens, tokens), held.start + len(held.made), end - 1)
        at = max(first, same) if (held.start, held.read) == (first, position) else first
        return _Plan(want.seq, tokens, position, first, at, end)

    def _begun(self, want: Want) -> _Plan:
        """Makes the target hold only the settled tokens: a rejected guess would be seen from its place."""
        plan = self._plan(want)
        self._target.cut(plan.seq, plan.position)
        if self._target.held(plan.seq).size != plan.position:  # it cannot go back there
            plan = replace(plan, position=0, at=plan.end)
        made = self._held[plan.seq].made[: plan.at - plan.first]
        self._held[plan.seq] = Held(bytearray(plan.tokens), plan.first, plan.position, made)
        return plan

    def _read(self, plans: Sequence[_Plan], step: int) -> dict[int, Rows]:
        """Reads one token of each plan; returns the logits after it."""
        parts = []
        for plan in plans:
            at, made = plan.at + step, self._held[plan.seq].made
            row = made[at - plan.first - 1] if at > plan.first else self._row_before(plan)
            parts.append(RowPart(plan.seq, plan.position, row[None], plan.tokens[4 * at : 4 * at + 4]))
        self._batch.fill(parts, outputs=1)
        self._run(self._batch.struct)
        self.evaluated += len(parts)
        for i, part in enumerate(parts):
            self._held[part.seq].made.append(self._own_row(i, self._width))
        return {part.seq: self._logits(i).copy() for i, part in enumerate(parts)}

    def _row_before(self, plan: _Plan) -> HiddenRow:
        found = self._rows.row(plan.seq, plan.position - 1) if plan.first == plan.position else None
        return np.zeros(self._width, np.float32) if found is None else found

    def rehearse(self, n: int) -> None:
        """Evaluates what reading n tokens takes: the last of them alone."""
        row = np.zeros((1, self._width), np.float32)
        self._batch.fill([RowPart(0, self._target.held(0).size, row, bytes(4))], outputs=1)
        self._run(self._batch.struct)
        self.clear(0)
