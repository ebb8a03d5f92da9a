"""The context of a head: its settings, and the rows of its target that are kept for it.

Loading a head and asking llama.cpp beforehand whether it fits use the same settings.
"""

from dataclasses import replace
from typing import Any

import llama_cpp as C

from edgespec.llama.attention import with_attention
from edgespec.llama.model import Model
from edgespec.llama.settings import ContextSettings, new_context
from edgespec.pairs.settings import FLOATS
from edgespec_models.gguf.heads import Head, HeadKind

EAGLE_CHUNK = 64  # tokens that an EAGLE-3 head reads at once: llama.cpp computes logits of each
OF_NEXTN: tuple[HeadKind, ...] = (
    "mtp",
    "assistant",
)  # MTP blocks in llama.cpp, in the target's file or another


def head_settings(settings: ContextSettings, head: Head) -> ContextSettings:
    """Returns the settings of a head's context, given those of a draft model's."""
    if head.kind == "eagle3":
        return replace(settings, chunk=EAGLE_CHUNK, n_rows=EAGLE_CHUNK)
    if head.kind != "dflash":
        return settings
    chunk = max(settings.chunk, head.block)
    cells = (settings.cells or settings.n_ctx * settings.n_seq) + head.block
    n_ctx = -(-cells // settings.n_seq)
    return replace(settings, n_rows=max(head.block, settings.n_seq), chunk=chunk, cells=None, n_ctx=n_ctx)


def as_target(model: Model, settings: ContextSettings, target: ContextSettings) -> ContextSettings:
    """Returns the settings of a head's context with its target's attention, since some share its cache.

    target: the settings that its context was made with.
    """
    if target.flash_attention is None:
        return settings
    flash = target.flash_attention if settings.kv_type in FLOATS else True
    return with_attention(model, replace(settings, flash_attention=flash))


def new_head_context(model: Model, settings: ContextSettings, head: Head, target: Any) -> Any:
    """Returns a llama_context of a head, whose settings are ready. target: the target's context.

    Raises SettingError or ModelUnsupportedError where llama.cpp would abort.
    """
    other = None if head.kind == "mtp" else target
    return new_context(model, settings, mtp=head.kind in OF_NEXTN, other=other)


def row_width(target: Model, head: Head) -> int:
    """Returns how many floats of the target are kept of each token."""
    if head.kind in OF_NEXTN:
        return int(C.llama_model_n_embd_out(target.handle))
    return int(C.llama_model_n_embd(target.handle)) * max(1, len(head.layers))
