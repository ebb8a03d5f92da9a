"""Save and load training states: whole or not at all, so that an interruption costs minutes only."""

import os
from dataclasses import asdict, replace
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


def grow(model: Llama, layers: int) -> Llama:
    """Return a network with more layers, at most twice as many, that computes the same.

    Behind evenly chosen layers stands a copy whose two output matrices are zero; training makes use of it
    at once (gradual stacking: the long first part of the training costs less).
    """
    old = model.shape.layers
    if not old <= layers <= 2 * old:
        raise ValueError(f"cannot grow {old} layers to {layers}; the most is {2 * old}")
    doubled = {old - 1 - i * old // (layers - old) for i in range(layers - old)} if layers > old else set()
    grown = Llama(replace(model.shape, layers=layers))
    grown.embed.load_state_dict(model.embed.state_dict())
    grown.norm.load_state_dict(model.norm.state_dict())
    places = iter(grown.blocks)
    for i, block in enumerate(model.blocks):
        next(places).load_state_dict(block.state_dict())
        if i in doubled:
            copy = next(places)
            copy.load_state_dict(block.state_dict())
            for name, weight in copy.named_parameters():
                if name.startswith(("wo", "down")):
                    torch.nn.init.zeros_(weight)
    return grown
