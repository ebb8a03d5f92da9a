"""A model's working state: KV caches that are synced to token lists, and the one operation that does it.

`score` finds what a sequence already holds, removes the rest, decodes what is missing and returns logits.
Rewinding after a rejection, edits, cancellation and new turns are all this operation. How sequences go back
is in `cells.py`, how llama.cpp is called in `evaluation.py`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import llama_cpp as C
import numpy as np

from edgespec.core.loop import NO_ROWS, Rows, Want
from edgespec.core.media import end_of_media, runs
from edgespec.errors import EdgeSpecError, ModelUnsupportedError, SettingError
from edgespec.llama.attention import with_attention
from edgespec.llama.cells import Cells
from edgespec.llama.evaluation import Evaluator, Part
from edgespec.llama.heads.hidden_rows import HiddenRows
from edgespec.llama.heads.taps import Switch, Tap
from edgespec.llama.medium import Medium, check_known, medium_at
from edgespec.llama.model import Model
from edgespec.llama.sequence import bytes_of
from edgespec.llama.settings import ContextSettings, new_context
from edgespec.pairs.adapters import Scales
from edgespec.pairs.settings import whole
from edgespec.system.closing import Closing

__all__ = ["Context", "ContextSettings"]

# llama.cpp's graphs that give the logits of a batch's first tokens, whichever are asked for
FIRST_ROWS = ("cogvlm",)


class Context(Closing):
    """Evaluates tokens of one model. Logits it returns are views, valid until the next `score`.

    `first_s` is what the first two tokens took, with weights still to be read; for the other figures see
    `Evaluator`. Not thread-safe. Close it before its model, or use it in a `with`.
    """

    def __init__(self, model: Model, settings: ContextSettings) -> None:
        """Raises SettingError or ModelUnsupportedError with a reason instead of letting llama.cpp abort."""
        self.model = model
        self.settings = settings = with_attention(model, settings)
        self.n_ctx, self.n_vocab, self.adapters, self.first_s = settings.n_ctx, model.n_vocab, Scales(), 0.0
        self.batches = not model.has_recurrent_state  # else several sequences are evaluated in turn
        alone = settings.n_seq == 1 or not model.window  # no other takes cells behind a window
        # tokens that nobody wanted leave its memory again for nothing
        self.fills = self.batches and alone and model.architecture not in FIRST_ROWS
        self.handle: Any = new_context(model, settings)
        self._cells = Cells(model, settings, self.handle)
        self._evaluator = Evaluator(model, settings, self.handle, self._cells)
        cells = self._cells  # what it holds, forgets and shares is theirs alone
        self.held, self.holds, self.clear, self.cut = cells.held, cells.holds, cells.clear, cells.cut
        self.save, self.restore, self.share = cells.save, cells.restore, cells.share
        self.keep_cells, self.give_back_cells = cells.keep_cells, cells.give_back_cells
        self.parts, self.checkpoints = cells.parts, cells.checkpoints
        self.media: Mapping[int, Medium] = {}  # what may be among the tokens, by its first cell
        try:
            self._probe()
        except BaseException:
            self.close()
            raise

    def keep_others(self) -> None:
        """Keeps for the next start how much of the cache other sequences held."""
        self._evaluator.others.keep(self.model.path, self.settings.n_seq)

    def close(self) -> None:
        """Frees the caches."""
        if self.handle:
            C.llama_free(self.handle)
            self.handle = None

    def _probe(self) -> None:
        """Evaluates two tokens (a warm-up as well) and tries to remove the second."""
        self._evaluator.decode([(0, bytes(8), 1)])
        if not self.model.has_recurrent_state and not C.llama_memory_seq_rm(self._cells.memory, 0, 1, -1):
            raise ModelUnsupportedError(
                f"{self.model.path.name} cannot take back evaluated tokens (llama_memory_seq_rm refused), "
                "so guesses cannot be withdrawn from it"
            )
        self.clear(0)
        self.first_s = self.seconds
        self._evaluator.reset()

    @property
    def seconds(self) -> float:
        """Seconds spent inside llama.cpp."""
        return self._evaluator.seconds

    @property
    def calls(self) -> int:
        """Evaluations so far."""
        return self._evaluator.calls

    @property
    def evaluated(self) -> int:
        """Tokens that were evaluated."""
        return self._evaluator.evaluated

    @property
    def tried(self) -> float:
        """Returns the seconds that evaluations took longer because another number of threads was tried."""
        return self._evaluator.threads.tried

    def keep_hidden(
        self, tap: Tap, width: int, *, switch: Switch | None = None, kept: int | None = None
    ) -> HiddenRows:
        """Keeps the rows of a tap from now on, for a head. Returns where.

        switch: of a tap that costs the logits of all tokens: it is on where these are wanted anyway.
        """
        self._evaluator.tap, self._evaluator.switch = tap, switch
        self._cells.rereads = not (switch or self.model.has_recurrent_state)
        hidden = self._cells.hidden = HiddenRows(width, self.settings.n_seq, kept)
        return hidden

    def adapt(self, scales: Scales) -> None:
        """Evaluates with the adapters in these scales from now on; what is held stays as it was read."""
        if scales != self.adapters:
            n = len(self.model.adapters)
            assert len(scales) == n
            pointers, factors = (
                (C.llama_adapter_lora_p_ctypes * n)(*(loaded for _, loaded in self.model.adapters)),
                (ctypes.c_float * n)(*scales),
            )
            C.llama_set_adapters_lora(self.handle, pointers, n, factors)
            self.adapters = scales

    def missing(self, want: Want) -> int:
        """Returns how many tokens `score` would evaluate for this, with the cache as it is."""
        n = want.tokens.size + len(want.tail)
        return n - self._cells.reached(want.seq, self._cells.staying(want))

    def score(self, wants: Sequence[Want]) -> list[Rows]:
        """Makes each sequence hold its tokens + tail; returns the last `rows` logits rows of each.

        Rows are float32 (rows, n_vocab), views into llama.cpp's buffer, valid until the next call.
        Raises SettingError for what llama.cpp would abort on and EngineError for its failures; the record
        of what is held stays true in either case.
        """
        self._check(wants)
        try:
            return self._scored(wants)
        except EdgeSpecError:
            raise
        except BaseException:  # Ctrl+C anywhere in it: what the cache holds is unknown
            for want in wants:
                self.clear(want.seq)
            raise

    def _scored(self, wants: Sequence[Want]) -> list[Rows]:
        if len(wants) > 1 and not self.batches:  # unequal lengths in one batch would split it
            return [self.score([want])[0].copy() for want in wants]
        if any(want.filling for want in wants):
            return self._filled(wants)
        parts = [(want.seq, self._sync(want), want.rows) for want in wants]
        if not all(
            [tokens for _, tokens, _ in parts]
        ):  # a chunk that ends with a medium: nobody needs its row
            parts = [part for part in parts if part[1]]
            found = iter(self._evaluator.decode(parts) if parts else ())
            reading = {part[0] for part in parts}
            return [next(found) if want.seq in reading else NO_ROWS for want in wants]
        if sum([len(tokens) for _, tokens, _ in parts]) > 4 * self._evaluator.chunk:
            parts = self._ends_of(parts)
        return self._evaluator.decode(parts)

    def _filled(self, wants: Sequence[Want]) -> list[Rows]:
        """Evaluates further tokens behind some, which the next call removes like rejected guesses.

        None where the context ends before them.
        """
        longer = []
        for want in wants:
            end = want.tokens.size + len(want.tail) + want.filling
            tail = want.tail + (int(want.tokens[-1]),) * (want.filling if end <= self.n_ctx else 0)
            longer.append(want._replace(tail=tail, rows=want.rows + len(tail) - len(want.tail), filling=0))
        return [rows[: want.rows] for want, rows in zip(wants, self._scored(longer), strict=True)]

    def _ends_of(self, parts: Sequence[Part]) -> list[Part]:
        """Evaluates all but what fits the last, common evaluation; returns what is left."""
        share = (self._evaluator.chunk - sum(rows for _, _, rows in parts)) // len(parts)
        left = []
        for s, tokens, rows in parts:
            n_unread = max(0, len(tokens) // 4 - rows - share)
            self._decode_unread(s, tokens[: 4 * n_unread])
            left.append((s, tokens[4 * n_unread :], rows))
        return left

    def _check(self, wants: Sequence[Want]) -> None:
        if not self.handle:
            raise SettingError("this context has been closed: make a new one")
        rows, settings = 0, self.settings
        for want in wants:
            n = want.tokens.size + len(want.tail)
            if not (0 <= want.seq < settings.n_seq and 0 < n <= self.n_ctx and 0 < want.rows <= n):
                whole("the sequence", want.seq, 0, settings.n_seq - 1)
                whole("the number of tokens", n, 1, self.n_ctx)
                whole("the number of rows", want.rows, 1, n)
            rows += want.rows + want.filling
        if not 0 < rows <= settings.n_rows:
            whole("the number of rows", rows, 1, settings.n_rows)
        if len(wants) > 1 and len({want.seq for want in wants}) != len(wants):
            raise SettingError("a sequence was asked for twice in one evaluation")

    def _sync(self, want: Want) -> bytes:
        """Rewinds the sequence to what it shares with `want`; returns the tokens still to be decoded."""
        seq = self._cells.sequences[want.seq]
        keep = self._cells.staying(want)
        missing = bytes_of(want, keep)
        fresh = memoryview(missing).cast("i")
        if media := min(fresh) < 0:
            wrong = check_known(self.media, np.frombuffer(missing, np.int32))
        if max(fresh) >= self.model.n_vocab or media and wrong is not None:
            wrong = max(fresh) if max(fresh) >= self.model.n_vocab else wrong
            raise SettingError(f"token {wrong} does not exist: the model has {self.model.n_vocab:,} tokens")
        if 4 * keep < len(seq.tokens):
            self._cells.rewind(want.seq, keep)
        if media or seq.held < keep:  # it went back further
            self._read_media(want)
        if self.checkpoints:
            self._read_to_border(want)
        if self.model.has_recurrent_state and len(want.tail) > self._evaluator.n_rs_seq:
            settled = min(want.tokens.size, want.tokens.size + len(want.tail) - want.rows)
            if seq.held <= settled:
                self._decode_unread(want.seq, bytes_of(want, seq.held)[: 4 * (settled - seq.held)])
                self._cells.save_checkpoint(want.seq)
        if self.model.architecture in FIRST_ROWS:  # all that is evaluated together is asked for
            self._decode_unread(want.seq, bytes_of(want, seq.held)[: -4 * want.rows])
        return missing if seq.held == keep else bytes_of(want, seq.held)

    def _read_to_border(self, want: Want) -> None:
        """Evaluates what a sequence lacks of its want up to the last place where a checkpoint is due."""
        assert self.checkpoints
        held = at = self._cells.sequences[want.seq].held
        settled = min(want.tokens.size, want.tokens.size + len(want.tail) - want.rows)
        while (ahead := self.checkpoints.ahead(want.seq, at)) <= settled - at:
            at += ahead
        self._decode_unread(want.seq, bytes_of(want, held)[: 4 * (at - held)])

    def _read_media(self, want: Want) -> None:
        """Evaluates what a sequence lacks of its want up to the last medium: none is read with others."""
        tokens = np.frombuffer(bytes_of(want, self._cells.sequences[want.seq].held), np.int32)
        for first, end in runs(tokens[: end_of_media(tokens)]):
            if tokens.item(first) < 0:
                self._evaluator.decode_medium(want.seq, medium_at(self.media, tokens[first:end]))
            else:
                self._decode_unread(want.seq, tokens[first:end].tobytes())

    def _decode_unread(self, s: int, tokens: bytes) -> None:
        """Evaluates, in pieces, tokens that need no logits; makes the checkpoints that are due."""
        while tokens:
            size = self._evaluator.chunk
            if self.checkpoints:
                self.checkpoints.take(s, self._cells.sequences[s].held)
                size = min(size, self.checkpoints.ahead(s, self._cells.sequences[s].held))
            self._evaluator.decode([(s, tokens[: 4 * size], 0)])
            tokens = tokens[4 * size :]
        if self.checkpoints:
            self.checkpoints.take(s, self._cells.sequences[s].held)
