"""Plans -> a table for people, an object for programs."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from edgespec import __version__
from edgespec.commands.plan.pair_plan import PairPlan
from edgespec.commands.table import table, wrapped
from edgespec.system.other_programs import BUSY_CORES
from edgespec_models.fit.fit import Fit, gib

OFF_BY = 0.15  # how far plans were from measured speeds, on average (docs/plan.md)
ROUGH = f"""Estimates for the beginning of a text, off by {OFF_BY:.0%} on average in a comparison with
pairs in use, and by more where other programs run. Long contexts are slower."""
ASSUMED = """How many guesses are accepted depends on pair and text; where nothing is known, 60 % are assumed
for chat and 70 to 75 % for code. --acceptance says otherwise; `edgespec bench` knows."""


@dataclass(frozen=True, slots=True)
class Planned:
    """The result for one pair: a plan, or why there is none."""

    name: str
    plan: PairPlan | None = None
    fit: Fit | None = None
    assumed: bool = True  # the acceptance of the plan's first speed
    trouble: str = ""
    notes: tuple[str, ...] = ()


def lines(found: Sequence[Planned], busy: float) -> list[str]:
    """Returns a table, and the notes on it. busy: cores that other programs used."""
    rows = [_row(planned, planned.plan) for planned in found if planned.plan]
    notes = [f"{planned.name}: {planned.trouble}" for planned in found if planned.trouble]
    notes += [ROUGH] if rows else []
    if any(planned.assumed for planned in found if planned.plan and planned.plan.speeds):
        notes.append(ASSUMED)
    if busy >= BUSY_CORES:
        notes.append(f"Other programs kept {busy:.1f} cores busy: the figures are too low, and may be odd.")
    notes += [f"{planned.name}: {note}" for planned in found for note in planned.notes]
    shown = [line for note in notes for line in wrapped(note)]
    return [*(table([tuple(rows[0]), *(tuple(row.values()) for row in rows)]) if rows else []), "", *shown]


def _row(planned: Planned, plan: PairPlan) -> dict[str, str]:
    """Returns a row of the table, by the titles of its columns."""
    fit = planned.fit
    row = {
        "pair": planned.name,
        "memory": "?" if fit is None else gib(fit.choice.total) + ("" if fit.fits else " (too much)"),
        "plain": f"{plan.plain_tok_per_s:.1f} tok/s",
        "expected": "-",
        "gain": "-",
        "guesses": "no draft",
        "if they are accepted": "",
    }
    if plan.speeds:
        speed = plan.speeds[0]
        row["expected"] = f"{speed.tok_per_s:.1f} tok/s"
        row["gain"] = f"{speed.tok_per_s / plan.plain_tok_per_s:.2f}"
        row["guesses"] = f"{speed.draft_length} at a time" if speed.draft_length else "do not pay"
        row["if they are accepted"] = f"{speed.acceptance:.0%}" + (" (assumed)" if planned.assumed else "")
    return row


def document(found: Sequence[Planned], busy: float) -> str:
    """Returns all as JSON. busy: cores that other programs used."""
    pairs = list(map(_object, found))
    return json.dumps({"edgespec": __version__, "off_by": OFF_BY, "busy": busy, "pairs": pairs}, indent=1)


def _object(planned: Planned) -> dict[str, Any]:
    fit = planned.fit
    return {
        "name": planned.name,
        "error": planned.trouble or None,
        "notes": planned.notes,
        **(asdict(planned.plan) if planned.plan else {"plain_tok_per_s": None, "speeds": []}),
        "acceptance_assumed": planned.assumed,
        "memory": fit and fit.choice.total,
        "fits": fit and fit.fits,
        "devices": fit and {device.name: fit.choice.on(device.name) for device in fit.devices},
        "n_ctx": fit and fit.choice.n_ctx,
        "attention": fit and fit.attention,
    }
