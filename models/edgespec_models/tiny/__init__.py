"""Locate the embedded models that come with EdgeSpec: a target, a draft, a projector, and an MTP block.

Target and draft are llama-architecture GGUF files with one vocabulary and one chat template; the third file
is the same target, as llama.cpp's `mimo2`, with a block that guesses. `edgespec_train/recipes/` makes them.
`MODEL_CARD.md` next to them says what they are for and what was measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def target_path() -> Path:
    """Return the target's GGUF file."""
    return _shipped("target.gguf")


def draft_path() -> Path:
    """Return the draft's GGUF file."""
    return _shipped("draft.gguf")


def mtp_path() -> Path:
    """Return the GGUF file of the target with an MTP block, which can speculate by itself."""
    return _shipped("target-mtp.gguf")


def projector_path() -> Path:
    """Return the GGUF file with which the target, with or without a block, sees shapes and their colours."""
    return _shipped("mmproj.gguf")


def held_out_prompts_path() -> Path:
    """Return the prompts that neither was trained on; a line is JSON: `kind`, `prompt`, often `messages`."""
    return _shipped("held_out_prompts.jsonl")


def reference_path() -> Path:
    """Return the file of `reference_logits`."""
    return _shipped("reference_logits.npz")


@dataclass(frozen=True, slots=True)
class ReferenceLogits:
    """The embedded pair's logits after each token of a text, evaluated with its weights as F32."""

    tokens: NDArray[np.int32]  # (n,)
    columns: NDArray[np.int32]  # which token ids the rows have: (c,)
    rows: dict[str, NDArray[np.float32]]  # by "target" and "draft": (n, c)


def reference_logits() -> ReferenceLogits:
    """Return the logits that every build of llama.cpp must come close to."""
    import numpy as np

    with np.load(reference_path(), allow_pickle=False) as kept:
        rows = {name: kept[name] for name in ("target", "draft")}
        return ReferenceLogits(kept["tokens"], kept["columns"], rows)


def _shipped(name: str) -> Path:
    return Path(str(files(__package__).joinpath(name)))
