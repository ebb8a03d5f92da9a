"""MTP blocks that take turns: the first guesses the next token, the second the one after it, and so on.

All of them read the settled tokens in the target's rows. A later guess is made by the block whose turn
it is, which also reads the guesses before it, each in the row that the block before made there (llama.cpp,
common/speculative.cpp). So a draft is no longer than there are blocks.

Keys and values of every block are in the same cells, in tensors of their own. A reading is repeated for each
block: the cells are freed and taken again, which llama.cpp does in the same order. After the settled tokens,
cells are those of the last block that had its turn, and are written anew for the next.
"""

from collections.abc import Sequence

import llama_cpp as C
import numpy as np

from edgespec.core.loop import Rows, Want
from edgespec.llama.context import Context
from edgespec.llama.heads.head_cache import Held
from edgespec.llama.heads.head_context import HeadContext, ReadPlan
from edgespec.llama.heads.row_batch import RowPart
from edgespec.llama.model import Model
from edgespec.llama.saved import same_beginning
from edgespec.llama.settings import ContextSettings
from edgespec_models.gguf.heads import Head


class TurnsContext(HeadContext):
    """Evaluates several MTP blocks in turn. `Held.made` has a row of each that had its turn."""

    def __init__(self, model: Model, target: Context, settings: ContextSettings, head: Head) -> None:
        """Raises what `HeadContext` does."""
        self._blocks = head.n_blocks
        super().__init__(model, target, settings, head)

    def missing(self, want: Want) -> int:
        """Returns how many tokens `score` would evaluate for this; those that all blocks read count once."""
        plan = self._plan(want)
        unread, ahead = plan.readable - plan.at, plan.end - plan.readable
        turn = 1 if unread or plan.anew else self._turn(plan)
        return unread + sum(range(turn, ahead + 1))

    def _scored(self, wants: Sequence[Want]) -> list[Rows]:
        """Returns the logits of the block whose turn it is."""
        plans = [self._begun(want) for want in wants]
        answers: dict[int, Rows] = {}
        while todo := [plan for plan in plans if plan.at < plan.readable]:
            answers |= self._read_settled(todo)
        going_on = [plan for plan in plans if plan.end > plan.readable]
        turns = {plan.seq: self._turn(plan) for plan in going_on}
        while going_on:
            first = self._block(turns[going_on[0].seq])
            together = [plan for plan in going_on if self._block(turns[plan.seq]) == first]
            most = max(1, self.settings.chunk // max(turns[plan.seq] for plan in together))
            for plan in together[:most]:
                self._take_back(plan)
            answers |= self._guess(together[:most], turns)
            for plan in together[:most]:
                turns[plan.seq] += 1
            going_on = [plan for plan in going_on if turns[plan.seq] <= plan.end - plan.readable]
        return [answers[want.seq] for want in wants]

    def _reached(self, held: Held, tokens: bytes, readable: int) -> int:
        at = min(same_beginning(held.tokens, tokens), readable, held.read)
        anew = at == readable and (not held.made or len(tokens) // 4 == readable)
        return at - anew  # the row or the logits after the last settled token are missing

    def _begun(self, want: Want) -> ReadPlan:
        same = same_beginning(self._held[want.seq].tokens, self._plan(want).tokens)
        made = self._held[want.seq].made
        plan = super()._begun(want)
        held, behind = self._held[want.seq], plan.at == plan.readable
        if behind:
            blank = [np.zeros(self._width, np.float32)]
            held.made = blank if plan.anew else made[: max(0, same - plan.readable) + 1]
        return plan

    def _turn(self, plan: ReadPlan) -> int:
        """Returns how many tokens after the settled ones the next evaluation reads."""
        return min(max(1, len(self._held[plan.seq].made)), plan.end - plan.readable)

    def _block(self, turn: int) -> int:
        return min(turn, self._blocks - 1)

    def _read_settled(self, plans: Sequence[ReadPlan]) -> dict[int, Rows]:
        """Has all blocks read as much of each plan as one evaluation can hold; returns the first's logits."""
        share, parts = self.settings.chunk // len(plans), []
        for plan in plans:
            n = min(share, plan.readable - plan.at)
            tokens = plan.tokens[4 * plan.at : 4 * (plan.at + n)]
            parts.append(RowPart(plan.seq, plan.at, self._shown(plan.seq, plan.at, n), tokens))
        found = self._read_by_all(parts)
        for plan, part in zip(plans, parts, strict=True):
            plan.at += part.size
            self._held[plan.seq].read = plan.at
        return {part.seq: row.copy() for part, row in zip(parts, found, strict=True)}

    def _read_by_all(self, parts: Sequence[RowPart]) -> list[Rows]:
        """Evaluates parts with each block, the first block last; returns its logits after each."""
        for block in range(self._blocks - 1, 0, -1):
            self._choose(block)
            self._evaluate(parts)
            for part in parts:
                C.llama_memory_seq_rm(self._memory, part.seq, part.position, -1)
        self._choose(0)
        return self._decode(parts)

    def _take_back(self, plan: ReadPlan) -> None:
        """Frees the cells after the settled tokens: they are another block's."""
        C.llama_memory_seq_rm(self._memory, plan.seq, plan.readable, -1)
        del self._held[plan.seq].tokens[4 * plan.readable :]

    def _guess(self, plans: Sequence[ReadPlan], turns: dict[int, int]) -> dict[int, Rows]:
        """Has the block whose turn it is read what follows the settled tokens; returns its logits."""
        parts = []
        for plan in plans:
            n = turns[plan.seq]
            rows = np.stack(self._held[plan.seq].made[:n])
            tokens = plan.tokens[4 * plan.readable : 4 * (plan.readable + n)]
            parts.append(RowPart(plan.seq, plan.readable, rows, tokens))
        self._choose(self._block(parts[0].size))
        self._evaluate(parts)
        found, at = {}, -1
        for part in parts:
            at += part.size
            self.evaluated += part.size
            held = self._held[part.seq]
            held.tokens += part.tokens or b""
            held.made[part.size :] = [self._own_row(at, self._width)]
            found[part.seq] = self._logits(at).copy()
        return found

    def _choose(self, block: int) -> None:
        from llama_cpp import llama_cpp_ext

        llama_cpp_ext.llama_set_nextn_layer_offset(self._handle, block)

    def rehearse(self, n: int) -> None:
        """Evaluates n empty rows with every block; the first sequence is empty then."""
        self.clear(0)
        self._read_by_all([RowPart(0, 0, np.zeros((n, self._rows.width), np.float32), bytes(4 * n))])
        self.clear(0)
