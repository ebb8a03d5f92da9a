"""What one guess of a head costs on this machine: measured on random weights, after a slice of its target.

A head is small, so it is made whole; of the target as few layers as it has kinds of: a head reads rows
and not the target's weights. Loading a pair times its guesses in the same way (`rehearse`).
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from edgespec.commands.plan.model_cost import ModelCost, OnStage, cost_path, evaluated, keep, kept_at, told
from edgespec.pairs.settings import PairSettings
from edgespec.system.other_programs import Others
from edgespec_models.gguf.head_check import own_head
from edgespec_models.gguf.header import Header
from edgespec_models.gguf.heads import Head, head_of, windows
from edgespec_models.gguf.slice import Layers, layers_of, write_head, write_slice


def guessing_head(target: Sequence[Header], draft: Sequence[Header] | None) -> Head | None:
    """Returns the head that guesses in a pair, if one does."""
    if draft:
        head = head_of(draft)
        return head if head and head.alone else None
    own, why_not = own_head(target)
    return None if why_not else own


def depth(model: Layers) -> int:
    """Returns after how many layers of a target a head is measured: one of each kind, windows last but one.

    Gemma 4's assistants read the last layers of the cache, of which one sees a window and one sees all.
    """
    seen, least = windows(model.header), min(sum(model.rhythm), len(model.layers))
    fitting = (n for n in range(least, len(model.layers) + 1) if not seen or seen[n - 2 : n] == [True, False])
    return next(fitting, least)


def kept_head_cost(
    target: Sequence[Header], draft: Sequence[Header] | None, settings: PairSettings
) -> ModelCost | None:
    """Returns the earlier measurement; None if there is none, or not of this."""
    return kept_at(cost_path([*target, *(draft or ())], settings, kind="head"))


def head_cost(
    target: Sequence[Header],
    draft: Sequence[Header] | None,
    settings: PairSettings,
    *,
    on_stage: OnStage = lambda text: None,
    anew: bool = False,
) -> ModelCost:
    """Returns the seconds of a guess, measuring it if that is unknown or was disturbed.

    draft: the head's file; None: it is in the target's. Raises PlanError if that fails.
    """
    known = None if anew else kept_head_cost(target, draft, settings)
    if known and not known.disturbed:
        return known
    model, others = layers_of(target), Others()
    name = (draft or target)[0].name
    with told(name), tempfile.TemporaryDirectory(prefix="edgespec-") as folder:
        n = depth(model)
        on_stage(f"the head in {Path(name).name}")
        path, head = Path(folder) / "slice.gguf", Path(folder) / "head.gguf"
        write_slice(path, model, n, blocks=draft is None)
        if draft:
            write_head(head, draft, n)
        seconds = evaluated(path, settings, name, head=head if draft else None)
    found = ModelCost(seconds, 1, 1, others.cores())
    keep(cost_path([*target, *(draft or ())], settings, kind="head"), found)
    return found
