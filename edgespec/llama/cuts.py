"""Where a long text may be cut, so that its pieces have together the tokens of the whole.

llama.cpp takes a time that grows with the square of the special tokens in a text: 97 seconds for 250,000 of
them. In pieces it grows with their number, and between two pieces one can stop.

It first finds the special tokens in a text, the longest first, and then tokenises what is between them piece
by piece. So the tokens before and after a special token do not depend on each other, and a text may be cut in
front of one that is certain to be found: one that no other overlaps that is as long or longer.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Iterator

import llama_cpp as C

from edgespec.llama.model import Model

PIECE = 4096  # bytes of a piece at least
TRIES = 64  # places that are looked at in each so many bytes: a text of newlines has millions
HEAD = 2  # bytes by which special tokens are found
CONTROL = C.LLAMA_TOKEN_ATTR_CONTROL | C.LLAMA_TOKEN_ATTR_UNKNOWN
SPECIAL = CONTROL | C.LLAMA_TOKEN_ATTR_USER_DEFINED
STRIPS = C.LLAMA_TOKEN_ATTR_LSTRIP | C.LLAMA_TOKEN_ATTR_RSTRIP


class Cuts:
    """Cuts texts for one vocabulary."""

    def __init__(
        self, texts: Collection[bytes], *, fixed: Collection[bytes] = (), piece: int = PIECE
    ) -> None:
        """texts: of special tokens. fixed: nothing may be cut in front of these. piece: bytes at least."""
        self._piece = piece
        self._texts, self._fixed = frozenset(texts) - {b""}, frozenset(fixed)
        lengths: defaultdict[bytes, set[int]] = defaultdict(set)
        for text in self._texts:
            lengths[text[:HEAD]].add(len(text))
        self._lengths = {head: sorted(found, reverse=True) for head, found in lengths.items()}
        self._longest = max(map(len, self._texts), default=0)
        heads = sorted(self._lengths, key=len, reverse=True)
        self._head = re.compile(b"|".join(map(re.escape, heads))) if heads else None

    def pieces(self, text: bytes) -> Iterator[bytes]:
        """Yields the text piece by piece."""
        begin = 0
        while (cut := self._next(text, begin + self._piece)) is not None:
            yield text[begin:cut]
            begin = cut
        yield text[begin:]

    def may_cut(self, text: bytes, at: int) -> bool:
        """Returns whether the tokens before and behind a place do not depend on each other."""
        found = self._at(text, at)
        return bool(found) and found not in self._fixed and self._is_certain(text, at, len(found))

    def _next(self, text: bytes, begin: int) -> int | None:
        """Returns the first place to cut that is found; None if there is none."""
        if self._head is None:
            return None
        for at in range(begin, len(text), self._piece):
            tried = 0
            for match in self._head.finditer(text, at, at + self._piece):
                found = self._at(text, match.start())
                if not found:
                    continue
                if self.may_cut(text, match.start()):
                    return match.start()
                tried += 1
                if tried == TRIES:
                    break
        return None

    def _at(self, text: bytes, at: int) -> bytes:
        """Returns the longest special token that begins at a place; b"" if none does."""
        for n in range(HEAD, 0, -1):
            for length in self._lengths.get(text[at : at + n], ()):
                if (found := text[at : at + length]) in self._texts:
                    return found
        return b""

    def _is_certain(self, text: bytes, at: int, length: int) -> bool:
        """Returns whether no other special token of that length or more overlaps the one at a place."""
        for begin in range(max(0, at - self._longest + 1), at + length):
            other = len(self._at(text, begin))
            if begin != at and other >= length and begin + other > at:
                return False
        return True


def cuts_of(model: Model, *, special: bool, piece: int = PIECE) -> Cuts:
    """Returns where texts for a model may be cut. special: control tokens in them count as such."""
    vocab = C.llama_model_get_vocab(model.handle)
    texts: list[bytes] = []
    fixed: list[bytes] = []
    strips = False
    for token in range(model.n_vocab):
        attributes = C.llama_vocab_get_attr(vocab, token)
        if attributes & SPECIAL and (special or not attributes & CONTROL):
            texts.append(C.llama_vocab_get_text(vocab, token))
            strips = strips or bool(attributes & STRIPS)
            if attributes & C.LLAMA_TOKEN_ATTR_LSTRIP:
                fixed.append(texts[-1])
    if strips:  # a token that takes the space beside it may take another one that is space itself
        fixed += [text for text in texts if text != text.strip()]
    return Cuts(texts, fixed=fixed, piece=piece)
