"""What is known of a pair: its costs, and how good its guesses were for each kind of request.

Kept from one request to the next, and in the cache folder between starts. If the file cannot be read or
written, that is no error: its content is measured and learned anew.
"""

import contextlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from edgespec.core.drafters import Guesser
from edgespec.core.drafters.draft_temperature import FACTORS, DraftTemperature
from edgespec.core.pace.cost_table import CostTable, Slowness
from edgespec.core.pace.costs import Costs
from edgespec.core.pace.odds import BINS, Odds, proportional
from edgespec.core.pace.record import Gain, Record
from edgespec.core.pace.tuning import TUNING
from edgespec_models.kept_file import write_whole

FORMAT = 4  # of the file; others are ignored
MOST_OFF = 7.0  # log of found / assumed seconds: a factor of a thousand
MOST_KINDS = 64  # each temperature has its own, alone and among so many streams


@dataclass(slots=True)
class Experience:
    """What is known for one kind of request: the record of the draft model, and the odds of all drafters."""

    record: Record = field(default_factory=Record)
    model: Odds = field(default_factory=lambda: proportional(0.2, 0.95))
    places: Odds = field(default_factory=lambda: Odds((0.7,) * BINS))
    free: dict[str, Odds] = field(default_factory=dict)  # of free guessers, by name
    temperature: DraftTemperature = field(default_factory=DraftTemperature)

    def take_up(self, guesser: Guesser) -> Guesser:
        """Gives a guesser the odds stored under its name; the first starts with its own."""
        guesser.odds = self.free.setdefault(guesser.name, guesser.odds)
        return guesser


@dataclass(slots=True)
class Knowledge:
    """Costs (None: not measured yet) and experience by kind of request, the kind used last at the end."""

    costs: Costs | None = None
    kinds: dict[str, Experience] = field(default_factory=dict)

    def at(self, kind: str) -> Experience:
        """Returns the experience with one kind of request, a new one if there is none.

        The least recently used kind gives way to it.
        """
        found = self.kinds.pop(kind) if kind in self.kinds else Experience()
        self.kinds[kind] = found
        if len(self.kinds) > MOST_KINDS:
            del self.kinds[next(iter(self.kinds))]
        return found


def load(path: Path) -> Knowledge:
    """Reads what was saved; empty if there is no such file or it makes no sense."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["format"] != FORMAT:
            return Knowledge()
        held = found["costs"]
        floor = held["floor"]
        slowness = Slowness(_number(held["level"], above=1e-9), floor and _number(floor, above=1e-9))
        costs = Costs(
            _table(held["target"], slowness),
            _table(held["draft"], slowness),
            rereads=held.get("rereads") is True,
            at_once=held.get("at_once") is True,
        )
        kinds = [(kind, _experience(held)) for kind, held in found["kinds"].items()]
        return Knowledge(costs, dict(kinds[-MOST_KINDS:]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return Knowledge()


def save(path: Path, known: Knowledge) -> None:
    """Writes the file whole or not at all; a full disk or a closed folder is ignored."""
    if known.costs is None:
        return
    text = json.dumps(
        {
            "format": FORMAT,
            "costs": {
                "target": _saved(known.costs.target),
                "draft": _saved(known.costs.draft),
                "level": known.costs.target.slowness.level,
                "floor": known.costs.target.slowness.floor,
                "rereads": known.costs.rereads,
                "at_once": known.costs.at_once,
            },
            "kinds": {kind: asdict(held) for kind, held in known.kinds.items()},
        }
    )
    with contextlib.suppress(OSError):
        write_whole(path, text, sync=False)


def _saved(table: CostTable) -> dict[str, Any]:
    return {name: getattr(table, name) for name in ("points", "slope", "offsets", "weights", "reach")}


def _table(held: Mapping[str, Any], slowness: Slowness) -> CostTable:
    points, offsets, weights, reach = (
        {int(n): float(value) for n, value in held[of].items()}
        for of in ("points", "offsets", "weights", "reach")
    )
    reach = {n: _number(rows) for n, rows in reach.items() if n > 0}
    if offsets.keys() != weights.keys() or not all(abs(off) <= MOST_OFF for off in offsets.values()):
        raise ValueError("costs of another shape")
    weights = {n: _number(weight) for n, weight in weights.items()}
    return CostTable(points, _number(held["slope"]), offsets, weights, slowness, reach)


def _number(value: object, *, above: float = 0.0) -> float:
    """Returns a float that can be calculated with."""
    if not isinstance(value, int | float) or not above <= value < math.inf:
        raise ValueError(f"{value!r} is out of range")
    return float(value)


def _experience(held: Mapping[str, Any]) -> Experience:
    kept = held["record"]
    free = {name: held[name] for name in ("lookup", "recycling", "grammar") if name in held}  # older files
    free = {str(name): _odds(odds) for name, odds in {**free, **held.get("free", {})}.items()}
    model, all_ = (Gain(_number(kept[of]["tokens"]), _number(kept[of]["cost"])) for of in ("model", "all"))
    emitted, since_plain = (int(_number(kept[of])) for of in ("emitted", "since_plain"))
    lost, free_lost = (_number(kept[of], above=-TUNING.credit) for of in ("lost", "free_lost"))
    start = TUNING.start
    trying = _number(kept.get("trying", start), above=-start)  # older files lack it
    saving = max(start, _number(kept.get("saving", start)))
    record = Record(model, all_, lost, free_lost, emitted, since_plain, trying, saving)
    return Experience(
        record, _odds(held["model"]), _odds(held["places"]), free, _temperature(held["temperature"])
    )


def _temperature(held: Mapping[str, Any]) -> DraftTemperature:
    overlap = [_number(x) for x in held["overlap"]]
    if len(overlap) != len(FACTORS) or not 0 <= held["chosen"] < len(FACTORS):
        raise ValueError("temperatures of another choice")
    return DraftTemperature(int(held["chosen"]), overlap, _number(held["compared"]), _number(held["seen"]))


def _odds(held: Mapping[str, Any]) -> Odds:
    assumed, accepted, seen = ([_number(x) for x in held[of]] for of in ("assumed", "accepted", "seen"))
    if {len(assumed), len(accepted), len(seen)} != {BINS} or max(assumed) > 1:
        raise ValueError("odds of another shape")
    if any(a > s for a, s in zip(accepted, seen, strict=True)):
        raise ValueError("more accepted than seen")
    return Odds(tuple(assumed), accepted, seen)
