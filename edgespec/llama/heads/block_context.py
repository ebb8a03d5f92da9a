"""A DFlash head's working state: one evaluation gives a row for each guess of a draft.

The head has keys and values from the target's hidden rows, then reads the last token and a mask for each
position after it, all at once. Its rows do not depend on what was drawn before: they are marginals. Each
guess is drawn from its own, so verification needs no change. (DFlash,
arXiv 2602.06036. DSpark adds what usually follows the likeliest token before; that is in its graph. DFlash2
gives some candidates for each position, and how likely each is after each candidate before it.)
"""

from collections.abc import Sequence

import llama_cpp as C
import numpy as np
from numpy.typing import NDArray

from edgespec.core.loop import Rows, Want
from edgespec.errors import NoRoomError
from edgespec.llama.batch import Batch
from edgespec.llama.context import Context
from edgespec.llama.heads.head_cache import HeadCache
from edgespec.llama.heads.head_settings import head_settings
from edgespec.llama.heads.row_batch import RowBatch, RowPart
from edgespec.llama.heads.taps import tap_end, tap_layers
from edgespec.llama.model import Model
from edgespec.llama.saved import same_beginning
from edgespec.llama.settings import ContextSettings
from edgespec_models.gguf.heads import Head

M_ROPE = 8  # llama.cpp's number for positions of four parts


class BlockContext(HeadCache):
    """Evaluates a DFlash head; its answers are those of a draft's context, and stay valid.

    A want without a tail evaluates the whole block; those with one are answered from it.
    """

    def __init__(self, model: Model, target: Context, settings: ContextSettings, head: Head) -> None:
        """model: the head's. target: whose rows it reads. Raises what `HeadContext` does."""
        self.longest = head.longest
        asked, settings = settings, head_settings(settings, head)
        super().__init__(model, target, settings, head)
        self.n_ctx, self._head = asked.n_ctx, head
        self._rows_of: list[tuple[bytes, Rows]] = [(b"", np.empty((0, 0), np.float32))] * settings.n_seq
        try:
            width = self._width = int(C.llama_model_n_embd(target.model.handle))
            tap = tap_layers(target.handle, head.layers, width)
            self._rows = target.keep_hidden(tap, width * len(head.layers))
            sections = 4 if C.llama_model_rope_type(model.handle) == M_ROPE else 1
            self._features = RowBatch(settings.chunk, self._rows.width, sections=sections)
            self._block = Batch(head.block, self.n_ctx + head.block)
            C.llama_set_causal_attn(self._handle, head.causal)
            if head.candidates:
                tap_end(self._handle, width)
            self._warm_up()
        except BaseException:
            self.close()
            raise

    def missing(self, want: Want) -> int:
        """Returns how many tokens `score` would read for this, one for the block itself among them."""
        if want.tail:
            return 0
        _, at, known = self._plan(want)
        return known - at + 1

    def _scored(self, wants: Sequence[Want]) -> list[Rows]:
        """Raises NoRoomError also if the block has no position after a tail."""
        return [self._scored_one(want) for want in wants]

    def _scored_one(self, want: Want) -> Rows:
        tokens, _ = self._settled(want)
        if not want.tail or self._rows_of[want.seq][0] != tokens:
            self._read(want)
            rows = self._guessed(want.seq, tokens[-4:], self._held[want.seq].end)
            self._rows_of[want.seq] = tokens, rows
        rows, place = self._rows_of[want.seq][1], len(want.tail)
        if place >= len(rows):
            raise NoRoomError(f"the head guesses {len(rows)} tokens at most")
        return self._weighed(rows, want.tail) if self._head.candidates else rows[place : place + 1]

    def _weighed(self, rows: Rows, tail: tuple[int, ...]) -> Rows:
        """Returns the candidates of the position after a tail, weighed by those in it: (1, n_vocab).

        A row has k candidates, then their k weights after each of the k candidates of the previous position.
        """
        k, before = self._head.candidates, 0
        for row, token in zip(rows, (*tail, None), strict=False):
            weights, found = row[k * (before + 1) :][:k], np.flatnonzero(row[:k] == token)
            # a grammar may have put another there: then as after the likeliest
            before = int(found[0] if found.size else weights.argmax())
        made = np.full((1, self.n_vocab), -np.inf, np.float32)
        made[0, row[:k].astype(np.int64)] = weights
        return made

    def _plan(self, want: Want) -> tuple[bytes, int, int]:
        """Returns the tokens from position 0 on, and the range in which to read the target's rows."""
        tokens, known = self._settled(want)
        held, known = self._held[want.seq], min(known, len(tokens) // 4 - 1)
        at = min(same_beginning(held.tokens, tokens), known)
        if at > held.start and at >= want.before and self._rows.reaches(want.seq, at, known):
            return tokens, at, known
        return tokens, min(max(self._rows.begin(want.seq, known), want.before), known), known

    def _read(self, want: Want) -> None:
        """Makes keys and values from the target's rows up to the last token."""
        seq = want.seq
        tokens, at, known = self._plan(want)
        self.cut(seq, at)
        held = self._held[seq]
        if held.end != at:  # it begins anew
            self.clear(seq)
            held = self._held[seq]
            held.tokens += tokens[: 4 * at]
            held.start = at
        for first in range(at, known, self.settings.chunk):
            end = min(first + self.settings.chunk, known)
            self._inject(RowPart(seq, first, self._rows.between(seq, first, end)))
            held.tokens += tokens[4 * first : 4 * end]
        held.read = held.end

    def _inject(self, part: RowPart) -> None:
        self._features.fill([part], outputs=0)
        self._decode(self._features.struct, part.size)

    def _guessed(self, seq: int, token: bytes, at: int) -> NDArray[np.float32]:
        """Reads a token and the masks after it, and takes them back; returns a row for each guess.

        at: the position after what was read; settled tokens that the target has not seen are skipped.
        """
        masks = np.full(self._head.block - 1, self._head.mask, np.int32).tobytes()
        self._block.fill([(seq, token + masks, self._head.block, at)])
        self._decode(self._block.struct, 1)
        places = range(self._head.block - self.longest, self._head.block)
        if self._head.candidates:
            found = np.stack([self._own_row(i, self._width) for i in places])
        else:
            found = np.concatenate([self._logits(i) for i in places])
        C.llama_memory_seq_rm(self._memory, seq, at, -1)
        return found

    def _decode(self, struct: object, n: int) -> None:
        """Evaluates a batch that counts as n tokens."""
        self._run(struct)
        self.evaluated += n

    def rehearse(self, n: int) -> None:
        """Evaluates what reading n tokens takes, the block too; the first sequence is empty then."""
        self.clear(0)
        if n > 1:
            self._inject(RowPart(0, 0, np.zeros((n - 1, self._rows.width), np.float32)))
        self._guessed(0, bytes(4), n - 1)
        self.clear(0)
