"""The figures as a picture, drawn by matplotlib where that is installed (the extra `bench`)."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from edgespec.bench.figures import Ratio
from edgespec.bench.lines import OURS, PLAIN
from edgespec.bench.report import Results
from edgespec.errors import SettingError

SUFFIXES = (".png", ".svg")
COLOURS = {"greedy": "#1b6ca8", "sampled": "#d1603d", "coupled": "#6b8e23"}
DPI = 150


def check_picture(path: Path) -> None:
    """Raises SettingError if no picture could be drawn there: found before anything is measured."""
    if path.suffix.lower() not in SUFFIXES:
        raise SettingError(
            f"--picture {path} names no kind of picture: let it end in {' or '.join(SUFFIXES)}"
        )
    if importlib.util.find_spec("matplotlib") is None:
        raise SettingError(
            "--picture needs matplotlib: install it with pip install 'edgespec[bench]', or leave it out "
            "(the report has a plot of plain characters)"
        )


def draw(found: Results, path: Path, *, title: str) -> None:
    """Writes the picture: speeds of all lines (or speed-up over draft length), and speed-up by kind."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    swept = any(" n=" in s.line for s in found.summaries)
    figure = Figure(figsize=(11, 5), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    if swept:
        _draw_sweep(left, found)
    else:
        _draw_speeds(left, found)
    _draw_kinds(right, found)
    figure.suptitle(title, fontsize=10)
    figure.savefig(path, dpi=DPI)


def _draw_speeds(axes: Any, found: Results) -> None:
    shown = [s for s in found.summaries if s.tok_per_s][::-1]
    speeds = [s.tok_per_s or 0.0 for s in shown]
    bars = axes.barh(
        range(len(shown)),
        speeds,
        color=[COLOURS.get(s.mode, "grey") for s in shown],
        alpha=0.9,
    )
    for bar, s in zip(bars, shown, strict=True):
        bar.set_alpha(0.45 if s.line.endswith(PLAIN) else 0.9)
    labels = [f"{speed:.3g}{_said(s.speedup)}" for speed, s in zip(speeds, shown, strict=True)]
    axes.bar_label(bars, labels, padding=3, fontsize=8)
    axes.set_yticks(range(len(shown)), [f"{s.mode}: {s.line}" for s in shown], fontsize=9)
    axes.set_xlim(0, 1.3 * max(speeds, default=1.0))
    axes.set_xlabel("tokens a second (median), and speed-up over plain")
    _plain_frame(axes)


def _said(ratio: Ratio | None) -> str:
    if ratio is None:
        return ""
    interval = f" ({ratio.low:.2f} to {ratio.high:.2f})" if ratio.low and ratio.high else ""
    return f"   {ratio.value:.2f}x{interval}"


def _draw_sweep(axes: Any, found: Results) -> None:
    """Draws speed-up over fixed draft length as points, and what the controller reached as a line."""
    by_line: dict[tuple[str, str], list[tuple[int, Ratio]]] = {}
    for s in found.summaries:
        name, _, length = s.line.rpartition(" n=")
        if name and s.speedup:
            by_line.setdefault((s.mode, name), []).append((int(length), s.speedup))
    for (mode, name), points in by_line.items():
        colour, ours = COLOURS.get(mode, "grey"), name == OURS
        low_high = [
            [r.value - (r.low or r.value) for _, r in points],
            [(r.high or r.value) - r.value for _, r in points],
        ]
        axes.errorbar(
            [length for length, _ in points],
            [ratio.value for _, ratio in points],
            yerr=low_high,
            color=colour,
            marker="o" if ours else "x",
            linestyle="-" if ours else ":",
            capsize=2,
            label=f"{mode}: {name}, fixed length",
        )
    for s in found.summaries:
        if s.line == OURS and s.speedup:
            axes.axhline(
                s.speedup.value,
                color=COLOURS.get(s.mode, "grey"),
                linestyle="--",
                label=f"{s.mode}: {OURS}, no length given",
            )
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_xlabel("tokens guessed at a time")
    axes.set_ylabel("speed-up over plain decoding")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=8, frameon=False)
    _plain_frame(axes)


def _draw_kinds(axes: Any, found: Results) -> None:
    kinds = list(found.by_kind)
    modes = list(dict.fromkeys(mode for of in found.by_kind.values() for mode in of))
    width = 0.8 / max(1, len(modes))
    for i, mode in enumerate(modes):
        places = [k + (i - (len(modes) - 1) / 2) * width for k in range(len(kinds))]
        heights = [of[mode].value if mode in of else 0.0 for of in found.by_kind.values()]
        axes.bar(places, heights, 0.9 * width, color=COLOURS.get(mode, "grey"), label=mode)
    axes.axhline(1, color="black", linewidth=0.8)
    slanted = len(kinds) > 6
    axes.set_xticks(
        range(len(kinds)), kinds, rotation=60 if slanted else 0, ha="right" if slanted else "center"
    )
    axes.set_ylabel("speed-up over plain decoding")
    axes.legend(fontsize=8, frameon=False)
    _plain_frame(axes)


def _plain_frame(axes: Any) -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
