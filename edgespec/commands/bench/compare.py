"""`edgespec bench --compare`: reports of several machines, or of several builds, side by side."""

from __future__ import annotations

import json
import shutil
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from edgespec.commands.bench.lines import MODES, OURS, PLAIN
from edgespec.commands.bench.sendable import FORMAT
from edgespec.errors import SettingError
from edgespec.system.named_file import read_text
from edgespec.system.terminal import one_line

LONGEST_REPORT = 2**24  # characters
NAME_WIDTH, COLUMN = 24, 26
Report = Mapping[str, Any]
Row = tuple[str, list[str]]


def compare(files: Sequence[str]) -> list[str]:
    """Returns the table, line by line. Raises SettingError if a file is not a report."""
    reports = [read(Path(file)) for file in files]
    names = [Path(file).stem for file in files]
    width = max(NAME_WIDTH + COLUMN, shutil.get_terminal_size((100, 24)).columns)
    at_once = (width - NAME_WIDTH) // COLUMN
    out: list[str] = []
    for first in range(0, len(reports), at_once):
        part = reports[first : first + at_once]
        rows = [("", names[first : first + at_once]), *_rows(part)]
        out += [*([""] if out else []), *(line for row in rows for line in _folded(row))]
    return out


def read(path: Path) -> Report:
    """Returns a report. Raises SettingError."""
    try:
        found = json.loads(read_text("--compare", path, most=LONGEST_REPORT))
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or found.get("edgespec_report") != FORMAT:
        raise SettingError(
            f"--compare {path} is not a report: name files that `edgespec bench --report` wrote"
        )
    try:
        _rows([found])
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, ZeroDivisionError):
        raise SettingError(f"--compare {path} is a damaged report: make it again") from None
    return found


def _rows(reports: Sequence[Report]) -> list[Row]:
    def row(name: str, of: Callable[[Report], str]) -> Row:
        return name, [of(report) for report in reports]

    rows = [
        row("processor", lambda r: f"{r['machine']['processor']}, {r['machine']['cores']} cores"),
        row("system", lambda r: str(r["machine"]["system"])),
        row("llama.cpp for", lambda r: f"{r['build']['made_for']} ({r['machine']['llama-cpp-python']})"),
        row("layers on", lambda r: str(r["place"])),
        row("threads", lambda r: str(r["settings"]["threads"])),
        row("target", lambda r: r["models"]["target"]["file"]),
        row("draft", lambda r: (r["models"]["draft"] or {"file": "none"})["file"]),
        row("date", lambda r: str(r["date"])[:10]),
        row("a token", lambda r: f"{1000 * _seconds(r, 1):.2f} ms"),
        row("2, 4, 8, 16 over one", _curve),
        row("a guess over a token", _guess),
    ]
    for mode in MODES:
        if any(_line(report, mode, OURS) for report in reports):
            rows += _mode_rows(mode, reports)
    return rows


def _mode_rows(mode: str, reports: Sequence[Report]) -> list[Row]:
    ours = [_line(report, mode, OURS) for report in reports]
    rows = [
        (f"{mode}: plain", [_speed(_line(report, mode, PLAIN)) for report in reports]),
        ("  edgespec", [_speed(line) for line in ours]),
        ("  times plain", [_ratio(line.get("speedup")) for line in ours]),
        ("  accepted", [_share(line.get("acceptance_rate")) for line in ours]),
    ]
    peers = [report["over_peer_default"].get(mode) for report in reports]
    return [*rows, ("  times llama-server", list(map(_ratio, peers)))] if any(peers) else rows


def _seconds(report: Report, n: int, role: str = "target") -> float:
    return float(report["costs"][role]["seconds"][str(n)])


def _curve(report: Report) -> str:
    return ", ".join(f"{_seconds(report, n) / _seconds(report, 1):.2f}" for n in (2, 4, 8, 16))


def _guess(report: Report) -> str:
    if not report["costs"]["draft"]:
        return "-"
    return f"{_seconds(report, 1, 'draft') / _seconds(report, 1):.3f}"


def _line(report: Report, mode: str, name: str) -> Mapping[str, Any]:
    """Returns the figures of a line; none where it was not measured."""
    return next((line for line in report["lines"] if (line["mode"], line["line"]) == (mode, name)), {})


def _speed(line: Mapping[str, Any]) -> str:
    speed = line.get("tok_per_s")
    return f"{speed:.1f} tok/s" if speed else "-"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _ratio(ratio: Mapping[str, Any] | None) -> str:
    if not ratio:
        return "-"
    interval = "" if ratio["low"] is None else f" ({ratio['low']:.2f} to {ratio['high']:.2f})"
    return f"{ratio['value']:.2f}{interval}"


def _folded(row: Row) -> list[str]:
    """Returns a row in as many lines as its longest cell takes."""
    name, cells = row
    folded = [textwrap.wrap(one_line(cell), COLUMN - 2) or [""] for cell in cells]
    return [
        (
            (name if i == 0 else "").ljust(NAME_WIDTH)
            + "".join((cell[i] if i < len(cell) else "").ljust(COLUMN) for cell in folded)
        ).rstrip()
        for i in range(max(map(len, folded)))
    ]
