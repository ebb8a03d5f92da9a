"""The draft is placed where it is worth most, by measurement; the place is kept."""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from streams import MACHINES

from edgespec.core.pace.cost_table import CostTable
from edgespec.core.pace.costs import Costs
from edgespec.core.pace.worth import at_load
from edgespec.core.request import Request
from edgespec.engine import draft_placement
from edgespec.engine import pair as engine
from edgespec.engine.experience import load
from edgespec.engine.pair import Pair
from edgespec.llama.context import Context
from edgespec.llama.model import Model
from edgespec.pairs.settings import PairSettings
from edgespec.sampling.sampler import Sampling
from edgespec.system.config import cache_folder
from edgespec_models.fit.need import Device
from edgespec_models.kept_file import WEEK

CARD = Device("CUDA0", 7 << 30, 8 << 30, "RTX 4060")
VERIFYING = CostTable({n: ms / 1000 for n, ms in MACHINES["GPU"].items()})
SETTINGS = PairSettings(n_ctx=128, threads=1, remember=False)


def costs(step_ms: float) -> Costs:
    return Costs(VERIFYING, CostTable({1: step_ms / 1000}))


def test_what_a_place_is_worth_follows_from_costs() -> None:
    assert at_load(costs(0.3)) > at_load(costs(1.0)) > at_load(costs(2.0)) > 1 > at_load(costs(50.0))


def test_the_cheaper_place_is_worth_more_where_neither_pays() -> None:
    """Two tokens cost twice one: both places counted as worth nothing, and the dearer one stayed."""
    dear = CostTable({1: 0.09, 2: 0.175, 4: 0.29, 16: 0.42})
    card, processor = (at_load(Costs(dear, CostTable({1: step}))) for step in (0.0186, 0.0001))
    assert card * draft_placement.CLEARLY < processor < 1


load_model = Model.__init__


def on_card(self: Model, path: Path, *, n_gpu_layers: int = -1, **others: Any) -> None:
    """Loads a model as ever, and says that its layers lie on the card, if they were to."""
    load_model(self, path, n_gpu_layers=0, **others)
    if n_gpu_layers:
        self.layers = Counter({CARD.name: self.layers.total()})


@pytest.fixture
def with_card(monkeypatch: pytest.MonkeyPatch) -> dict[bool, Costs]:
    """A card there is none of: models said to lie on it. Returns what is measured: draft as loaded, moved."""
    measured = {False: costs(2.0), True: costs(0.5)}
    first: list[Context] = []

    def measure(target: Context, draft: Context) -> Costs:
        first.append(draft)
        return measured[draft is not first[0]]

    monkeypatch.setattr(engine, "cards", lambda: [CARD])
    monkeypatch.setattr(Model, "__init__", on_card)
    monkeypatch.setattr(draft_placement, "measure_costs", measure)
    return measured


def kept() -> int:
    (file,) = (cache_folder() / "places").iterdir()
    return int(json.loads(file.read_text())["draft_gpu_layers"])


def test_a_draft_is_moved_where_it_is_worth_more(
    with_card: dict[bool, Costs], tiny_target: Path, tiny_draft: Path
) -> None:
    with Pair(tiny_target, tiny_draft, SETTINGS) as pair:
        assert pair.settings.draft_gpu_layers == 0 == kept()
        prompt = pair.prompt_tokens("def add(a, b):")
        rounds = list(pair.generate(prompt, Request(Sampling(temperature=0), 8, draft_length=4)))
        assert sum(round_.drafted for round_ in rounds) > 0
    with_card.clear()  # it is known now, and measured no more
    with Pair(tiny_target, tiny_draft, SETTINGS) as pair:
        assert pair.settings.draft_gpu_layers == 0


def test_a_place_is_chosen_anew_after_a_week(
    with_card: dict[bool, Costs], tiny_target: Path, tiny_draft: Path
) -> None:
    with Pair(tiny_target, tiny_draft, SETTINGS):
        (file,) = (cache_folder() / "places").iterdir()
        old = file.stat().st_mtime - WEEK - 1
        os.utime(file, (old, old))
    settings = replace(SETTINGS, n_ctx=64)
    place = draft_placement.DraftPlacement(tiny_target, tiny_draft, settings, [CARD])
    assert place.known() is None
    os.utime(file)
    assert place.known() == 0


def test_a_draft_stays_where_moving_brings_little(
    with_card: dict[bool, Costs], tiny_target: Path, tiny_draft: Path
) -> None:
    with_card[True] = with_card[False]
    with Pair(tiny_target, tiny_draft, SETTINGS) as pair:
        assert pair.settings.draft_gpu_layers != 0 and kept() == -1


def test_a_place_that_was_given_is_kept_to(
    with_card: dict[bool, Costs], tiny_target: Path, tiny_draft: Path
) -> None:
    settings = PairSettings(n_ctx=128, threads=1, remember=False, draft_gpu_layers=-1)
    with Pair(tiny_target, tiny_draft, settings) as pair:
        assert pair.settings.draft_gpu_layers == -1
    assert not (cache_folder() / "places").exists()


@pytest.mark.parametrize("moved", [False, True])
def test_what_was_measured_is_kept_for_the_place_that_was_chosen(
    with_card: dict[bool, Costs], tiny_target: Path, tiny_draft: Path, moved: bool
) -> None:
    """Else it would be measured again at once, or the other place's figures would be believed."""
    with_card[moved], with_card[not moved] = costs(0.5), costs(2.0)
    with Pair(tiny_target, tiny_draft, SETTINGS) as pair:
        assert (pair.settings.draft_gpu_layers == 0) is moved
        known = load(pair.known_in)
        assert known.costs and known.costs.draft.seconds(1) == pytest.approx(0.0005)


def test_no_place_is_chosen_for_a_draft_whose_target_lies_on_other_machines(tmp_path: Path) -> None:
    """All that was timed would be the network's."""
    files = tmp_path / "target.gguf", tmp_path / "draft.gguf"
    assert draft_placement.DraftPlacement(*files, SETTINGS, [CARD]).open
    assert not draft_placement.DraftPlacement(
        *files, replace(SETTINGS, rpc=("127.0.0.1:50052",)), [CARD]
    ).open
    for closed in (replace(SETTINGS, n_gpu_layers=3), replace(SETTINGS, draft_gpu_layers=-1)):
        assert not draft_placement.DraftPlacement(*files, closed, [CARD]).open, (
            "somebody said how many layers"
        )
    assert (
        not draft_placement.DraftPlacement(*files, SETTINGS, []).open
        and not draft_placement.DraftPlacement(files[0], None, SETTINGS, [CARD]).open
    )
