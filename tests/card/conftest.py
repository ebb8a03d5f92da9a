"""Tests of this folder need a graphics card that llama.cpp uses; one in software will do."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from _pytest.terminal import TerminalReporter

from edgespec_models.fit.need import Device

OUTCOMES = ("passed", "failed", "error", "skipped")
HERE = Path(__file__).parent


@pytest.fixture(scope="session", autouse=True)
def card() -> Device:
    """The first card."""
    from edgespec.llama.devices import cards

    found = cards()
    if not found:
        pytest.skip("this build of llama.cpp finds no graphics card: `make gpu-test` has one in software")
    return found[0]


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    """Ends the run with what it has shown: each file, how many of its tests passed, what it holds."""
    lines = list(_table(terminalreporter.stats))
    if lines:
        terminalreporter.section("graphics cards")
        for line in lines:
            terminalreporter.line(line)


def _table(stats: dict[str, list[pytest.TestReport]]) -> Iterator[str]:
    counts, reasons = defaultdict[str, Counter[str]](Counter), defaultdict[str, set[str]](set)
    for outcome in OUTCOMES:
        for report in stats.get(outcome, []):
            file, _, test = report.nodeid.partition("::")
            if Path(file).parent.name == HERE.name:
                name = Path(file).name
                counts[name][outcome] += 1
                if outcome == "skipped" and isinstance(report.longrepr, tuple):
                    reasons[name].add(f"{test}: {report.longrepr[2].removeprefix('Skipped: ')}")
    if not sum(count.total() - count["skipped"] for count in counts.values()):
        return  # no card: the reasons are pytest's own
    for name, count in sorted(counts.items()):
        told = ", ".join(f"{count[outcome]} {outcome}" for outcome in OUTCOMES if count[outcome])
        yield f"{name}: {told}. {_holds(name)}"
        for reason in sorted(reasons[name]):
            yield f"    skipped: {reason}"


def _holds(name: str) -> str:
    """Returns the first sentence of a file's docstring."""
    docstring = ast.get_docstring(ast.parse((HERE / name).read_text(encoding="utf-8"))) or ""
    return docstring.partition("\n")[0]
