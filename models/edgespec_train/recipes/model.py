"""Define the networks of the embedded pair, and add layers to one."""

from dataclasses import replace

import torch

from edgespec_train.network import Llama, Shape

SEED = Shape(width=256, layers=6, heads=4, kv_heads=2, head_dim=64, ffn=704)  # grows into TARGET
TARGET = Shape(width=256, layers=10, heads=4, kv_heads=2, head_dim=64, ffn=704)
DRAFT = Shape(width=160, layers=2, heads=2, kv_heads=1, head_dim=64, ffn=448)


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
