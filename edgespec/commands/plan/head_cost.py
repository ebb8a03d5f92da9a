"""What one guess of a head costs, by what it reads in proportion to its target.

A head's layers are as wide as its target's and lie on the same device, so a byte of them costs the same.
"""

from __future__ import annotations

from collections.abc import Sequence

from edgespec.commands.plan.model_cost import ModelCost, told
from edgespec_models.gguf.head_check import own_head
from edgespec_models.gguf.header import Header
from edgespec_models.gguf.heads import Head, head_of
from edgespec_models.gguf.slice import VOCABULARY, layers_of


def guessing_head(target: Sequence[Header], draft: Sequence[Header] | None) -> Head | None:
    """Returns the head that guesses in a pair, if one does."""
    if draft:
        head = head_of(draft)
        return head if head and head.alone else None
    own, why_not = own_head(target)
    return None if why_not else own


def head_cost(
    target: Sequence[Header], draft: Sequence[Header] | None, head: Head, cost: ModelCost
) -> ModelCost:
    """Returns the seconds of a guess. cost: the target's. draft: the head's file; None: the target's own.

    A DFlash head reads a block at once, any other one token; of several MTP blocks each guess takes one.
    Raises PlanError.
    """
    model = layers_of(target)
    with told((draft or target)[0].name):
        if draft:
            tensors = [t for header in draft for t in header.tensors if t.name not in VOCABULARY]
            size = sum(t.n_bytes or 0 for t in tensors) + (layers_of(draft).output or model.output)
        else:
            size = model.read(model.blocks) // len(model.blocks) + model.output
        whole = model.read(model.layers) + model.output
    rows = max((n for n in cost.seconds if n <= head.block), default=1)
    return ModelCost({1: cost.seconds[rows] * size / whole}, 1, 1, cost.busy)
