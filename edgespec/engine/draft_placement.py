"""Where the draft evaluates, on the card or on the processor: measured when a pair is first loaded.

A guess is usually cheaper on the card; a draft on the processor leaves the card's memory to the target. So
both are timed, and the better place is kept in the cache folder. Plain decoding is among the choices of every
round (`core/pace`), wherever the draft is.
"""

import hashlib
import json
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from edgespec.core.pace.costs import Costs
from edgespec.core.pace.worth import at_load
from edgespec.engine.experience import load, save
from edgespec.engine.loading import LoadedModels
from edgespec.engine.measuring import costs_path, measure_costs
from edgespec.errors import EdgeSpecError
from edgespec.llama.context import Context
from edgespec.llama.model import Model
from edgespec.llama.translated_context import TranslatedContext
from edgespec.pairs.settings import PairSettings
from edgespec.system.builds import built_for
from edgespec.system.config import cache_folder
from edgespec_models.checked_value import kept_value
from edgespec_models.fit.need import Device
from edgespec_models.gguf.translation import Translation
from edgespec_models.kept_file import is_recent, write_whole

CLEARLY = 1.03  # gain that a move has to bring: less is noise


class DraftPlacement:
    """The place of one pair's draft; nothing is measured or kept if the user gave a number of layers."""

    def __init__(
        self, target: Path, draft: Path | None, settings: PairSettings, cards: Sequence[Device]
    ) -> None:
        free = settings.n_gpu_layers < 0 and settings.draft_gpu_layers is None and not settings.rpc
        free = free and not settings.draft_placement.rules
        self.open = bool(cards) and draft is not None and free
        if self.open:
            files = [file for file in (target, draft) if file and file.exists()]
            identities = [[str(file.resolve()), file.stat().st_mtime_ns] for file in files]
            names = [card.description or card.name for card in cards]
            key = json.dumps([identities, names, built_for(), settings.threads])
            digest = hashlib.sha256(key.encode()).hexdigest()[:20]
            self._file = cache_folder() / "places" / f"{digest}.json"

    def known(self) -> int | None:
        """Returns the draft's layers on the card (-1: all) as chosen within a week; None if they were not."""
        kept = kept_value(dict[str, Any], self._file) if self.open and is_recent(self._file) else None
        layers = kept and kept.get("draft_gpu_layers")
        return layers if layers in (0, -1) else None

    def choose(
        self, opened: ExitStack, loaded: LoadedModels, settings: PairSettings, translation: Translation | None
    ) -> tuple[LoadedModels, PairSettings]:
        """Times the draft in the other place too; returns the pair with it in the better one, and how."""
        here = loaded.draft_context.own if isinstance(loaded.draft_context, TranslatedContext) else None
        here = here or (loaded.draft_context if isinstance(loaded.draft_context, Context) else None)
        if not self.open or here is None or not isinstance(loaded.draft, Model) or not loaded.target.on_gpu:
            return loaded, settings
        layers = 0 if loaded.draft.on_gpu else -1
        costs = measure_costs(loaded.target_context, here)
        worth = at_load(costs)
        with ExitStack() as tried:
            try:
                model = tried.enter_context(Model(loaded.draft.path, n_gpu_layers=layers))
                there = tried.enter_context(Context(model, here.settings))
                other_costs = measure_costs(loaded.target_context, there)
            except EdgeSpecError:  # there is no room for it
                return loaded, settings
            # the target's costs are the same in both: measured twice, they would differ by noise
            other = at_load(replace(other_costs, target=costs.target))
            moved = other > CLEARLY * worth
            with suppress(OSError):
                chosen = layers if moved else -1 - layers
                choice = {"draft_gpu_layers": chosen, "worth": [worth, other]}
                write_whole(self._file, json.dumps(choice), sync=False)
            if not moved:
                _keep(loaded.target_context, here, costs)
                return loaded, settings
            _keep(loaded.target_context, there, other_costs)
            opened.push(tried.pop_all())
        here.close()
        loaded.draft.close()
        seen = TranslatedContext(there, translation, loaded.target.n_vocab) if translation else there
        return replace(loaded, draft=model, draft_context=seen), replace(settings, draft_gpu_layers=layers)


def _keep(target: Context, draft: Context, costs: Costs) -> None:
    """Saves the measurements for later starts."""
    path = costs_path(target, draft)
    known = load(path)
    known.costs = costs
    save(path, known)
