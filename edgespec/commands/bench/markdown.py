"""The figures as Markdown, ready to paste: what ran, on what, how certain it is."""

from __future__ import annotations

from collections.abc import Sequence

from edgespec.commands.bench.figures import Ratio, Summary
from edgespec.commands.bench.report import Results

HEAD = ("", "tok/s", "speed-up", "95 % interval", "acceptance", "tokens per check", "first token", "n")


def document(found: Results, head: Sequence[str], notes: Sequence[str] = ()) -> str:
    """Returns the document. head: what was measured, and on what. notes: what to bear in mind."""
    parts = ["# edgespec bench", "\n".join(f"- {_plain(line)}" for line in head)]
    if found.summaries:
        rows = [_row(summary) for summary in found.summaries]
        parts += [_table(HEAD, rows), _verdict(found)]
    if len(found.by_kind) > 1:
        kinds = [
            (kind, mode, _number(ratio.value), _interval(ratio), str(ratio.n))
            for kind, of in found.by_kind.items()
            for mode, ratio in of.items()
        ]
        parts.append(_table(("kind of task", "mode", "speed-up", "95 % interval", "n"), kinds))
    parts += [f"> {_plain(note)}" for note in notes]
    return "\n\n".join(part for part in parts if part) + "\n"


def _row(s: Summary) -> tuple[str, ...]:
    first = "" if s.ttft_s is None else f"{1000 * s.ttft_s:.0f} ms"
    ratio = s.speedup
    return (
        f"{s.mode}: {s.line}",
        _number(s.tok_per_s),
        _number(ratio.value if ratio else None),
        _interval(ratio),
        _number(s.acceptance_rate),
        _number(s.mean_accepted_length),
        first,
        str(s.n),
    )


def _verdict(found: Results) -> str:
    """Says against whom: the rows other than plain decoding."""
    rows = [(mode, "llama-server at its default length", ratio) for mode, ratio in found.against_peer]
    rows += [(contest.mode, f"the best {whom}", contest.ratio) for whom, contest in found.contests]
    said = [(f"{mode}: {than}", _number(r.value), _interval(r), str(r.n)) for mode, than, r in rows]
    return _table(("edgespec, times as fast as", "", "95 % interval", "n"), said) if said else ""


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    marks = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join(f"| {' | '.join(map(_plain, row))} |" for row in (head, marks, *rows))


def _plain(text: str) -> str:
    """Returns a text that is not Markdown: file names may contain anything."""
    return "".join(f"\\{c}" if c in "\\`*_[]<>|#" else c for c in text)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _interval(ratio: Ratio | None) -> str:
    if ratio is None or ratio.low is None or ratio.high is None:
        return ""
    return f"{ratio.low:.2f} to {ratio.high:.2f}"
