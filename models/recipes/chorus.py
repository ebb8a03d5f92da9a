"""Let a network in torch continue many prompts side by side.

`said.py` asks llama.cpp, a row of logits at a time, which is what a machine without a GPU can do best. Here
the shipped target, read back into torch (`restore.py`), answers for a whole batch in one step, so that a
GPU is busy. Prompts of a batch are of similar length and padded at their left, where nothing looks.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

import torch
import torch.nn.functional as F
from torch import Tensor

from recipes.model import Block, Llama, rotate
from recipes.said import TOP, Text

ROWS = 256  # prompts side by side
AHEAD = 32  # batches that are sorted by length together
NEW = 136  # tokens after a prompt; the measurements go to 128


@dataclass(frozen=True, slots=True)
class Cache:
    """Hold the keys and values of one layer, each (B, kv heads, C, R)."""

    keys: Tensor
    values: Tensor


def attend(
    block: Block, x: Tensor, cos: Tensor, sin: Tensor, cache: Cache, start: int, mask: Tensor
) -> Tensor:
    """Mix x (B, T, D) with what the cache holds before `start`; mask is (B, 1, T, start + T)."""
    s = block.shape
    b, t, _ = x.shape
    end = start + t
    q = rotate(block.wq(x).view(b, t, s.heads, s.head_dim).transpose(1, 2), cos, sin)
    cache.keys[:, :, start:end] = rotate(
        block.wk(x).view(b, t, s.kv_heads, s.head_dim).transpose(1, 2), cos, sin
    )
    cache.values[:, :, start:end] = block.wv(x).view(b, t, s.kv_heads, s.head_dim).transpose(1, 2)
    k, v = cache.keys[:, :, :end], cache.values[:, :, :end]
    if t == 1:  # the heads of a group as places: nothing of the cache is copied
        y = F.scaled_dot_product_attention(q.view(b, s.kv_heads, -1, s.head_dim), k, v, attn_mask=mask)
    else:
        k, v = (part.repeat_interleave(s.heads // s.kv_heads, dim=1) for part in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2)
    return block.wo(y.reshape(b, t, s.heads * s.head_dim))


def evaluate(model: Llama, ids: Tensor, caches: list[Cache], start: int, pad: Tensor) -> Tensor:
    """Return the logits (B, V) after ids (B, T) at `start`; the first `pad` (B) places are empty."""
    places = torch.arange(start, start + ids.shape[1], device=ids.device)
    keys = torch.arange(start + ids.shape[1], device=ids.device)
    seen = (keys <= places[:, None]) & (keys >= pad[:, None, None])  # (B, T, start + T)
    mask = (seen | (keys == places[:, None]))[:, None]  # padding sees itself: a row of nothing is no number
    positions = (places - pad[:, None]).clamp_min(0)  # (B, T)
    cos, sin = (angle[positions][:, None] for angle in (model.cos, model.sin))  # (B, 1, T, R/2)
    x = model.embed(ids)
    for block, cache in zip(model.layers(), caches, strict=True):
        x = x + attend(block, block.attn_norm(x), cos, sin, cache, start, mask)
        h = block.ffn_norm(x)
        x = x + block.down(F.silu(block.gate(h)) * block.up(h))
    return F.linear(model.norm(x[:, -1]), model.embed.weight)


def choose(logits: Tensor, temperature: Tensor, noise: torch.Generator) -> Tensor:
    """Draw a token for each row (V); temperature 0 takes the most likely."""
    draws = torch.empty_like(logits).exponential_(generator=noise).clamp_min(1e-30)
    return (logits - temperature[:, None] * draws.log()).argmax(-1)


@torch.inference_mode()
def together(model: Llama, prompts: list[list[int]], ends: set[int], noise: torch.Generator) -> list[Text]:
    """Continue prompts by NEW tokens, or to their end: every fifth at temperature 0.8, the rest greedy."""
    device = model.embed.weight.device
    s = model.shape
    longest = max(map(len, prompts))
    pad = torch.tensor([longest - len(p) for p in prompts], device=device)
    ids = torch.tensor([[0] * (longest - len(p)) + p for p in prompts], device=device)
    texts = [Text(list(p), len(p), 0.8 if i % 5 == 4 else 0.0) for i, p in enumerate(prompts)]
    temperature = torch.tensor([t.temperature for t in texts], device=device)
    room = (len(prompts), s.kv_heads, longest + NEW, s.head_dim)
    kind = model.embed.weight.dtype
    caches = [
        Cache(*(torch.zeros(room, dtype=kind, device=device) for _ in range(2))) for _ in model.layers()
    ]
    said, best_ids, best_p = [], [], []
    start = 0
    stop = torch.tensor(sorted(ends), device=device)
    ended = torch.zeros(len(prompts), dtype=torch.bool, device=device)
    for _ in range(NEW):
        logits = evaluate(model, ids, caches, start, pad)
        best = logits.softmax(-1).topk(TOP)
        start += ids.shape[1]
        ids = choose(logits, temperature, noise)[:, None]
        said.append(ids)
        best_ids.append(best.indices)
        best_p.append(best.values)
        ended |= torch.isin(ids[:, 0], stop)
        if ended.all():
            break
    rows = torch.cat(said, 1).tolist()
    top_ids = torch.stack(best_ids, 1).cpu().numpy().astype("uint16")
    top_p = torch.stack(best_p, 1).cpu().numpy().astype("float16")
    for i, (text, row) in enumerate(zip(texts, rows, strict=True)):
        count = next((n for n, token in enumerate(row, 1) if token in ends), len(row))
        text.ids += row[:count]
        text.top_ids, text.top_p = list(top_ids[i, :count]), list(top_p[i, :count])
    return texts


def sing(model: Llama, prompts: Iterable[list[int]], ends: set[int], seed: int) -> Iterator[Text]:
    """Continue every prompt, ROWS of similar length at a time."""
    noise = torch.Generator(model.embed.weight.device).manual_seed(seed)
    stream = iter(prompts)
    while some := sorted(islice(stream, ROWS * AHEAD), key=len):
        for i in range(0, len(some), ROWS):
            yield from together(model, some[i : i + ROWS], ends, noise)
