"""A report to send: machine, build, cost tables, figures and raw samples in one file, and nothing private.

It is the document of `record.py` with what the engine knew, without texts, paths and names of prompts.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from edgespec.core.pace.cost_table import CostTable
from edgespec.engine.pair import Pair
from edgespec.llama.devices import cpu_features, devices
from edgespec.system.builds import built_for

FORMAT = 1
SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 16, 24, 32, 48)


def default_path() -> Path:
    """Returns the file of a report if none is named."""
    return Path(time.strftime("edgespec-report-%Y%m%d-%H%M%S.json"))


def engine_facts(pair: Pair) -> dict[str, Any]:
    """Returns what only the engine knows: build, devices, placement of layers, and costs of evaluations."""
    costs = pair.costs()
    return {
        "build": {
            "made_for": built_for(),
            "features": cpu_features(),
            "devices": [asdict(device) for device in devices()],
        },
        "place": pair.place or "processor",
        "layers": {
            "target": dict(pair.target.layers),
            "draft": dict(pair.draft.layers) if pair.draft else None,
        },
        "costs": {
            "target": _table(costs.target),
            "draft": _table(costs.draft) if "draft" in pair.contexts else None,
            "draft_beside_target": asdict(costs.beside) if costs.beside else None,
        },
    }


def _table(table: CostTable) -> dict[str, Any]:
    """Returns seconds by number of tokens. measured: the sizes that were timed; others are interpolated."""
    return {
        "seconds": {str(n): table.seconds(n) for n in SIZES},
        "measured": sorted(table.measured),
        "a_token_more_before_it": table.slope,
    }


def report(document: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the report. document: of `record.document`. facts: of `engine_facts`."""
    kept = {name: value for name, value in document.items() if name != "command"}
    numbers: dict[str, int] = {}
    samples = []
    for sample in document["samples"]:
        number = numbers.setdefault(sample["prompt"], len(numbers) + 1)
        samples.append({**sample, "prompt": number, "text": None})
    run = {**document["run"], "troubles": len(document["run"]["troubles"])}  # which may name files
    return {"edgespec_report": FORMAT, **kept, **facts, "run": run, "samples": samples}
