"""Plans -> a table for people, an object for programs."""

import json
import shutil
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from edgespec import __version__
from edgespec.commands.plan.pair_plan import PairPlan
from edgespec.commands.table import table
from edgespec_models.fit.fit import Fit, gib

WIDTH = 100  # of lines, if the terminal is no narrower


@dataclass(frozen=True, slots=True)
class Planned:
    """The result for one pair: a plan, or why there is none. acceptance: of the first of its `speeds`."""

    name: str
    plan: PairPlan | None
    fit: Fit | None
    assumed: bool
    trouble: str = ""
    warning: str = ""
    no_hub: bool = False  # it does not answer, whatever it is asked for


def lines(found: Sequence[Planned]) -> list[str]:
    """Returns a table, and the notes on it."""
    rows: list[tuple[str, ...]] = [
        ("pair", "memory", "plain", "expected", "gain", "guesses", "if they are accepted")
    ]
    rows += [_row(planned) for planned in found if planned.plan]
    said = table(rows) if len(rows) > 1 else []
    troubles = [f"{planned.name}: {planned.trouble}" for planned in found if planned.trouble]
    notes = [*troubles, *_notes(found)]
    width = max(40, min(WIDTH, shutil.get_terminal_size((WIDTH, 24)).columns))
    return [
        *said,
        "",
        *(line for note in notes for line in textwrap.wrap(note, width, subsequent_indent="  ")),
    ]


def _row(planned: Planned) -> tuple[str, ...]:
    plan = planned.plan
    assert plan
    memory = "?" if planned.fit is None else gib(planned.fit.choice.total)
    if planned.fit and not planned.fit.fits:
        memory += " (too much)"
    plain = f"{plan.plain_tok_per_s:.1f} tok/s"
    if not plan.speeds:
        return planned.name, memory, plain, "-", "-", "no draft", ""
    speed = plan.speeds[0]
    gain = speed.tok_per_s / plan.plain_tok_per_s
    guesses = f"{speed.draft_length} at a time" if speed.draft_length else "do not pay"
    return (
        planned.name,
        memory,
        plain,
        f"{speed.tok_per_s:.1f} tok/s",
        f"{gain:.2f}",
        guesses,
        f"{speed.acceptance:.0%}" + (" (assumed)" if planned.assumed else ""),
    )


def _notes(found: Sequence[Planned]) -> list[str]:
    plans = [planned.plan for planned in found if planned.plan]
    if not plans:
        return []
    said = [
        f"Estimates for the beginning of a text, up to {plans[0].off_by:.0%} off: so far were plans from "
        "whole models when both were measured. Long contexts are slower."
    ]
    if any(planned.assumed for planned in found if planned.plan and planned.plan.speeds):
        said.append(
            "How many guesses are accepted depends on pair and text; where nothing is known, 60 % are "
            "assumed for chat and 70 to 75 % for code. --acceptance says otherwise; `edgespec bench` knows."
        )
    if any(plan.disturbed for plan in plans):
        busy = max(plan.busy for plan in plans)
        said.append(
            f"Other programs kept {busy:.1f} cores busy while this was measured: the figures are too low, "
            "and may be odd. The next `edgespec plan` measures again."
        )
    said += [p.warning for p in found if p.warning]
    said += [f"{p.name}: {p.fit.where}" for p in found if p.fit and p.fit.fits and p.fit.where]
    for p in found:
        if p.fit and (p.fit.gave_up or not p.fit.fits):
            speeds = f": {p.plan.sentence}" if p.plan and p.fit.fits else ""
            said.append(f"{p.name}: {p.fit.sentence('it')}{speeds}")
    return said


def document(found: Sequence[Planned]) -> str:
    """Returns all as JSON."""
    return json.dumps({"edgespec": __version__, "pairs": [_object(planned) for planned in found]}, indent=1)


def _object(planned: Planned) -> dict[str, Any]:
    plan, fit = planned.plan, planned.fit
    return {
        "name": planned.name,
        "error": planned.trouble or None,
        "warning": planned.warning or None,
        "plain_tok_per_s": plan.plain_tok_per_s if plan else None,
        "speeds": [asdict(speed) for speed in plan.speeds] if plan else [],
        "acceptance_assumed": planned.assumed,
        "off_by": plan.off_by if plan else None,
        "target": asdict(plan.target) if plan else None,
        "draft": asdict(plan.draft) if plan and plan.draft else None,
        "busy": round(plan.busy, 2) if plan else None,
        "memory": fit.choice.total if fit else None,
        "fits": fit.fits if fit else None,
        "devices": {device.name: fit.choice.on(device.name) for device in fit.devices} if fit else None,
        "n_ctx": fit.choice.n_ctx if fit else None,
    }
