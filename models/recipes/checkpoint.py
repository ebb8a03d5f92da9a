"""Save and load training states: whole or not at all, so that an interruption costs minutes only."""

import os
from dataclasses import asdict, replace
from pathlib import Path

import torch

from recipes.model import Llama, Shape

Steppers = list[torch.optim.Optimizer]


def save(path: Path, model: Llama, steppers: Steppers, done: int, passes: int = 0) -> None:
    """Write weights, shape, optimisers, the tokens done, and how often the text was passed through."""
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
    """Put a saved state into model and optimisers; return (tokens done, passes), zeros if there is none."""
    if not path.exists():
        return 0, 0
    content = torch.load(path, weights_only=True, map_location="cpu")
    model.load_state_dict(content["model"])
    for stepper, state in zip(steppers, content["optimisers"], strict=True):
        stepper.load_state_dict(state)
    return int(content["done"]), int(content.get("passes", 0))


def pad(old: torch.Tensor, shape: torch.Size, fill: torch.Tensor) -> torch.Tensor:
    """Return a larger tensor with `old` in its first corner, and `fill` (a tensor of it) around."""
    new = fill.expand(shape).clone()
    new[tuple(slice(n) for n in old.shape)] = old
    return new


def widen(model: Llama, width: int, ffn: int) -> Llama:
    """Return a network with wider layers that computes the same.

    What is new reads at random and writes nothing: the new part of the residual stream stays zero until
    training makes use of it. Norms divide by the root mean square, which zeros lower; their weights make
    up for it.
    """
    old = model.shape
    if width < old.width or ffn < old.ffn:
        raise ValueError(f"cannot widen {old.width} and {old.ffn} to {width} and {ffn}, which is less")
    wider = Llama(replace(old, width=width, ffn=ffn))
    share = (old.width / width) ** 0.5
    state = {}
    for name, weight in model.state_dict().items():
        shape = wider.get_parameter(name).shape
        if weight.ndim == 1:
            state[name] = pad(weight, shape, weight.mean()) * share
        elif name.startswith("embed") or name.split(".")[-2] in {"wo", "down"}:
            state[name] = pad(weight, shape, torch.zeros(()))
        else:
            state[name] = pad(weight, shape, torch.randn(shape) * weight.std())
    wider.load_state_dict(state)
    return wider


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
