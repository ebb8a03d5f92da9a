"""Locate the embedded pair: a target and a draft that come with EdgeSpec.

Both are llama-architecture GGUF files with one vocabulary and one chat template, made by `models/recipes/`.
`MODEL_CARD.md` beside them says what they are for and what was measured.
"""

from importlib.resources import files
from pathlib import Path

TARGET = "target.gguf"
DRAFT = "draft.gguf"
HELD_OUT_PROMPTS = "held_out_prompts.jsonl"

FIM_PREFIX = "<|fim_prefix|>"
FIM_SUFFIX = "<|fim_suffix|>"
FIM_MIDDLE = "<|fim_middle|>"


def target_path() -> Path:
    """Return the target's GGUF file."""
    return _shipped(TARGET)


def draft_path() -> Path:
    """Return the draft's GGUF file."""
    return _shipped(DRAFT)


def held_out_prompts_path() -> Path:
    """Return the prompts that neither was trained on; a line is JSON: `kind`, `prompt`, often `messages`."""
    return _shipped(HELD_OUT_PROMPTS)


def _shipped(name: str) -> Path:
    return Path(str(files(__package__).joinpath(name)))
