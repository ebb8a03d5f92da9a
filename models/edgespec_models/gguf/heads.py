"""Heads in GGUF files, which guess from a target's hidden states: MTP blocks, EAGLE-3, DFlash, Medusa.

MTP blocks come after the layers of the model itself (`nextn_predict_layers`), or alone in a file next to it;
the others have files and architectures of their own. `head_check.py` says whether one can run for a target.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from edgespec_models.gguf.header import Header

HeadKind = Literal["mtp", "assistant", "eagle3", "dflash", "medusa"]
NAMES: dict[HeadKind, str] = {
    "mtp": "MTP head",
    "assistant": "assistant head",
    "eagle3": "EAGLE-3 head",
    "dflash": "DFlash head",
    "medusa": "Medusa head",
}
ASSISTANT = "gemma4-assistant"  # its architecture


@dataclass(frozen=True, slots=True)
class Head:
    """A head, as headers describe it."""

    kind: HeadKind
    n_blocks: int  # MTP blocks, or layers of a head in a file of its own
    alone: bool  # in a file without the target
    layers: tuple[int, ...] = ()  # of the target, whose inputs it reads
    block: int = 0  # tokens that a DFlash head reads at once, the last settled one included
    longest: int = 0  # guesses that it makes at most; 0: any number
    mask: int = 0  # the mask token of a guess
    causal: bool = False  # whether positions of a block see only those before them
    follows: bool = False  # a DFlash head that knows which token follows which: DSpark
    candidates: int = 0  # of each position, which a DFlash2 head weighs by the guess before

    @property
    def name(self) -> str:
        """Says what it is."""
        return NAMES[self.kind]

    @property
    def a_name(self) -> str:
        """Says it with the English article."""
        return with_article(self.kind)

    @property
    def variant(self) -> str:
        """Returns the name of it in llama.cpp's own programs."""
        return "dspark" if self.follows else "mtp" if self.kind == "assistant" else self.kind


def with_article(kind: HeadKind) -> str:
    """Names a kind of head with its article: "an MTP head", "a DFlash head"."""
    return f"{'a' if kind in ('dflash', 'medusa') else 'an'} {NAMES[kind]}"


def head_of(headers: Sequence[Header]) -> Head | None:
    """Returns the head in a file, from all its parts' headers; None if there is none."""
    first = headers[0]
    if first.architecture == "eagle3":
        n = first.of_architecture("block_count") or 0
        return Head("eagle3", n, alone=True, layers=_layers_read(first))
    if first.architecture == "dflash":
        return _dflash(first)
    if first.architecture == "medusa":
        n = number(first, "head_count")
        return Head("medusa", n, alone=True, longest=n)
    if first.architecture == ASSISTANT:
        return Head("assistant", first.of_architecture("block_count") or 0, alone=True)
    blocks = first.of_architecture("nextn_predict_layers") or 0
    n_layers = first.of_architecture("block_count") or 0
    names = {tensor.name for header in headers for tensor in header.tensors}
    if not 0 < blocks <= n_layers or f"blk.{n_layers - blocks}.nextn.eh_proj.weight" not in names:
        return None
    longest = blocks if blocks > 1 else 0  # one block continues from its own output, several take turns
    return Head("mtp", blocks, alone="blk.0.attn_norm.weight" not in names, longest=longest)


def windows(header: Header) -> list[bool]:
    """Returns for each layer whether it sees a window of the last tokens."""
    found = header.metadata.get(f"{header.architecture}.attention.sliding_window_pattern")
    return [] if found is None or isinstance(found, bool | int | float | str) else [bool(of) for of in found]


def heads_in_cache(header: Header) -> list[int]:
    """Returns for each layer how many heads have keys and values in the cache."""
    found = header.metadata.get(f"{header.architecture}.attention.head_count_kv")
    if isinstance(found, array):
        return [int(n) for n in found]
    one = found if isinstance(found, int) else number(header, "attention.head_count")
    interval = number(header, "full_attention_interval") or 1
    return [one if (i + 1) % interval == 0 else 0 for i in range(number(header, "block_count"))]


def _dflash(header: Header) -> Head:
    """Returns a DFlash head; a DSpark head, which knows which token follows which, makes one guess more."""
    block = header.of_architecture("block_size", 16) or 16
    follows = any(tensor.name == "markov_w1.weight" for tensor in header.tensors)
    at_last = follows and header.flag("dflash.sample_from_anchor") is not False
    return Head(
        "dflash",
        header.of_architecture("block_count") or 0,
        alone=True,
        layers=_layers_read(header),
        block=block,
        longest=block if at_last else block - 1,
        mask=header.number("tokenizer.ggml.mask_token_id", -1) or 0,
        causal=header.flag("dflash.attention.causal") is True,
        follows=follows,
        candidates=number(header, "selector_top_k") if weighs(header) else 0,
    )


def weighs(header: Header) -> bool:
    return any(tensor.name == "selector_hidden.weight" for tensor in header.tensors)


def number(header: Header, key: str) -> int:
    return header.of_architecture(key) or 0


def _layers_read(head: Header) -> tuple[int, ...]:
    """Returns the layers of its target that a head reads; none if the file does not say."""
    found = head.metadata.get(f"{head.architecture}.target_layers")
    if found is None or isinstance(found, bool | int | float | str | list):
        return ()
    return tuple(int(layer) for layer in found)
