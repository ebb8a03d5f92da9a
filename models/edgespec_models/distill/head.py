"""Define a head: one Llama block that reads the target's states, and guesses several tokens in turn.

Row r stands for token r + `ahead`, whose embedding meets the target's state one token before it. The row's
own output takes the place of that state when the head guesses on (EAGLE, https://arxiv.org/abs/2401.15077;
unrolled in training as in EAGLE-3, https://arxiv.org/abs/2503.01840).

MTP: token and state enter the residual stream together. EAGLE-3: the fused states of three layers are the
residual stream, and the token enters through attention alone. Embeddings are the target's, never trained.
Rotary pairs are (i, i + R/2), as in `network.py`.

Shapes: B texts of T rows, D width, F states of the target, V vocabulary of the head.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from edgespec_models.distill.network import RMSNorm, rotate


@dataclass(frozen=True, slots=True)
class HeadShape:
    """Hold the numbers that fix a head."""

    kind: str  # "mtp" or "eagle3"
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int  # that it guesses from
    rope_theta: float = 10000.0
    eps: float = 1e-5
    context: int = 2048

    @property
    def ahead(self) -> int:
        """Return which token the first row stands for: EAGLE-3 has no row for the first."""
        return 1 if self.kind == "eagle3" else 0


Keys = list[tuple[Tensor, Tensor]]  # keys and values of every step so far, each (B, heads, rows, R)


class HeadNetwork(nn.Module):
    """Guess the token after each row; see the module's docstring."""

    cos: Tensor
    sin: Tensor
    embed: Tensor

    def __init__(self, shape: HeadShape, embed: Tensor) -> None:
        """Make an untrained head for a target with this embedding (target's V, D)."""
        super().__init__()
        s, eagle = shape, shape.kind == "eagle3"
        self.shape = shape
        inner, kv, into = s.heads * s.head_dim, s.kv_heads * s.head_dim, (2 if eagle else 1) * s.width
        self.fuse = nn.Linear((3 if eagle else 2) * s.width, s.width, bias=False)  # fc, or eh_proj
        self.token_norm, self.state_norm = RMSNorm(s.width, s.eps), RMSNorm(s.width, s.eps)
        self.attn_norm = RMSNorm(s.width, s.eps)  # of an MTP block's fused row; EAGLE-3 norms before it
        self.attn_norm.requires_grad_(not eagle)
        self.wq = nn.Linear(into, inner, bias=False)
        self.wk = nn.Linear(into, kv, bias=False)
        self.wv = nn.Linear(into, kv, bias=False)
        self.wo = nn.Linear(inner, s.width, bias=False)
        self.ffn_norm = RMSNorm(s.width, s.eps)
        self.gate = nn.Linear(s.width, s.ffn, bias=False)
        self.up = nn.Linear(s.width, s.ffn, bias=False)
        self.down = nn.Linear(s.ffn, s.width, bias=False)
        self.norm = RMSNorm(s.width, s.eps)
        self.output = nn.Linear(s.width, s.vocab, bias=False)  # rows of the target's own, if it is tied
        exponent = torch.arange(0, s.head_dim, 2, dtype=torch.float32) / s.head_dim
        angle = torch.outer(torch.arange(s.context, dtype=torch.float32), s.rope_theta**-exponent)
        for name, value in (("cos", angle.cos()), ("sin", angle.sin()), ("embed", embed)):
            self.register_buffer(name, value, persistent=False)

    def begin(self, states: Tensor) -> Tensor:
        """Return what stands for the target's states (B, T, F) in the first step (B, T, D)."""
        return self.fuse(states) if self.shape.kind == "eagle3" else states

    def enter(self, tokens: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        """Return the residual stream (B, T, D) and what attention reads."""
        both = torch.cat((self.token_norm(self.embed[tokens].to(g.dtype)), self.state_norm(g)), -1)
        if self.shape.kind == "eagle3":
            return g, both
        x = self.fuse(both)
        return x, self.attn_norm(x)

    def attend(self, y: Tensor, step: int, at: Tensor, keys: Keys) -> Tensor:
        """Let each row look at the first step's rows up to it, and at its own later ones."""
        s = self.shape
        b, t, _ = y.shape
        cos, sin = (a[at + step].to(y.dtype) for a in (self.cos, self.sin))
        q = rotate(self.wq(y).view(b, t, s.heads, s.head_dim).transpose(1, 2), cos, sin)
        k = rotate(self.wk(y).view(b, t, s.kv_heads, s.head_dim).transpose(1, 2), cos, sin)
        v = self.wv(y).view(b, t, s.kv_heads, s.head_dim).transpose(1, 2)
        k, v = (part.repeat_interleave(s.heads // s.kv_heads, dim=1) for part in (k, v))
        keys.append((k, v))
        if step == 0:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scale = s.head_dim**-0.5
            first = keys[0][0].shape[2]
            future = torch.arange(first, device=y.device) > at[:, None]
            scores = [(q @ keys[0][0].transpose(-1, -2)).masked_fill(future, float("-inf"))]
            scores += [(q * own).sum(-1, keepdim=True) for own, _ in keys[1:]]
            weights = (torch.cat(scores, -1).float() * scale).softmax(-1).to(y.dtype)
            mixed = weights[..., :first] @ keys[0][1]
            for i, (_, own) in enumerate(keys[1:]):
                mixed = mixed + weights[..., first + i : first + i + 1] * own
        return self.wo(mixed.transpose(1, 2).reshape(b, t, s.heads * s.head_dim))

    def step(self, tokens: Tensor, g: Tensor, step: int, at: Tensor, keys: Keys) -> Tensor:
        """Return what each row makes of its token (B, T) and the state before it (B, T, D).

        `at` (T) are the rows' positions; the first step has them all, from 0 on.
        """
        x, y = self.enter(tokens, g)
        x = x + self.attend(y, step, at, keys)
        h = self.ffn_norm(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))

    def logits(self, g: Tensor) -> Tensor:
        """Return the scores (.., V) of the next token."""
        return self.output(self.norm(g))
