"""May this draft guess for that target? The one pair check, on values read from two GGUF headers.

Loading, `edgespec pull` and `edgespec doctor` all ask here, so that what was promised before a download
holds after it.
"""

from dataclasses import dataclass, field
from typing import Literal

from edgespec_models.gguf.facts import why_not_usable
from edgespec_models.gguf.head_check import why_not_driven
from edgespec_models.gguf.header import Header
from edgespec_models.gguf.heads import head_of
from edgespec_models.gguf.sample_text import SAMPLE_TEXT
from edgespec_models.gguf.translation import Translation, translation
from edgespec_models.gguf.vocabulary import mismatch, vocabulary_of

Fit = Literal["exact", "head", "translated", "none"]
WORTH_TRANSLATING = 0.6  # share of a text's tokens that the draft must know too; measured, see docs/pairs.md


@dataclass(frozen=True, slots=True)
class PairVerdict:
    """Whether a draft can guess for a target, and why not, or how."""

    fit: Fit  # "head": made for such a target; "translated": it guesses with the tokens that both have
    reason: str  # what differs, in one clause; "" for an exact match
    coverage: float  # share of a sample text's tokens that the draft has, 0 to 1
    translation: Translation | None = field(default=None, repr=False, compare=False)  # if it is needed

    @property
    def usable(self) -> bool:
        """Whether EdgeSpec runs this pair."""
        return self.fit != "none"

    def __str__(self) -> str:
        if self.fit == "exact":
            return "the vocabularies match"
        if self.fit == "head":
            return "it is a head made for such targets"
        knows = f"the draft has {self.coverage:.0%} of the tokens of a sample text"
        if self.fit == "translated":
            return f"the vocabularies differ ({self.reason}), and guesses are translated: {knows}"
        if self.coverage:
            return f"{self.reason}, and {knows}: to translate guesses, {WORTH_TRANSLATING:.0%} are wanted"
        return self.reason


def check_headers(target: Header, draft: Header) -> PairVerdict:
    """Compares two models before their weights are there; what is not a language model fits nothing."""
    head = head_of([draft])
    if head and head.alone and not why_not_usable(target):
        why = why_not_driven(head, [draft], [target])
        return PairVerdict("none", why, 0.0) if why else PairVerdict("head", "", 1.0)
    for header in (target, draft):
        reason = why_not_usable(header)
        if reason:
            return PairVerdict("none", reason, 0.0)
    reason = mismatch(vocabulary_of(target), vocabulary_of(draft))
    if reason is None:
        return PairVerdict("exact", "", 1.0)
    table = translation(target, draft)
    coverage = table.coverage(SAMPLE_TEXT)
    if coverage < WORTH_TRANSLATING:
        return PairVerdict("none", reason, coverage)
    return PairVerdict("translated", reason, coverage, table)
