"""A draft with another vocabulary: a context that is asked, and answers, in the target's tokens.

Each token of the target is read as the draft's token of the same bytes, or, where it has none, as the draft's
own pieces of those bytes; rows of logits come back in the order of the target's vocabulary, minus infinity
where the draft has no such token. So softmax renormalises over what both have (token-level intersection,
arXiv 2502.05202), and drafting, penalties, grammars and seeds see one vocabulary.

Reading is token by token, so that a text's beginning always has the same tokens in the draft's cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgespec.core.loop import Rows, Want
from edgespec.llama.context import Context
from edgespec.llama.model import Model
from edgespec.llama.saved import Saved
from edgespec.llama.settings import ContextSettings
from edgespec_models.gguf.row_order import RowOrder
from edgespec_models.gguf.translation import Translation


class TranslatedContext:
    """The context of a draft, seen in the target's vocabulary. Closing it closes the draft's."""

    def __init__(self, context: Context, translation: Translation, n_vocab: int) -> None:
        """n_vocab: of the target's rows, padding included."""
        self.own, self.n_vocab = context, n_vocab
        known = np.full(n_vocab, -1, np.int32)
        known[: translation.to_draft.size] = translation.to_draft
        known[known >= context.model.n_vocab] = -1
        self._order = RowOrder(known)
        self._rows = self._order.rows(context.settings.n_rows)
        self._pieces = _Pieces(translation)
        self._held: list[NDArray[np.int32]] = [np.empty(0, np.int32)] * context.settings.n_seq

    def __enter__(self) -> TranslatedContext:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Frees the cache."""
        self.own.close()

    @property
    def model(self) -> Model:
        return self.own.model

    @property
    def settings(self) -> ContextSettings:
        return self.own.settings

    @property
    def n_ctx(self) -> int:
        return self.own.n_ctx

    @property
    def handle(self) -> Any:
        return self.own.handle

    @property
    def seconds(self) -> float:
        return self.own.seconds

    @property
    def calls(self) -> int:
        return self.own.calls

    @property
    def evaluated(self) -> int:
        return self.own.evaluated

    @property
    def tried(self) -> float:
        return self.own.tried

    @property
    def first_s(self) -> float:
        return self.own.first_s

    @property
    def batches(self) -> bool:
        return self.own.batches

    def held(self, seq: int = 0) -> NDArray[np.int32]:
        """Returns the tokens that a sequence has read: the target's."""
        return self._held[seq]

    # ---- reading -----------------------------------------------------------------------------------------

    def missing(self, want: Want) -> int:
        """Returns how many tokens of the draft `score` would evaluate for this."""
        return self.own.missing(self._translated(want)[0])

    def score(self, wants: Sequence[Want]) -> list[Rows]:
        """Returns for each want float32 (rows, n_vocab) in the target's vocabulary; raises as a Context does.

        The rows are valid until the next call.
        """
        asked = [self._translated(want) for want in wants]
        for want in wants:
            self._held[want.seq] = np.empty(0, np.int32)  # of no use where it fails
        answers = self.own.score([own for own, _, _ in asked])
        out, at = [], 0
        for want, (_, ends, whole), rows in zip(wants, asked, answers, strict=True):
            room = self._rows[at : at + want.rows]
            for into, end in zip(room, ends, strict=True):
                self._order.put(rows[end], into)
            out.append(room)
            at += want.rows
            if whole:
                self._held[want.seq] = _with_tail(want) if want.tail else want.tokens.copy()
        return out

    def _translated(self, want: Want) -> tuple[Want, list[int], bool]:
        """Returns a want in the draft's tokens, which rows stand behind the target's, and if it is whole.

        A draft may write with more tokens than the target: where they are too many its oldest are left out.
        """
        tokens, tail, ends = self._pieces.text(want.tokens), list[int](), [0]
        for token in want.tail:
            tail += self._pieces.one(token)
        if want.rows > 1:
            for token in _with_tail(want)[-want.rows + 1 :].tolist():  # behind the first of them
                ends.append(ends[-1] + len(self._pieces.one(token)))
        n_ctx, n = self.n_ctx, tokens.size + len(tail)
        if n > n_ctx:
            step = max(1, n_ctx // 4)
            tokens = tokens[-(-(n - n_ctx) // step) * step :]
        return Want(tokens, tuple(tail), ends[-1] + 1, want.seq), ends, n <= n_ctx

    # ---- keeping and forgetting --------------------------------------------------------------------------

    def clear(self, s: int = 0) -> None:
        """Forgets what a sequence holds."""
        self.own.clear(s)
        self._held[s] = np.empty(0, np.int32)

    def cut(self, s: int, n: int) -> None:
        """Forgets what a sequence holds behind its first n tokens."""
        kept = self._held[s][:n]
        self.own.cut(s, self._pieces.count(kept))
        self._held[s] = kept

    def save(self, s: int) -> Saved:
        """Returns a copy of what a sequence holds, by the target's tokens."""
        held = self._held[s]
        if not held.size:  # of a text that was read from later on nothing is known by the target's tokens
            self.own.clear(s)
        saved = self.own.save(s)
        return replace(saved, tokens=held.tobytes(), least=held.size if saved.least else 0)

    def restore(self, s: int, saved: Saved) -> bool:
        """Makes a sequence hold what was saved; False (and nothing is held) where cells have run out."""
        held = np.frombuffer(saved.tokens, np.int32)
        tokens = self._pieces.of(held)
        done = self.own.restore(s, replace(saved, tokens=tokens.tobytes(), least=saved.least and tokens.size))
        self._held[s] = held if done else np.empty(0, np.int32)
        return done

    def share(self, source: int, s: int, n: int) -> bool:
        """Makes a sequence hold the first n tokens of another, in the same cells; False where it cannot."""
        shared = self._held[source][:n]
        if shared.size < n:
            return False
        done = self.own.share(source, s, self._pieces.count(shared))
        if done:
            self._held[s] = shared
        return done

    def keep_cells(self, on: bool) -> None:
        """What is removed from now on leaves its cells reserved, as in `Context.keep_cells`."""
        self.own.keep_cells(on)

    def give_back_cells(self) -> bool:
        """Gives reserved cells back; False where there are none."""
        return self.own.give_back_cells()


def _with_tail(want: Want) -> NDArray[np.int32]:
    """Returns all tokens of a want."""
    return np.concatenate((want.tokens, np.array(want.tail, np.int32))) if want.tail else want.tokens


class _Pieces:
    """The draft's tokens for each token of the target."""

    def __init__(self, translation: Translation) -> None:
        self._translation, self._one = translation, translation.to_draft
        self._several: dict[int, NDArray[np.int32]] = {}
        self._text = self._of_text = np.empty(0, np.int32)  # last asked for: guesses are made on one text

    def text(self, tokens: NDArray[np.int32]) -> NDArray[np.int32]:
        """Returns the draft's tokens of a text that will not change: (m,) int32."""
        if tokens is not self._text:
            self._text, self._of_text = tokens, self.of(tokens)
        return self._of_text

    def of(self, tokens: NDArray[np.int32]) -> NDArray[np.int32]:
        """Returns the draft's tokens of a text: (m,) int32."""
        ones = self._ones(tokens)
        parts: list[NDArray[np.int32]] = []
        done = 0
        for at in np.flatnonzero(ones < 0).tolist():
            parts += [ones[done:at], self._spelt(int(tokens[at]))]
            done = at + 1
        return np.concatenate([*parts, ones[done:]]) if parts else ones

    def count(self, tokens: NDArray[np.int32]) -> int:
        """Returns how many tokens of the draft a text has."""
        ones = self._ones(tokens)
        return int((ones >= 0).sum()) + sum(self._spelt(int(token)).size for token in tokens[ones < 0])

    def one(self, token: int) -> list[int]:
        """Returns the draft's tokens for one of the target's."""
        found = self._one.item(token) if token < self._one.size else -1
        return [found] if found >= 0 else self._spelt(token).tolist()

    def _ones(self, tokens: NDArray[np.int32]) -> NDArray[np.int32]:
        """Returns the one token for each, or -1; ids of the target's padding have none."""
        found = np.take(self._one, tokens, mode="clip")
        return np.where(tokens < self._one.size, found, np.int32(-1))

    def _spelt(self, token: int) -> NDArray[np.int32]:
        """Returns the draft's tokens for a token that it does not have."""
        if token not in self._several:
            self._several[token] = np.array(self._translation.pieces(token), np.int32)
        return self._several[token]
