"""The vocabulary of a model, and what two of them share: may this draft guess for that target?

The rule is llama.cpp's (common/speculative.cpp): same tokeniser type, same automatic start and end
tokens, sizes within 128 of each other (padding), every shared token text equal from id 5 up. This is the
only such check in the program; it works on plain values, so it runs before anything is downloaded or loaded.

What a header leaves out, llama.cpp fills in (src/llama-vocab.cpp); `vocabulary_of` fills in the same.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from edgespec_models.gguf.header import Header, HeaderError

SIZE_MAY_DIFFER = 128
FIRST_COMPARED = 5
NO_TOKEN = -1
TOKENS = "tokenizer.ggml.tokens"


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The facts of a vocabulary that decide whether two models share tokens."""

    kind: str  # tokeniser type: "SPM", "BPE", ...
    texts: Sequence[bytes]  # text of each token id
    add_bos: bool
    bos: int
    add_eos: bool
    eos: int

    @property
    def fingerprint(self) -> str:
        """A short name for all that the pair check looks at: equal ones always match."""
        digest = hashlib.sha256(f"{self.kind} {self._added()} {len(self.texts)}".encode())
        for text in self.texts[FIRST_COMPARED:]:
            digest.update(len(text).to_bytes(4, "little") + text)
        return digest.hexdigest()[:12]

    def _added(self) -> tuple[int | None, int | None]:
        return self.bos if self.add_bos else None, self.eos if self.add_eos else None


@dataclass(frozen=True, slots=True)
class _Defaults:
    """What llama.cpp assumes if a header says nothing."""

    kind: str
    bos: int = NO_TOKEN
    eos: int = NO_TOKEN
    add_bos: bool = False
    add_eos: bool = False


_DEFAULTS = {
    "llama": _Defaults("SPM", bos=1, eos=2, add_bos=True),
    "bert": _Defaults("WPM", bos=101, add_bos=True),
    "gpt2": _Defaults("BPE", bos=11, eos=11),
    "hybriddna": _Defaults("BPE", bos=11, eos=11),
    "whitespace": _Defaults("BPE", bos=11, eos=11),
    "gemma4": _Defaults("BPE", add_bos=True),
    "t5": _Defaults("UGM", eos=1, add_eos=True),
    "rwkv": _Defaults("RWKV"),
    "plamo2": _Defaults("PLaMo-2", bos=1, eos=2),
}
# BPE pre-tokenisers that put a start token first unless the header says otherwise
_STARTED = frozenset(
    "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano tekken chameleon".split()
)
_ALWAYS_STARTED = {"gemma4", "granite-embed-multi-311m"}  # whatever the header says
_WITHOUT_BOS = {"chatglm-bpe", "glm4", "glm5"}


def why_no_vocabulary(header: Header) -> str | None:
    """Returns in plain words why the header has no usable vocabulary; None if it has one."""
    model = header.text("tokenizer.ggml.model")
    if model in ("", "none", "no_vocab") or not isinstance(header.metadata.get(TOKENS), list):
        return f"{header.name} has no vocabulary: text cannot be turned into tokens for it"
    if model not in _DEFAULTS:
        return f"{header.name} has the tokeniser {model!r}, which is not known here"
    return None


def vocabulary_of(header: Header) -> Vocabulary:
    """Returns the vocabulary as llama.cpp will see it. Raises HeaderError if there is none."""
    texts, reason = header.metadata.get(TOKENS), why_no_vocabulary(header)
    if reason or not isinstance(texts, list):
        raise HeaderError(reason)
    model, pre = header.text("tokenizer.ggml.model"), header.text("tokenizer.ggml.pre")
    assumed = _DEFAULTS[model]
    bpe = assumed.kind == "BPE"
    add_bos = header.flag("tokenizer.ggml.add_bos_token")
    if bpe and (model == "gemma4" or pre in _ALWAYS_STARTED):
        add_bos = True
    add_eos = header.flag("tokenizer.ggml.add_eos_token")
    bos = NO_TOKEN if bpe and pre in _WITHOUT_BOS else assumed.bos
    return Vocabulary(
        kind=assumed.kind,
        texts=[text or b"[EMPTY_%d]" % i for i, text in enumerate(texts)],
        add_bos=add_bos if add_bos is not None else assumed.add_bos or (bpe and pre in _STARTED),
        bos=_token(header, "bos", bos, len(texts)),
        add_eos=add_eos if add_eos is not None else assumed.add_eos,
        eos=_token(header, "eos", assumed.eos, len(texts)),
    )


def _token(header: Header, which: str, default: int, n_vocab: int) -> int:
    """Returns the id of a special token; ids that do not exist count as not given."""
    named = header.number(f"tokenizer.ggml.{which}_token_id", NO_TOKEN)
    for token in (named, default):
        if token is not None and 0 <= token < n_vocab:
            return token
    return NO_TOKEN


def mismatch(target: Vocabulary, draft: Vocabulary) -> str | None:
    """Returns in plain words why the draft cannot guess for the target; None if it can."""
    if target.kind != draft.kind:
        return f"the target's tokeniser is {target.kind} and the draft's is {draft.kind}"
    for name, ours, other in (
        ("start", (target.add_bos, target.bos), (draft.add_bos, draft.bos)),
        ("end", (target.add_eos, target.eos), (draft.add_eos, draft.eos)),
    ):
        if ours[0] != other[0] or (ours[0] and ours[1] != other[1]):
            return f"the {name} token is {_added(ours)} for the target and {_added(other)} for the draft"
    sizes = len(target.texts), len(draft.texts)
    if abs(sizes[0] - sizes[1]) > SIZE_MAY_DIFFER:
        return f"the target's vocabulary has {sizes[0]:,} tokens and the draft's {sizes[1]:,}"
    for i in range(FIRST_COMPARED, min(sizes)):
        if target.texts[i] != draft.texts[i]:
            ours_text, other_text = _shown(target.texts[i]), _shown(draft.texts[i])
            return f"token {i} is {ours_text} for the target and {other_text} for the draft"
    return None


def _added(special: tuple[bool, int]) -> str:
    return f"token {special[1]}" if special[0] else "none"


def _shown(text: bytes) -> str:
    return repr(text.decode("utf-8", "replace"))
