"""Two vocabularies as one: which token of the draft is which of the target, by the bytes it stands for.

Token-level intersection (Timor et al. 2025, arXiv 2502.05202): a draft with another vocabulary guesses for a
target with the tokens that both have, its distribution renormalised over them. Text is matched by its bytes,
control tokens by their name, and those that start or end a text by their role.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from edgespec_models.gguf.header import Header
from edgespec_models.gguf.vocabulary import NO_TOKEN, Vocabulary, vocabulary_of

if TYPE_CHECKING:  # the web process checks pairs, and is spared numpy's start
    import numpy as np
    from numpy.typing import NDArray

TYPES = "tokenizer.ggml.token_type"
_NORMAL, _UNKNOWN, _CONTROL, _USER, _UNUSED, _BYTE = range(1, 7)  # llama_token_type
_BYTE_TOKEN = re.compile(rb"<0x([0-9A-F]{2})>")
_LONGEST = 64  # bytes of a token that a reading of text looks for


def _byte_letters() -> dict[str, int]:
    """Returns the letters by which GPT-2's vocabularies write bytes (openai/gpt-2, encoder.py)."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    letters = {chr(byte): byte for byte in plain}
    others = (byte for byte in range(256) if byte not in plain)
    return letters | {chr(256 + n): byte for n, byte in enumerate(others)}


_LETTERS = _byte_letters()


@dataclass(frozen=True, slots=True)
class Spelling:
    """A vocabulary as bytes."""

    texts: tuple[bytes, ...]  # each token's bytes; b"" for control tokens and unused ones
    names: tuple[bytes, ...]  # of control tokens, and of those that stand for one byte; b"" for the others
    bos: int
    eos: int


def spelling_of(header: Header) -> Spelling:
    """Returns each token's bytes, as llama.cpp writes them. Raises HeaderError without a vocabulary."""
    vocabulary = vocabulary_of(header)
    types = header.metadata.get(TYPES)
    kinds = [_NORMAL] * len(vocabulary.texts)
    if isinstance(types, Sequence) and len(types) == len(kinds):
        kinds = [int(kind) for kind in types]
    texts, names = [], []
    for i, text in enumerate(vocabulary.texts):
        kind = kinds[i]
        text_like = kind in (_NORMAL, _USER, _BYTE)
        texts.append(_bytes_of(text, kind, vocabulary) if text_like else b"")
        names.append(text if kind in (_CONTROL, _BYTE) else b"")
    return Spelling(tuple(texts), tuple(names), vocabulary.bos, vocabulary.eos)


def _bytes_of(text: bytes, kind: int, vocabulary: Vocabulary) -> bytes:
    if kind == _USER:
        return text
    if vocabulary.kind == "BPE":
        try:
            return bytes(_LETTERS[letter] for letter in text.decode("utf-8"))
        except (KeyError, UnicodeDecodeError):  # written as it is
            return text
    if found := _BYTE_TOKEN.fullmatch(text):
        return bytes([int(found[1], 16)])
    return text.replace("\u2581".encode(), b" ")


@dataclass(frozen=True)
class Translation:
    """From a target's tokens to a draft's and back."""

    to_draft: NDArray[np.int32]  # (n_target,) the draft's token of the same bytes, or -1
    to_target: NDArray[np.int32]  # (n_draft,) the other way; each the inverse of the other
    texts: tuple[bytes, ...]  # the bytes of each of the target's tokens, control tokens their name
    words: Mapping[bytes, int]  # bytes of the draft's tokens -> the token
    reads_bos: int  # the draft's token for the target's start token; -1: it reads nothing there
    bos: int  # the target's start token, or -1

    @cached_property
    def unknown(self) -> NDArray[np.intp]:
        """The target's tokens that the draft does not have."""
        return (self.to_draft < 0).nonzero()[0]

    @property
    def shared(self) -> float:
        """Returns the share of the target's vocabulary that the draft has."""
        return 1 - self.unknown.size / max(self.to_draft.size, 1)

    def pieces(self, token: int) -> list[int]:
        """Returns the draft's tokens for one of the target's that it does not have: of the same bytes.

        The longest first; a byte that the draft cannot write is left out.
        """
        if token == self.bos:
            return [self.reads_bos] if self.reads_bos != NO_TOKEN else []
        text, at, found = self.texts[token] if token < len(self.texts) else b"", 0, list[int]()
        while at < len(text):
            size = _longest(self.words, text, at)
            found += [self.words[text[at : at + size]]] if size else []
            at += size or 1
        return found

    def coverage(self, text: bytes) -> float:
        """Returns the share of a text's tokens that the draft has, taking the longest token at each position.

        That is not how a tokeniser splits, but near enough to tell a pair that fits from one that does not.
        """
        by_text = {written: token for token, written in enumerate(self.texts) if written}
        by_text |= {written: t for t, written in enumerate(self.texts) if written and self.to_draft[t] >= 0}
        known = n = at = 0
        while at < len(text):
            size = _longest(by_text, text, at) or 1
            token = by_text.get(text[at : at + size])
            known += token is not None and bool(self.to_draft[token] >= 0)
            n, at = n + 1, at + size
        return known / n if n else 0.0


def _longest(words: Mapping[bytes, int], text: bytes, at: int) -> int:
    """Returns the length in bytes of the longest word that starts there; 0 if there is none."""
    return next(
        (size for size in range(min(_LONGEST, len(text) - at), 0, -1) if text[at : at + size] in words), 0
    )


def _plain(spelling: Spelling) -> list[bytes]:
    """Returns the bytes of tokens without a name."""
    return [b"" if name else text for text, name in zip(spelling.texts, spelling.names, strict=True)]


def translation(target: Header, draft: Header) -> Translation:
    """Returns how a draft's tokens become a target's. Raises HeaderError without a vocabulary."""
    import numpy as np

    ours, theirs = spelling_of(target), spelling_of(draft)
    to_draft = np.full(len(ours.texts), -1, np.int32)
    to_target = np.full(len(theirs.texts), -1, np.int32)

    def pair(token: int, other: int) -> None:
        if to_draft[token] < 0 and to_target[other] < 0:
            to_draft[token], to_target[other] = other, token

    own_kind = [_plain(ours), _plain(theirs)]  # a letter and the byte that it is are two tokens in some
    for mine, others in (own_kind, (ours.names, theirs.names), (ours.texts, theirs.texts)):
        where = {text: other for other, text in reversed(list(enumerate(others))) if text}
        for token, text in enumerate(mine):
            if text and (other := where.get(text)) is not None:
                pair(token, other)
    if ours.eos != NO_TOKEN and theirs.eos != NO_TOKEN:
        pair(ours.eos, theirs.eos)
    known_bos = ours.bos != NO_TOKEN and to_draft[ours.bos] >= 0
    reads_bos = int(to_draft[ours.bos]) if known_bos else theirs.bos
    texts = tuple(text or name for text, name in zip(ours.texts, ours.names, strict=True))
    words = {text: other for other, text in reversed(list(enumerate(theirs.texts))) if text}
    return Translation(to_draft, to_target, texts, words, reads_bos, ours.bos)
