"""May this draft guess for that target? The one pair check, on values read from two GGUF headers.

Loading, `edgespec pull` and `edgespec doctor` all ask here, so that what was promised before a download
holds after it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from edgespec_models.gguf.facts import why_not_usable
from edgespec_models.gguf.header import Header
from edgespec_models.gguf.heads import head_of, why_not_driven
from edgespec_models.gguf.vocabulary import Vocabulary, mismatch, vocabulary_of

Fit = Literal["exact", "head", "mapping", "none"]
WORTH_MAPPING = 0.5  # share of the draft's tokens that the target must know too


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a draft can guess for a target, and why not."""

    fit: Fit  # "head": made for such a target. "mapping": if vocabularies were mapped, which is not done yet
    reason: str  # one clause; "" for an exact match
    shared: float  # share of the draft's tokens whose text the target knows, 0 to 1

    @property
    def usable(self) -> bool:
        """Whether EdgeSpec runs this pair today."""
        return self.fit in ("exact", "head")

    def __str__(self) -> str:
        if self.fit == "exact":
            return "the vocabularies match"
        if self.fit == "head":
            return "it is a head that is made for targets such as this"
        if self.fit == "mapping":
            return (
                f"{self.reason}; {self.shared:.0%} of the draft's tokens are known to the target, so the "
                "pair could be used by mapping vocabularies, which EdgeSpec does not do yet"
            )
        return self.reason


def check_vocabularies(target: Vocabulary, draft: Vocabulary) -> Verdict:
    """Compares two vocabularies."""
    reason = mismatch(target, draft)
    if reason is None:
        return Verdict("exact", "", 1.0)
    shared = 0.0
    if target.kind == draft.kind:  # else the same text may be spelt in two ways
        shared = len(set(target.texts) & set(draft.texts)) / max(len(draft.texts), 1)
    return Verdict("mapping" if shared >= WORTH_MAPPING else "none", reason, shared)


def check_headers(target: Header, draft: Header) -> Verdict:
    """Compares two models before their weights are there; what is not a language model fits nothing."""
    head = head_of([draft])
    if head and head.alone and not why_not_usable(target):
        why = why_not_driven(head, [draft], [target])
        return Verdict("none", why, 0.0) if why else Verdict("head", "", 1.0)
    for header in (target, draft):
        reason = why_not_usable(header)
        if reason:
            return Verdict("none", reason, 0.0)
    return check_vocabularies(vocabulary_of(target), vocabulary_of(draft))
