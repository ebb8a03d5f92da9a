"""Begin a head with what its target knows already, so that training has less to find.

The block begins as the target's last one, and the guess is read off with the target's own output rows. An MTP
block's first state is the sum of token and state (both normed); an EAGLE-3 head's is the last of its taps.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgespec_models.distill.head import Head
from edgespec_models.distill.target_file import TargetFile

CALM = 0.3  # of the output norm: a head that knows nothing yet had better not be sure
OF_BLOCK = {
    "wq": "attn_q",
    "wk": "attn_k",
    "wv": "attn_v",
    "wo": "attn_output",
    "ffn_norm": "ffn_norm",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
}


def begin(target: TargetFile, kind: str, kept: NDArray[np.int64] | None = None) -> Head:
    """Return an untrained head for a target; `kept` are the tokens it may guess (all, if None)."""
    embed = torch.from_numpy(target.weight("token_embd"))
    rows = embed if kept is None else embed[torch.from_numpy(kept)]
    head = Head(target.shape(kind, len(rows)), embed)
    width, last = head.shape.width, f"blk.{target.whole('block_count') - 1}"
    with torch.no_grad():
        for ours, theirs in OF_BLOCK.items():
            getattr(head, ours).weight.copy_(widened(target.weight(f"{last}.{theirs}"), head, ours))
        one = torch.eye(width)
        nothing = torch.zeros(width, width)
        head.fuse.weight.copy_(torch.cat((nothing, nothing, one) if kind == "eagle3" else (one, one), 1))
        norm = head.state_norm if kind == "eagle3" else head.attn_norm
        norm.weight.copy_(torch.from_numpy(target.weight(f"{last}.attn_norm")))
        head.norm.weight.copy_(torch.from_numpy(target.weight("output_norm")) * CALM)
        head.output.weight.copy_(rows)
    head.output.weight.requires_grad_(False)  # the target's rows, and the file need not learn what it holds
    return head


def widened(weight: NDArray[np.float32], head: Head, name: str) -> Tensor:
    """Return a weight with small random columns for the token, where the head's matrix has room for one."""
    found = torch.from_numpy(weight)
    wide = getattr(head, name).weight.shape
    if found.shape == wide:
        return found
    noise = torch.Generator().manual_seed(sum(map(ord, name)))
    beside = torch.randn(wide[0], wide[1] - found.shape[1], generator=noise) * 0.02
    return torch.cat((beside, found), 1)
