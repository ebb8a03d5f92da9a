"""Save and load training states: whole or not at all, so that an interruption costs only minutes."""

import os
from dataclasses import asdict, replace
from pathlib import Path

import torch

from edgespec_models.distill.network import Llama, Shape

Steppers = list[torch.optim.Optimizer]


def save(path: Path, model: Llama, steppers: Steppers, done: int, passes: int = 0) -> None:
    """Write weights, shape, optimisers, the tokens done, and the number of passes over the text."""
    aside = path.with_suffix(".part")
    content = {"shape": asdict(model.shape), "model": model.state_dict(), "done": done, "passes": passes}
    torch.save({**content, "optimisers": [s.state_dict() for s in steppers]}, aside)
    os.replace(aside, path)


def load(path: Path) -> tuple[Llama, int]:
    """Return the network of a checkpoint and the tokens it has seen."""
    content = torch.load(path, weights_only=True, map_location="cpu")
    model = Llama(Shape(**content["shape"]))
    model.load_state_dict(content["model"])
    return model, int(content["done"])


def resume(path: Path, model: Llama, steppers: Steppers) -> tuple[int, int]:
    """Load a saved state into model and optimisers; return (tokens done, passes), zeros if there is none."""
    if not path.exists():
        return 0, 0
    content = torch.load(path, weights_only=True, map_location="cpu")
    model.load_state_dict(content["model"])
    for stepper, state in zip(steppers, content["optimisers"], strict=True):
        stepper.load_state_dict(state)
    return int(content["done"]), int(content.get("passes", 0))


def grow(model: Llama, layers: int) -> Llama:
    """Return a network with more layers, at most twice as many, that computes the same.

    Evenly chosen layers are followed by a copy whose two output matrices are zero; training makes use of it
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
