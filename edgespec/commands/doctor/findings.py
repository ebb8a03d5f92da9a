"""What a check found."""

from dataclasses import dataclass, field
from typing import Any, Literal

Status = Literal["good", "note", "problem"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was checked."""

    topic: str
    status: Status
    text: str
    remedy: str = ""  # what to do about it; a problem always has one
    facts: dict[str, Any] = field(default_factory=dict)  # the same for programs

    def __post_init__(self) -> None:
        assert self.status != "problem" or self.remedy, f"a problem without a remedy: {self.text}"


def good(topic: str, text: str, **facts: Any) -> Finding:
    """Returns a finding that needs nothing done."""
    return Finding(topic, "good", text, facts=facts)


def note(topic: str, text: str, remedy: str = "", **facts: Any) -> Finding:
    """Returns a finding worth knowing; nothing is wrong."""
    return Finding(topic, "note", text, remedy, facts)


def problem(topic: str, text: str, remedy: str, **facts: Any) -> Finding:
    """Returns a finding that should be fixed."""
    return Finding(topic, "problem", text, remedy, facts)
