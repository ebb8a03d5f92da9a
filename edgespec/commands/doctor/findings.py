"""What a check found, as text for people and as an object for programs."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from edgespec import __version__
from edgespec.commands.table import wrapped

Status = Literal["good", "note", "problem"]  # nothing to do, worth knowing, to be fixed
MARKS: dict[Status, str] = {"good": "ok", "note": "--", "problem": "!!"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was checked."""

    topic: str
    status: Status
    text: str
    remedy: str = ""  # what to do about it, or the page to read; a problem always has one
    facts: Mapping[str, Any] = field(default_factory=dict)  # the same for programs


def n_problems(findings: Sequence[Finding]) -> int:
    """Returns how many of them should be fixed."""
    return sum(finding.status == "problem" for finding in findings)


def lines(findings: Sequence[Finding]) -> list[str]:
    """Returns the findings as lines, each under its topic, remedies beneath."""
    found: list[str] = []
    topic_width = max(len(finding.topic) for finding in findings) + 2
    margin, topic = " " * (topic_width + 4), ""
    for finding in findings:
        head = finding.topic if finding.topic != topic else ""
        topic = finding.topic
        found += wrapped(finding.text, f"{MARKS[finding.status]}  {head:<{topic_width}}", margin)
        found += wrapped(finding.remedy, f"{margin}-> ", f"{margin}   ")
    n = n_problems(findings)
    verdict = f"{n} problem{'s'[: n > 1]}: marked !! above, with what to do after ->."
    return [*found, "", verdict if n else "No problems found."]


def document(findings: Sequence[Finding]) -> str:
    """Returns all as JSON."""
    listed = [asdict(finding) for finding in findings]
    whole = {"edgespec": __version__, "problems": n_problems(findings), "findings": listed}
    return json.dumps(whole, indent=1, default=str)
