"""What two vocabularies share: may this draft guess for that target?

The rule is llama.cpp's (common/speculative.cpp): same tokeniser type, same automatic start and end
tokens, sizes within 128 of each other (padding), every shared token text equal from id 5 up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

SIZE_MAY_DIFFER = 128
FIRST_COMPARED = 5


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The facts of a vocabulary that decide whether two models can speak of the same tokens."""

    kind: str  # tokeniser type: "SPM", "BPE", ...
    texts: Sequence[bytes]  # text of each token id
    add_bos: bool
    bos: int
    add_eos: bool
    eos: int


def mismatch(target: Vocabulary, draft: Vocabulary) -> str | None:
    """Returns in plain words why the draft cannot guess for the target; None where it can."""
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
