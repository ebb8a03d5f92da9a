"""A draft with another vocabulary: a context whose text is given in the target's tokens.

Each token of the target is read as the draft's token of the same bytes or, if it has none, as the draft's
own pieces of those bytes. Guesses after the text (`Want.tail`) are in the draft's own tokens, and so
are the rows of logits: `sampling/translated_sampler.py` says what they mean for the target.

Reading is token by token, so that a text's beginning always has the same tokens in the draft's cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from edgespec.core.loop import Rows, Want
from edgespec.llama.context import Context
from edgespec.llama.saved import Saved
from edgespec.sampling.translated_sampler import SharedTokens
from edgespec.system.closing import Closing
from edgespec_models.gguf.translation import Translation

_NOTHING = np.empty(0, np.int32)


class TranslatedContext(Closing):
    """The context of a draft, seen in the target's vocabulary. Closing it closes the draft's."""

    parts = None  # it is saved as a whole
    checkpoints = None  # it begins behind what it cannot go back to

    def __init__(self, context: Context, translation: Translation, n_vocab: int) -> None:
        """n_vocab: of the target, padding included."""
        self.own, self.n_vocab = context, n_vocab
        self.model, self.settings, self.n_ctx = context.model, context.settings, context.n_ctx
        self.first_s, self.batches, self.fills = context.first_s, context.batches, context.fills
        self.keep_cells, self.give_back_cells = context.keep_cells, context.give_back_cells
        self.shared = SharedTokens(
            translation.to_draft, translation.to_target, n_target=n_vocab, n_draft=context.model.n_vocab
        )
        self._pieces = _Pieces(translation)
        self._start = np.array([max(context.model.vocabulary.bos, 0)], np.int32)
        self._held: list[NDArray[np.int32]] = [_NOTHING] * context.settings.n_seq

    def close(self) -> None:
        """Frees the cache."""
        self.own.close()

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

    def held(self, seq: int = 0) -> NDArray[np.int32]:
        """Returns the text that a sequence has read, without guesses: the target's tokens."""
        return self._held[seq]

    def spelt(self, token: int) -> Sequence[int]:
        """Returns the draft's tokens for one of the target's."""
        return self._pieces.one(token)

    # ---- reading -----------------------------------------------------------------------------------------

    def missing(self, want: Want) -> int:
        """Returns how many tokens of the draft `score` would evaluate for this."""
        return self.own.missing(self._translated(want)[0])

    def score(self, wants: Sequence[Want]) -> list[Rows]:
        """Returns for each want float32 (rows, n_draft), the draft's own; raises as a Context does.

        The tails of the wants are in the draft's tokens. Rows are valid until the next call.
        """
        asked = [self._translated(want) for want in wants]
        for want in wants:
            self._held[want.seq] = _NOTHING  # useless if it fails
        answers = self.own.score([own for own, _ in asked])
        for want, (_, whole) in zip(wants, asked, strict=True):
            if whole:
                self._held[want.seq] = want.tokens.copy()
        return answers

    def _translated(self, want: Want) -> tuple[Want, bool]:
        """Returns a want in the draft's tokens, and whether it is whole.

        A draft may need more tokens than the target: if there are too many, the oldest are left out.
        It reads its start token in place of no text, as of a prompt of control tokens that it does not have.
        """
        tokens = self._pieces.text(want.tokens)
        tokens = tokens if tokens.size else self._start
        n_ctx, n = self.n_ctx, tokens.size + len(want.tail)
        if n > n_ctx:
            step = max(1, n_ctx // 4)
            tokens = tokens[-(-(n - n_ctx) // step) * step :]
        return Want(tokens, want.tail, want.rows, want.seq), n <= n_ctx

    # ---- keeping and forgetting --------------------------------------------------------------------------

    def clear(self, s: int = 0) -> None:
        """Forgets what a sequence holds."""
        self.own.clear(s)
        self._held[s] = _NOTHING

    def cut(self, s: int, n: int) -> None:
        """Forgets what a sequence holds after its first n tokens."""
        kept = self._held[s][:n]
        self.own.cut(s, self._pieces.count(kept))
        self._held[s] = kept

    def save(self, s: int) -> Saved:
        """Returns a copy of what a sequence holds, by the target's tokens."""
        held = self._held[s]
        if not held.size:  # the beginning of a text that was read from later on is unknown
            self.own.clear(s)
        saved = self.own.save(s)
        least = held.size if saved.least else 0
        return replace(saved, tokens=held.tobytes(), written=saved.tokens, least=least)

    def restore(self, s: int, saved: Saved) -> bool:
        """Makes a sequence hold what was saved; False (and nothing is held) if cells have run out."""
        done = self.own.restore(s, replace(saved, tokens=saved.written, least=0))
        self._held[s] = np.frombuffer(saved.tokens, np.int32) if done else _NOTHING
        return done

    def share(self, source: int, s: int, n: int) -> bool:
        """Makes a sequence hold the first n tokens of another, in the same cells; False if it cannot."""
        shared = self._held[source][:n]
        if shared.size < n:
            return False
        done = self.own.share(source, s, self._pieces.count(shared))
        if done:
            self._held[s] = shared
        return done


class _Pieces:
    """The draft's tokens for each token of the target."""

    def __init__(self, translation: Translation) -> None:
        self._translation, self._one = translation, translation.to_draft
        self._several: dict[int, NDArray[np.int32]] = {}
        self._text = self._of_text = np.empty(0, np.int32)  # the last one: guesses are made on one text

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
