"""Let a network in torch continue many prompts side by side.

The exported target, read back into torch (`restore.py`), answers for a whole batch in one step, which keeps
a processor busy and a GPU too. Prompts of a batch are of similar length and padded at the left, where
nothing looks.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from edgespec_models.distill.network import Llama, NetworkBlock, rotate
from recipes.said import TOP, Text

ROWS = 256  # prompts side by side
PART = 32  # of them whose prompts are read at once: logits of every position take room
AHEAD = 32  # batches that are sorted by length together
NEW = 136  # tokens after a prompt; the measurements go to 128


@dataclass(frozen=True, slots=True)
class LayerCache:
    """Hold the keys and values of one layer, each (B, kv heads, C, R)."""

    keys: Tensor
    values: Tensor


def attend(
    block: NetworkBlock, x: Tensor, cos: Tensor, sin: Tensor, cache: LayerCache, start: int, mask: Tensor
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
    if t == 1:  # the heads of a group as positions: nothing of the cache is copied
        y = F.scaled_dot_product_attention(q.view(b, s.kv_heads, -1, s.head_dim), k, v, attn_mask=mask)
    else:
        k, v = (part.repeat_interleave(s.heads // s.kv_heads, dim=1) for part in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2)
    return block.wo(y.reshape(b, t, s.heads * s.head_dim))


def surroundings(model: Llama, ids: Tensor, start: int, pad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return cosines and sines (B, 1, T, R/2) of ids (B, T) at `start`, and what each may see.

    The first `pad` (B) positions are empty. The mask is (B, 1, T, start + T).
    """
    places = torch.arange(start, start + ids.shape[1], device=ids.device)
    keys = torch.arange(start + ids.shape[1], device=ids.device)
    seen = (keys <= places[:, None]) & (keys >= pad[:, None, None])
    mask = (seen | (keys == places[:, None]))[:, None]  # padding sees itself: a row of nothing is no number
    positions = (places - pad[:, None]).clamp_min(0)  # (B, T)
    cos, sin = (angle[positions][:, None] for angle in (model.cos, model.sin))
    return cos, sin, mask


def evaluate(model: Llama, ids: Tensor, caches: list[LayerCache], start: int, pad: Tensor) -> Tensor:
    """Return the logits (B, T, V) after ids (B, T) at `start`; the first `pad` (B) positions are empty."""
    cos, sin, mask = surroundings(model, ids, start, pad)
    x = model.embed(ids)
    for block, cache in zip(model.layers(), caches, strict=True):
        x = x + attend(block, block.attn_norm(x), cos, sin, cache, start, mask)
        h = block.ffn_norm(x)
        x = x + block.down(F.silu(block.gate(h)) * block.up(h))
    return F.linear(model.norm(x), model.embed.weight)


def choose(logits: Tensor, temperature: Tensor, noise: torch.Generator) -> Tensor:
    """Draw a token for each row (V); temperature 0 takes the most likely."""
    draws = torch.empty_like(logits).exponential_(generator=noise).clamp_min(1e-30)
    return (logits - temperature[:, None] * draws.log()).argmax(-1)


def best_of(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return ids and probabilities of the TOP most likely tokens of every row, best first."""
    p, ids = logits.softmax(-1).topk(TOP)
    return ids, p


@torch.inference_mode()
def together(model: Llama, prompts: list[list[int]], ends: set[int], noise: torch.Generator) -> list[Text]:
    """Continue prompts by NEW tokens, or to their end: every fifth at temperature 0.8, the rest greedy."""
    device, s = model.embed.weight.device, model.shape
    longest = max(map(len, prompts))
    pad = torch.tensor([longest - len(p) for p in prompts], device=device)
    ids = torch.tensor([[0] * (longest - len(p)) + p for p in prompts], device=device)
    temperature = torch.tensor([0.8 if i % 5 == 4 else 0.0 for i in range(len(prompts))], device=device)
    room = (len(prompts), s.kv_heads, longest + NEW, s.head_dim)
    caches = [
        LayerCache(torch.zeros(room, device=device), torch.zeros(room, device=device)) for _ in model.layers()
    ]
    lasts, found = [], []
    for i in range(0, len(prompts), PART):
        part = slice(i, i + PART)
        logits = evaluate(
            model, ids[part], [LayerCache(c.keys[part], c.values[part]) for c in caches], 0, pad[part]
        )
        lasts.append(logits[:, -1])
        found.append(best_of(logits))
    best = [tuple(torch.cat(parts) for parts in zip(*found, strict=True))]  # (B, T, TOP) each
    logits = torch.cat(lasts)
    stop = torch.tensor(sorted(ends), device=device)
    ended = torch.zeros(len(prompts), dtype=torch.bool, device=device)
    for place in range(longest, longest + NEW):
        token = choose(logits, temperature, noise)[:, None]
        ids = torch.cat((ids, token), 1)
        ended |= torch.isin(token[:, 0], stop)
        if ended.all():
            break
        row = evaluate(model, token, caches, place, pad)
        logits = row[:, -1]
        best.append(best_of(row))
    top_ids, top_p = (torch.cat(parts, 1).cpu().numpy() for parts in zip(*best, strict=True))
    texts = []
    for i, (prompt, row_ids) in enumerate(zip(prompts, ids.tolist(), strict=True)):
        said = row_ids[longest:]
        count = next((n for n, token_id in enumerate(said, 1) if token_id in ends), len(said))
        places = slice(longest - len(prompt), longest + count - 1)
        top = top_ids[i, places].astype(np.uint16), top_p[i, places].astype(np.float16)
        texts.append(Text(prompt + said[:count], len(prompt), float(temperature[i]), *top))
    return texts


def sing(model: Llama, prompts: Iterable[list[int]], ends: set[int], seed: int) -> Iterator[Text]:
    """Continue every prompt, ROWS of similar length at a time."""
    noise = torch.Generator(model.embed.weight.device).manual_seed(seed)
    stream = iter(prompts)
    while some := sorted(islice(stream, ROWS * AHEAD), key=len):
        for i in range(0, len(some), ROWS):
            yield from together(model, some[i : i + ROWS], ends, noise)
