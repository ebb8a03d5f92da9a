"""The figures of a run: tables for people, 80 columns wide, and a JSON document, raw rounds included."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from edgespec.measure.figures import Contest, Ratio, Sample, Summary, against_best, speedup, summary
from edgespec.measure.in_turn import Measured
from edgespec.measure.lines import MEANING, OURS, PLAIN, Line

POSITIONS = 9
FORMAT = 1
METHOD = (
    "decode speed: tokens after the first / their seconds; speed-up: ratio of decode speeds on one prompt "
    "and seed, median over repeats, geometric mean over prompts, 95 % interval by Student's t on logarithms, "
    "one value a prompt; lines of a unit in random order, every generation with empty caches"
)


@dataclass(frozen=True, slots=True)
class Results:
    """All figures of a run, from samples."""

    summaries: tuple[Summary, ...]
    by_kind: dict[str, dict[str, Ratio]]  # kind -> mode -> speed-up of the line "edgespec"
    contests: tuple[Contest, ...]  # against the best fixed length


def results(samples: Sequence[Sample], lines: Sequence[Line]) -> Results:
    """Computes every figure of the measured lines."""
    seen = {(sample.mode, sample.line) for sample in samples}
    lines = [line for line in lines if (line.mode, line.name) in seen]
    modes = list(dict.fromkeys(line.mode for line in lines))
    summaries, contests = [], []
    for mode in modes:
        mine = [line for line in lines if line.mode == mode]
        summaries += [summary(samples, mode, line.name, PLAIN) for line in mine]
        candidates = [line.name for line in mine if line.draft_length]
        contest = against_best(samples, mode, OURS, candidates) if len(candidates) > 1 else None
        if contest:
            contests.append(contest)
    return Results(tuple(summaries), _by_kind(samples), tuple(contests))


def _by_kind(samples: Sequence[Sample]) -> dict[str, dict[str, Ratio]]:
    table: dict[str, dict[str, Ratio]] = {}
    for kind in dict.fromkeys(sample.kind for sample in samples):
        for mode in dict.fromkeys(sample.mode for sample in samples):
            ratio = speedup([s for s in samples if s.mode == mode], OURS, PLAIN, kind)
            if ratio:
                table.setdefault(kind, {})[mode] = ratio
    return table


def tables(found: Results) -> list[str]:
    """Returns the report, line by line; empty if nothing was measured."""
    if not found.summaries:
        return []
    summaries = found.summaries
    parts = [_speeds(summaries), _times(summaries), _positions(summaries), _kinds(found), _contests(found)]
    return [line for part in parts if part for line in ["", *part]]


def _speeds(summaries: Sequence[Summary]) -> list[str]:
    out = [f"{'':<22}{'tok/s':>8}{'speed-up':>10}{'95 % interval':>15}{'accepted':>10}{'a check':>9}{'n':>5}"]
    for mode in dict.fromkeys(s.mode for s in summaries):
        out.append(f"{mode}: {MEANING[mode]}")  # type: ignore[index]
        for s in summaries:
            if s.mode == mode:
                ratio = s.speedup
                row = f"  {s.line:<20}{_speed(s.tok_per_s):>8}{_number(ratio.value if ratio else None):>10}"
                row += f"{_interval(ratio):>15}{_number(s.acceptance_rate):>10}"
                out.append(f"{row}{_number(s.mean_accepted_length):>9}{s.n:>5}")
    return out


def _times(summaries: Sequence[Summary]) -> list[str]:
    out = [
        f"{'milliseconds':<26}{'first':>7}{'a token':>8}{'p90':>7}{'p99':>7}"
        f"{'draft %':>9}{'verify':>8}{'Python':>8}"
    ]
    for s in summaries:
        if _is_detail(s.line):
            continue
        p50, p90, p99 = (_speed(1000 * x) for x in s.tpot_s) if s.tpot_s else ("", "", "")
        first = _speed(1000 * s.ttft_s) if s.ttft_s is not None else ""
        out.append(
            f"{s.mode + ' ' + s.line:<26}{first:>7}{p50:>8}{p90:>7}{p99:>7}{_shares(s.seconds)}".rstrip()
        )
    return out


def _shares(seconds: dict[str, float] | None) -> str:
    whole = sum(seconds.values()) if seconds else 0.0
    if not seconds or whole <= 0:
        return ""
    draft, verify, other = (round(100 * seconds[name] / whole) for name in ("draft", "verify", "other"))
    return f"{draft:>9}{verify:>8}{other:>8}"


def _is_detail(line: str) -> bool:
    return " n=" in line


def _positions(summaries: Sequence[Summary]) -> list[str]:
    known = [s for s in summaries if s.acceptance_by_position and not _is_detail(s.line)]
    if not known:
        return []
    head = "".join(f"{i:>6}" for i in range(1, POSITIONS + 1))
    out = [f"{'accepted at position':<26}{head}"]
    for s in known:
        rates = "".join(f"{rate:>6.2f}" for rate in s.acceptance_by_position[:POSITIONS])
        out.append(f"{s.mode + ' ' + s.line:<26}{rates}")
    return out


def _kinds(found: Results) -> list[str]:
    modes = list(dict.fromkeys(mode for of in found.by_kind.values() for mode in of))
    if len(found.by_kind) < 2:
        return []
    out = [f"{'speed-up by kind of task':<26}" + "".join(f"{mode:>12}" for mode in modes)]
    for kind, of in found.by_kind.items():
        cells = "".join(f"{_number(of[mode].value if mode in of else None):>12}" for mode in modes)
        out.append(f"{kind[:25]:<26}{cells}".rstrip())
    return out


def _contests(found: Results) -> list[str]:
    if not found.contests:
        return []
    out = [f"{'edgespec, times as fast as':<56}{'':>8}{'95 % interval':>16}"]
    for contest in found.contests:
        best = ", ".join(dict.fromkeys(name.rpartition(" ")[2] for name in contest.chosen))
        than, interval = f"the best fixed length ({best})", _interval(contest.ratio)
        out.append(f"{contest.mode + ': ' + than:<56}{_number(contest.ratio.value):>8}{interval:>16}")
    return out


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _speed(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.0f}" if value >= 1000 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _interval(ratio: Ratio | None) -> str:
    if ratio is None:
        return ""
    if ratio.low is None or ratio.high is None:
        return "too few values"
    high = f"{ratio.high:.2f}" if ratio.high < 100 else "100 or more"
    return f"{ratio.low:.2f} to {high}"


def document(found: Results, measured: Measured, about: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the document. about: machine, versions, date, command, models, settings."""
    return {
        "format": FORMAT,
        **about,
        "method": METHOD,
        "run": {
            "planned": measured.planned,
            "finished": measured.finished,
            "seconds": measured.seconds,
            "interrupted": measured.cancelled,
            "cores_busy_with_others": measured.others,
        },
        "lines": [asdict(summary) for summary in found.summaries],
        "speedup_by_kind": {
            kind: {mode: asdict(ratio) for mode, ratio in of.items()} for kind, of in found.by_kind.items()
        },
        "over_best_fixed": [asdict(contest) for contest in found.contests],
        "samples": [{**asdict(sample), "tok_per_s": sample.tok_per_s} for sample in measured.samples],
    }
