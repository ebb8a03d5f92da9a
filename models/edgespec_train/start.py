"""Start a head from what its target knows already, so that training has less to find.

The block starts as the target's last one, and guesses use the target's own output rows. An MTP
block's first state is the sum of token and state (both normed); an EAGLE-3 head's is the last of its taps.

A small draft without a model to begin with has the target's embedding, in fewer dimensions.
"""

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgespec_train.head import HeadNetwork
from edgespec_train.medusa import MedusaNetwork
from edgespec_train.network import Llama, Shape
from edgespec_train.target_file import BLOCK, TargetFile

SMALL = Shape(width=256, layers=2, heads=4, kv_heads=2, head_dim=64, ffn=704)  # a draft's, less vocabulary
LARGE = 128 << 20  # numbers of an embedding that is kept in 16 bits
CALM = 0.3  # of the output norm: an untrained head had better not be sure


def begin(target: TargetFile, kind: str, kept: NDArray[np.int64] | None = None) -> HeadNetwork:
    """Return an untrained head for a target; `kept` are the tokens it may guess (all, if None)."""
    embed = torch.from_numpy(target.weight("token_embd"))
    if embed.numel() > LARGE:
        embed = embed.half()  # it is only read
    rows = torch.from_numpy(target.output()) if target.has("output") else embed
    rows = rows if kept is None else rows[torch.from_numpy(kept)]
    head = HeadNetwork(kind, target.shape(len(rows)), embed)
    width, last = head.shape.width, f"blk.{target.whole('block_count') - 1}"
    with torch.no_grad():
        for ours, theirs in BLOCK.items():
            getattr(head, ours).weight.copy_(widened(target.weight(f"{last}.{theirs}"), head, ours))
        one = torch.eye(width)
        nothing = torch.zeros(width, width)
        head.fuse.weight.copy_(torch.cat((nothing, nothing, one) if head.eagle else (one, one), 1))
        if head.eagle:
            head.state_norm.load_state_dict(head.attn_norm.state_dict())
        head.norm.weight.copy_(torch.from_numpy(target.weight("output_norm")) * CALM)
        head.output.weight.copy_(rows)
    head.output.weight.requires_grad_(False)  # the target's rows; the file need not repeat them
    return head


def medusa(target: TargetFile, kept: NDArray[np.int64] | None = None) -> MedusaNetwork:
    """Return untrained Medusa heads for a target; `kept` are the tokens they may guess (all, if None)."""
    rows = torch.from_numpy(target.output())
    rows = rows if kept is None else rows[torch.from_numpy(kept)]
    width = rows.shape[1]
    return MedusaNetwork(replace(SMALL, width=width, vocab=len(rows)), rows)


def widened(weight: NDArray[np.float32], head: HeadNetwork, name: str) -> Tensor:
    """Return a weight with small random columns for the token, if the head's matrix has room for one."""
    found = torch.from_numpy(weight)
    wide = getattr(head, name).weight.shape
    if found.shape == wide:
        return found
    noise = torch.Generator().manual_seed(sum(map(ord, name)))
    token = torch.randn(wide[0], wide[1] - found.shape[1], generator=noise) * 0.02
    return torch.cat((token, found), 1)


def small(target: TargetFile) -> Llama:
    """Return an untrained small draft with the vocabulary of a target.

    Its embedding is the target's along the directions in which that varies most.
    """
    shape = replace(SMALL, vocab=target.vocab, eps=1e-5)
    network = Llama(shape)
    embed = target.weight("token_embd")
    some = embed[:: max(1, len(embed) // 8192)]
    _, _, directions = np.linalg.svd(some - some.mean(0), full_matrices=False)
    reduced = embed @ directions[: shape.width].T
    if reduced.shape[1] < shape.width:
        reduced = np.pad(reduced, ((0, 0), (0, shape.width - reduced.shape[1])))
    reduced *= shape.width**-0.5 / max(float(reduced.std()), 1e-9)
    with torch.no_grad():
        network.embed.weight.copy_(torch.from_numpy(reduced))
    return network


def read_llama(target: TargetFile) -> Llama:
    """Return the network of a file with a tied embedding, its weights as float32."""
    shape = replace(target.shape(target.vocab), context=target.whole("context_length"))
    network = Llama(shape)
    state = {"embed.weight": target.weight("token_embd"), "norm.weight": target.weight("output_norm")}
    for i in range(shape.layers):
        for ours, theirs in BLOCK.items():
            state[f"blocks.{i}.{ours}.weight"] = target.weight(f"blk.{i}.{theirs}")
    network.load_state_dict({name: torch.from_numpy(weight) for name, weight in state.items()})
    return network
