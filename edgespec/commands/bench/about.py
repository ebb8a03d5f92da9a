"""What was measured, and on what: machine, versions, files, settings, devices, costs."""

import argparse
import datetime
import shlex
import sys
from dataclasses import asdict
from typing import Any

from edgespec import __version__
from edgespec.core.pace.cost_table import CostTable
from edgespec.engine.pair import Pair
from edgespec.llama.devices import cpu_features, devices
from edgespec.measure import machine
from edgespec.measure.in_turn import Measured
from edgespec.measure.takers import Asked
from edgespec.system.builds import built_for
from edgespec.system.cores import threads_wanted
from edgespec_models.shelf.sizes import size_text

SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 16, 24, 32, 48)  # tokens: the sizes whose cost the report has


def about(arguments: argparse.Namespace, pair: Pair, asked: Asked) -> dict[str, Any]:
    """Returns what the document and the heading say of the run, before any figure."""
    files = {"target": pair.target.path, "draft": pair.draft.path if pair.draft else None}
    sampling = asked.sampling
    return {
        "edgespec": __version__,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["edgespec", *sys.argv[1:]]),
        "machine": machine.describe(),
        "models": {
            role: {"file": path.name, "bytes": path.stat().st_size} if path else None
            for role, path in files.items()
        },
        "settings": {
            "threads": arguments.threads or threads_wanted(),
            "n_ctx": pair.n_ctx,
            "kv_type": arguments.kv_type,
            "max_tokens": asked.max_tokens,
            "seed": asked.seed,
            "drafter": asked.drafter,
            "draft_length": arguments.draft_length,
            "rope": pair.settings.rope.given(),
            "rpc": list(pair.settings.rpc),
            "sampling": {
                name: getattr(sampling, name) for name in sampling.__slots__ if name != "logit_bias"
            },
        },
        **_engine_facts(pair),
    }


def _engine_facts(pair: Pair) -> dict[str, Any]:
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
        },
    }


def _table(table: CostTable) -> dict[str, Any]:
    """Returns seconds by number of tokens; what was not measured is interpolated. slope: `CostTable`'s."""
    return {
        "seconds": {str(n): table.seconds(n) for n in SIZES},
        "measured": sorted(table.measured),
        "slope": table.slope,
    }


def heading(measured: Measured, about: dict[str, Any]) -> list[str]:
    """Returns the lines above the tables."""
    models, settings, found = about["models"], about["settings"], about["machine"]
    names = [f"{of['file']} ({size_text(of['bytes'])})" for of in models.values() if of]
    date = about["date"][:16].replace("T", " ")
    took = f"{measured.finished} of {measured.planned} comparisons in {measured.seconds:.0f} s"
    return [
        *names,
        f"{found['processor']}, cores: {found['cores']}, threads: {settings['threads']}",
        f"llama-cpp-python {found['llama-cpp-python']}, EdgeSpec {about['edgespec']}, {date} UTC",
        f"{took}, up to {settings['max_tokens']} tokens each",
    ]
