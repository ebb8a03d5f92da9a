"""What a check found, as text for people and as an object for programs."""

import json
import shutil
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from edgespec import __version__

Status = Literal["good", "note", "problem"]
MARKS: dict[Status, str] = {"good": "ok", "note": "--", "problem": "!!"}
WIDTH = 100  # of lines, if the terminal is no narrower


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was checked."""

    topic: str
    status: Status
    text: str
    remedy: str = ""  # what to do about it, or the page to read; a problem always has one
    facts: dict[str, Any] = field(default_factory=dict)  # the same for programs


def n_problems(findings: Sequence[Finding]) -> int:
    """Returns how many of them should be fixed."""
    return sum(finding.status == "problem" for finding in findings)


def good(topic: str, text: str, **facts: Any) -> Finding:
    """Returns a finding that needs nothing done."""
    return Finding(topic, "good", text, facts=facts)


def note(topic: str, text: str, remedy: str = "", **facts: Any) -> Finding:
    """Returns a finding worth knowing; nothing is wrong."""
    return Finding(topic, "note", text, remedy, facts)


def problem(topic: str, text: str, remedy: str, **facts: Any) -> Finding:
    """Returns a finding that should be fixed."""
    return Finding(topic, "problem", text, remedy, facts)


def lines(findings: Sequence[Finding]) -> list[str]:
    """Returns the findings as lines, each under its topic, remedies beneath."""
    found: list[str] = []
    topic_width = max(len(finding.topic) for finding in findings) + 2
    width = max(40, min(WIDTH, shutil.get_terminal_size((WIDTH, 24)).columns))
    wrapper = textwrap.TextWrapper(width, break_long_words=False, break_on_hyphens=False)
    topic = ""
    for finding in findings:
        head = finding.topic if finding.topic != topic else ""
        topic = finding.topic
        wrapper.initial_indent = f"{MARKS[finding.status]}  {head:<{topic_width}}"
        wrapper.subsequent_indent = " " * len(wrapper.initial_indent)
        found += wrapper.wrap(finding.text)
        wrapper.initial_indent = f"{wrapper.subsequent_indent}-> "
        wrapper.subsequent_indent += "   "
        found += wrapper.wrap(finding.remedy)
    n = n_problems(findings)
    verdict = f"{n} problem{'s'[: n > 1]}: marked !! above, with what to do after ->."
    return [*found, "", verdict if n else "No problems found."]


def document(findings: Sequence[Finding]) -> str:
    """Returns all as JSON."""
    listed = [asdict(finding) for finding in findings]
    whole = {"edgespec": __version__, "problems": n_problems(findings), "findings": listed}
    return json.dumps(whole, indent=1, default=str)
