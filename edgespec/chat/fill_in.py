"""Filling in text between a beginning and an end: how its parts are arranged for the model.

    [REP]project [SEP]name chunk [SEP]name chunk ... [SEP]filename   [PRE]prefix prompt [SUF]suffix [MID]

as llama.cpp's server does it, after Qwen2.5-Coder (https://arxiv.org/abs/2409.12186), with the tokens that
the model's own vocabulary names. What does not fit is cut farthest from the cursor.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from edgespec.core.fill_tokens import FillTokens

Tokens = Sequence[int]
REPOSITORY, LAST_FILE, SNIPPET = "myproject\n", "filename\n", "\n\n--- snippet ---\n\n"


@dataclass(frozen=True, slots=True)
class Chunk:
    """Text from elsewhere in the project, and its name, both as tokens."""

    name: Tokens
    text: Tokens


@dataclass(frozen=True, slots=True)
class Gap:
    """The text around the gap, as tokens. prompt: the part of the gap that is already written."""

    prefix: Tokens
    prompt: Tokens
    suffix: Tokens
    chunks: Sequence[Chunk]
    repository: Tokens
    last_file: Tokens
    snippet: Tokens


def arranged(gap: Gap, marks: FillTokens, *, bos: int | None, window: int, room: int) -> tuple[int, ...]:
    """Returns the prompt: (n,) token ids.

    window: tokens that prefix, prompt and suffix may have, three quarters before the gap. room: tokens
    that all may have; what they leave is for the chunks, the last ones of them.
    """
    prefix = gap.prefix[max(0, len(gap.prefix) - 3 * (window // 4)) :]
    suffix = gap.suffix[: max(0, window // 4 - (2 + len(gap.prompt)))]
    around = _around(gap, marks)
    extra = room - len(prefix) - len(gap.prompt) - len(suffix)
    return (
        *around[max(0, len(around) - max(0, extra)) :],
        *(() if bos is None else (bos,)),
        marks.prefix,
        *prefix,
        *gap.prompt,
        marks.suffix,
        *suffix,
        marks.middle,
    )


def _around(gap: Gap, marks: FillTokens) -> list[int]:
    """Returns what comes before the file: the other chunks, each after its name."""
    found: list[int] = []
    if marks.repository >= 0:
        found += [marks.repository, *gap.repository]
    for chunk in gap.chunks:
        found += [marks.separator, *chunk.name] if marks.separator >= 0 else gap.snippet
        found += chunk.text
    if marks.separator >= 0:
        found += [marks.separator, *gap.last_file]
    return found
