"""Define a head: one Llama block that reads the target's states, and guesses several tokens in turn.

Row r stands for token r + `ahead`, whose embedding meets the target's state one token before it. The row's
own output takes the place of that state when the head guesses on (EAGLE, https://arxiv.org/abs/2401.15077;
unrolled in training as in EAGLE-3, https://arxiv.org/abs/2503.01840).

MTP: token and state enter the residual stream together. EAGLE-3: the fused states of three layers are the
residual stream, and the token enters through attention alone. Embeddings are the target's, never trained.
Rotary pairs are (i, i + R/2), as in `network.py`.

Shapes: B texts of T rows, D width, F states of the target, V vocabulary of the head.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from edgespec_train.network import NetworkBlock, RMSNorm, Shape, rotary

Keys = list[tuple[Tensor, Tensor]]  # keys and values of every step so far, each (B, heads, rows, R)


class HeadNetwork(NetworkBlock):
    """Guess the token after each row; see the module's docstring."""

    cos: Tensor
    sin: Tensor
    embed: Tensor

    def __init__(self, kind: str, shape: Shape, embed: Tensor) -> None:
        """Make an untrained head, "mtp" or "eagle3", for a target with this embedding (target's V, D)."""
        nn.Module.__init__(self)
        self.eagle = eagle = kind == "eagle3"
        self.ahead = int(eagle)  # which token the first row stands for: EAGLE-3 has no row for the first
        width, eps = shape.width, shape.eps
        self.fuse = nn.Linear((3 if eagle else 2) * width, width, bias=False)  # fc, or eh_proj
        self.token_norm, self.state_norm = RMSNorm(width, eps), RMSNorm(width, eps)
        self.add_weights(shape, (2 if eagle else 1) * width)
        self.attn_norm.requires_grad_(not eagle)  # of an MTP block's fused row; EAGLE-3 norms before it
        self.norm = RMSNorm(width, eps)
        self.output = nn.Linear(width, shape.vocab, bias=False)  # rows of the target's own, if it is tied
        cos, sin = rotary(shape)
        for name, value in (("cos", cos), ("sin", sin), ("embed", embed)):
            self.register_buffer(name, value, persistent=False)

    def begin(self, states: Tensor) -> Tensor:
        """Return what stands for the target's states (B, T, F) in the first step (B, T, D)."""
        return self.fuse(states) if self.eagle else states

    def enter(self, tokens: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        """Return the residual stream (B, T, D) and what attention reads."""
        both = torch.cat((self.token_norm(self.embed[tokens].to(g.dtype)), self.state_norm(g)), -1)
        if self.eagle:
            return g, both
        x = self.fuse(both)
        return x, self.attn_norm(x)

    def attend(self, y: Tensor, step: int, at: Tensor, keys: Keys) -> Tensor:
        """Let each row look at the first step's rows up to it, and at its own later ones (B, heads, T, R)."""
        q, k, v = self.read(y, *(a[at + step].to(y.dtype) for a in (self.cos, self.sin)))
        keys.append((k, v))
        if step == 0:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        first = keys[0][0].shape[2]
        future = torch.arange(first, device=y.device) > at[:, None]
        scores = [(q @ keys[0][0].transpose(-1, -2)).masked_fill(future, float("-inf"))]
        scores += [(q * own).sum(-1, keepdim=True) for own, _ in keys[1:]]
        weights = (torch.cat(scores, -1).float() * self.shape.head_dim**-0.5).softmax(-1).to(y.dtype)
        mixed = weights[..., :first] @ keys[0][1]
        for i, (_, own) in enumerate(keys[1:]):
            mixed = mixed + weights[..., first + i : first + i + 1] * own
        return mixed

    def step(self, tokens: Tensor, g: Tensor, step: int, at: Tensor, keys: Keys) -> Tensor:
        """Return what each row makes of its token (B, T) and the state before it (B, T, D).

        `at` (T) are the rows' positions; the first step has them all, from 0 on.
        """
        x, y = self.enter(tokens, g)
        return self.add(x, self.attend(y, step, at, keys))

    def logits(self, g: Tensor) -> Tensor:
        """Return the scores (.., V) of the next token."""
        return self.output(self.norm(g))
