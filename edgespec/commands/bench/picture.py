"""The figures as a picture, drawn by matplotlib if that is installed (the extra `bench`)."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from edgespec.commands.bench.figures import Ratio, Summary
from edgespec.commands.bench.lines import OURS, PLAIN
from edgespec.commands.bench.report import Results
from edgespec.errors import SettingError

SUFFIXES = (".png", ".svg")
COLOURS = {"greedy": "#1b6ca8", "sampled": "#d1603d", "coupled": "#6b8e23"}
DPI = 150


def check_picture(path: Path) -> None:
    """Raises SettingError if no picture could be drawn there: checked before anything is measured."""
    if path.suffix.lower() not in SUFFIXES:
        raise SettingError(
            f"--picture {path} has no known picture format: let it end in {' or '.join(SUFFIXES)}"
        )
    if importlib.util.find_spec("matplotlib") is None:
        raise SettingError(
            "--picture needs matplotlib: install it with pip install 'edgespec[bench]', or leave it out "
            "(the report has a plot of plain characters)"
        )


def draw(found: Results, path: Path, *, head: Sequence[str]) -> None:
    """Writes the picture: speeds of all lines (or speed-up over draft length), and speed-up by kind.

    head: what was measured, on what and when, as the report has it. Whiskers are 95 % intervals.
    """
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
    figure.suptitle("   ".join(head[:2]), fontsize=10)
    figure.supxlabel("\n".join([*head[2:], "whiskers: 95 % intervals of the speed-up"]), fontsize=7)
    figure.savefig(path, dpi=DPI)


def _draw_speeds(axes: Any, found: Results) -> None:
    shown = [s for s in found.summaries if s.tok_per_s][::-1]
    speeds = [s.tok_per_s or 0.0 for s in shown]
    bars = axes.barh(
        range(len(shown)),
        speeds,
        color=[COLOURS.get(s.mode, "grey") for s in shown],
        xerr=_whiskers([(s.speedup, speed) for s, speed in zip(shown, speeds, strict=True)]),
        error_kw={"capsize": 2, "linewidth": 1},
        alpha=0.9,
    )
    for bar, s in zip(bars, shown, strict=True):
        bar.set_alpha(0.45 if s.line.endswith(PLAIN) else 0.9)
    labels = [f"{speed:.3g}{_said(s.speedup)}" for speed, s in zip(speeds, shown, strict=True)]
    for row, label in enumerate(labels):  # beside the axes, where no whisker comes
        axes.text(1.01, row, label, transform=axes.get_yaxis_transform(), va="center", fontsize=8)
    axes.set_yticks(range(len(shown)), [f"{s.mode}: {s.line}, n = {s.n}" for s in shown], fontsize=9)
    axes.set_xlim(0, 1.3 * max(speeds, default=1.0))
    axes.set_xlabel("tokens a second, and speed-up over plain decoding")
    _plain_frame(axes)


def _said(ratio: Ratio | None) -> str:
    if ratio is None:
        return ""
    interval = f" ({ratio.low:.2f} to {ratio.high:.2f})" if ratio.low and ratio.high else ""
    return f"   {ratio.value:.2f}x{interval}"


def _draw_sweep(axes: Any, found: Results) -> None:
    """Draws speed over fixed draft length as points; the controller's speed, and plain, as lines."""
    fixed: dict[tuple[str, str], list[tuple[int, Summary]]] = {}
    for s in found.summaries:
        name, _, length = s.line.rpartition(" n=")
        colour, ours = COLOURS.get(s.mode, "grey"), s.line in (OURS, PLAIN)
        if not s.tok_per_s:
            continue
        if name:
            fixed.setdefault((s.mode, name), []).append((int(length), s))
        elif s.line == OURS:
            axes.axhline(
                s.tok_per_s, color=colour, linestyle="--", label=f"{s.mode}: {OURS}, no length given"
            )
        elif s.line.endswith(PLAIN):
            style = "-" if ours else ":"
            axes.axhline(
                s.tok_per_s, color=colour, linewidth=0.8, linestyle=style, label=f"{s.mode}: {s.line}"
            )
    for (mode, name), points in fixed.items():
        axes.errorbar(
            [length for length, _ in points],
            [s.tok_per_s for _, s in points],
            yerr=_whiskers([(s.speedup, s.tok_per_s or 0.0) for _, s in points]),
            color=COLOURS.get(mode, "grey"),
            marker="o" if name == OURS else "x",
            linestyle="-" if name == OURS else ":",
            linewidth=1.2,
            capsize=2,
            label=f"{mode}: {name}, fixed length",
        )
    axes.set_xlabel("tokens guessed at a time")
    axes.set_ylabel("tokens a second")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=7, frameon=False, loc="lower left", ncols=2)
    _plain_frame(axes)


def _whiskers(of: list[tuple[Ratio | None, float]]) -> list[list[float]]:
    """Returns how far the interval of a ratio reaches below and above a height that stands for the ratio."""
    below, above = [math.nan] * len(of), [math.nan] * len(of)  # which is not drawn
    for i, (ratio, height) in enumerate(of):
        if ratio and ratio.low is not None and ratio.high is not None:
            below[i] = height * (1 - ratio.low / ratio.value)
            above[i] = height * (ratio.high / ratio.value - 1)
    return [below, above]


def _draw_kinds(axes: Any, found: Results) -> None:
    kinds = list(found.by_kind)
    modes = list(dict.fromkeys(mode for of in found.by_kind.values() for mode in of))
    width = min(0.8 / max(1, len(modes)), 0.3)
    for i, mode in enumerate(modes):
        here = [(k, of[mode]) for k, of in enumerate(found.by_kind.values()) if mode in of]
        places = [k + (i - (len(modes) - 1) / 2) * width for k, _ in here]
        colour = COLOURS.get(mode, "grey")
        heights = [ratio.value for _, ratio in here]
        whiskers = _whiskers([(ratio, ratio.value) for _, ratio in here])
        axes.bar(
            places,
            heights,
            0.9 * width,
            color=colour,
            label=mode,
            yerr=whiskers,
            error_kw={"capsize": 2, "linewidth": 1},
        )
    highest = max((ratio.value for of in found.by_kind.values() for ratio in of.values()), default=1.0)
    axes.set_ylim(0, 1.5 * max(highest, 1.0))
    axes.axhline(1, color="black", linewidth=0.8)
    counts = [min((ratio.n for ratio in of.values()), default=0) for of in found.by_kind.values()]
    kinds = [f"{kind}\nn = {n}" for kind, n in zip(kinds, counts, strict=True)]
    slanted = len(kinds) > 6
    rotation, align = (60, "right") if slanted else (0, "center")
    axes.set_xticks(range(len(kinds)), kinds, rotation=rotation, ha=align)
    axes.set_ylabel("speed-up over plain decoding")
    axes.legend(fontsize=8, frameon=False)
    _plain_frame(axes)


def _plain_frame(axes: Any) -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
