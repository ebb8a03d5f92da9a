"""Bars of plain characters, for a terminal or a log."""

from collections.abc import Sequence

FULL, MARK = "#", "|"


def bars(rows: Sequence[tuple[str, float, float | None]], *, width: int = 79, unit: str = "") -> list[str]:
    """Draws one line for each (label, value, mark): a bar, the place of the mark in it, and the value.

    All bars share one scale, from 0 to the largest value or mark.
    """
    if not rows:
        return []
    label_width = max(len(label) for label, _, _ in rows)
    texts = [f"{value:.3g}" if value < 1000 else f"{value:.0f}" for _, value, _ in rows]
    text_width = max(map(len, texts)) + (len(unit) + 1 if unit else 0)
    room = max(10, width - label_width - text_width - 3)
    largest = max(max(value, mark or 0.0) for _, value, mark in rows)
    lines = []
    for (label, value, mark), text in zip(rows, texts, strict=True):
        cells = [FULL] * (round(value / largest * room) if largest > 0 else 0)
        cells += [" "] * (room - len(cells))
        if mark is not None and largest > 0:
            cells[min(room - 1, round(mark / largest * room))] = MARK
        said = f"{text} {unit}".strip()
        lines.append(f"{label:<{label_width}}  {''.join(cells).rstrip()} {said}")
    return lines
