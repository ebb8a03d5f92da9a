"""Save and load training states: whole or not at all, so that an interruption costs minutes only."""

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from recipes.model import Llama, Shape


def save(path: Path, model: Llama, **more: Any) -> None:
    """Write the weights, the shape and whatever else the stage needs to go on."""
    aside = path.with_suffix(".part")
    torch.save({"shape": asdict(model.shape), "model": model.state_dict(), **more}, aside)
    os.replace(aside, path)


def load(path: Path) -> tuple[Llama, dict[str, Any]]:
    """Return the network of a checkpoint and the rest of its content."""
    state = torch.load(path, weights_only=True)
    model = Llama(Shape(**state.pop("shape")))
    model.load_state_dict(state.pop("model"))
    return model, state


def grow(model: Llama) -> Llama:
    """Return a network with twice the layers that computes the same.

    Behind each layer stands a copy of it whose two output matrices are zero; training makes use of it at
    once (gradual stacking: the first half of the training costs half).
    """
    shape = asdict(model.shape) | {"layers": 2 * model.shape.layers}
    grown = Llama(Shape(**shape))
    state: dict[str, torch.Tensor] = {}
    for name, value in model.state_dict().items():
        if not name.startswith("blocks."):
            state[name] = value.clone()
            continue
        _, index, rest = name.split(".", 2)
        state[f"blocks.{2 * int(index)}.{rest}"] = value.clone()
        added = torch.zeros_like(value) if rest in {"wo.weight", "down.weight"} else value.clone()
        state[f"blocks.{2 * int(index) + 1}.{rest}"] = added
    grown.load_state_dict(state)
    return grown
