"""The llama-architecture network in torch: what small drafts are, and what heads are blocks of.

It is the plain Llama block (RMSNorm, grouped-query attention with
rotary positions, SwiGLU, no biases, input and output embedding tied), because every GGUF
engine runs that. Rotary positions use the half-split form here (fast in torch);
`model_file.py` reorders the rows of Wq and Wk into the interleaved form of llama.cpp's "llama" architecture.

Shapes: B sequences of T tokens, D width, V vocabulary, H heads, K key/value heads, R head dimension.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Shape:
    """Hold the numbers that fix a network; all widths are multiples of 32 so that Q8_0 blocks fit."""

    width: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int = 4096
    context: int = 2048
    rope_theta: float = 10000.0
    eps: float = 1e-5


class RMSNorm(nn.Module):
    """Scale each row to unit root mean square, then by a learned weight (D)."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.weight.to(x.dtype), self.eps)


def rotary(shape: Shape) -> tuple[Tensor, Tensor]:
    """Return cosines and sines of every position, each (context, R/2)."""
    exponent = torch.arange(0, shape.head_dim, 2, dtype=torch.float32) / shape.head_dim
    angle = torch.outer(torch.arange(shape.context, dtype=torch.float32), shape.rope_theta**-exponent)
    return angle.cos(), angle.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the pairs (i, i + R/2) of x (B, heads, T, R) by the angles of their positions (T, R/2)."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)


class NetworkBlock(nn.Module):
    """Add attention, then a gated feed-forward step, to the residual stream (B, T, D)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.add_weights(shape, shape.width)

    def add_weights(self, shape: Shape, into: int) -> None:
        """Add the weights; attention reads rows of `into` numbers."""
        self.shape = shape
        inner = shape.heads * shape.head_dim
        kv = shape.kv_heads * shape.head_dim
        self.attn_norm = RMSNorm(shape.width, shape.eps)
        self.wq = nn.Linear(into, inner, bias=False)
        self.wk = nn.Linear(into, kv, bias=False)
        self.wv = nn.Linear(into, kv, bias=False)
        self.wo = nn.Linear(inner, shape.width, bias=False)
        self.ffn_norm = RMSNorm(shape.width, shape.eps)
        self.gate = nn.Linear(shape.width, shape.ffn, bias=False)
        self.up = nn.Linear(shape.width, shape.ffn, bias=False)
        self.down = nn.Linear(shape.ffn, shape.width, bias=False)

    def read(self, y: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values of rows (B, T, into), each (B, H, T, R)."""
        s = self.shape
        b, t, _ = y.shape
        q = rotate(self.wq(y).view(b, t, s.heads, s.head_dim).transpose(1, 2), cos, sin)
        k = rotate(self.wk(y).view(b, t, s.kv_heads, s.head_dim).transpose(1, 2), cos, sin)
        v = self.wv(y).view(b, t, s.kv_heads, s.head_dim).transpose(1, 2)
        k, v = (part.repeat_interleave(s.heads // s.kv_heads, dim=1) for part in (k, v))
        return q, k, v

    def add(self, x: Tensor, mixed: Tensor) -> Tensor:
        """Add to the stream what attention mixed (B, H, T, R), and the feed-forward step."""
        x = x + self.wo(mixed.transpose(1, 2).flatten(2))
        h = self.ffn_norm(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        q, k, v = self.read(self.attn_norm(x), cos, sin)
        return self.add(x, F.scaled_dot_product_attention(q, k, v, is_causal=True))


class Llama(nn.Module):
    """Map token ids (B, T) to logits (B, T, V)."""

    cos: Tensor
    sin: Tensor

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embed = nn.Embedding(shape.vocab, shape.width)
        self.blocks = nn.ModuleList(NetworkBlock(shape) for _ in range(shape.layers))
        self.norm = RMSNorm(shape.width, shape.eps)
        cos, sin = rotary(shape)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self.initialise()

    def layers(self) -> list[NetworkBlock]:
        """Return the blocks, first to last."""
        return [block for block in self.blocks if isinstance(block, NetworkBlock)]

    def initialise(self) -> None:
        """Draw weights; every layer adds nothing at first, so the first loss is near ln V."""
        nn.init.normal_(self.embed.weight, std=self.shape.width**-0.5)
        for block in self.blocks:
            for name, weight in block.named_parameters():
                if name.startswith(("wo", "down")):
                    nn.init.zeros_(weight)
                elif weight.ndim == 2:
                    nn.init.normal_(weight, std=weight.shape[1] ** -0.5)

    def hidden(self, ids: Tensor) -> Tensor:
        """Return the normed last layer (B, T, D)."""
        x = self.embed(ids)
        cos, sin = self.cos[: ids.shape[1]], self.sin[: ids.shape[1]]
        device = ids.device.type
        if torch.is_autocast_enabled(device):
            kind = torch.get_autocast_dtype(device)
            x, cos, sin = x.to(kind), cos.to(kind), sin.to(kind)
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.norm(x)

    def forward(self, ids: Tensor) -> Tensor:
        return F.linear(self.hidden(ids), self.embed.weight)


def count_parameters(model: nn.Module) -> int:
    """Count the weights, the tied embedding once."""
    return sum(p.numel() for p in model.parameters())
