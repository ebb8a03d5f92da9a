"""Let a target in torch continue many prompts side by side, and write down what it shows.

For GPUs; `listen.py` does the same through llama.cpp. The weights are those of the GGUF file; the activations
are not rounded as llama.cpp rounds them, so rows differ a little (SmolLM2 Q4_1: about 0.03 of total
variation). Prompts are padded at their left, where nothing looks.
"""

from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from edgespec_models.distill.heard import TOP, Heard, id_type
from edgespec_models.distill.listen import Saying
from edgespec_models.distill.network import Llama
from recipes.chorus import Cache, attend, choose, surroundings


def evaluate(
    network: Llama, ids: Tensor, caches: list[Cache], start: int, pad: Tensor, taps: tuple[int, ...]
) -> tuple[Tensor, Tensor]:
    """Return the last place's logits (B, V), and the states (B, T, F) of ids (B, T) at `start`.

    States are the inputs of the layers `taps`, or without any what is behind the last.
    """
    cos, sin, mask = surroundings(network, ids, start, pad)
    x = network.embed(ids)
    tapped: dict[int, Tensor] = {}
    for i, (block, cache) in enumerate(zip(network.layers(), caches, strict=True)):
        tapped[i] = x
        x = x + attend(block, block.attn_norm(x), cos.to(x.dtype), sin.to(x.dtype), cache, start, mask)
        h = block.ffn_norm(x)
        x = x + block.down(F.silu(block.gate(h)) * block.up(h))
    states = torch.cat([tapped[i] for i in taps], -1) if taps else x
    return F.linear(network.norm(x[:, -1]), network.embed.weight).float(), states


@torch.inference_mode()
def together(
    network: Llama, sayings: list[Saying], taps: tuple[int, ...], ends: set[int], noise: torch.Generator
) -> Iterator[Heard]:
    """Yield the texts that continue some prompts, all at once."""
    weight, s = network.embed.weight, network.shape
    longest, limit = max(len(x.prompt) for x in sayings), max(x.limit for x in sayings)
    pad = torch.tensor([longest - len(x.prompt) for x in sayings], device=weight.device)
    ids = torch.tensor([[0] * (longest - len(x.prompt)) + x.prompt for x in sayings], device=weight.device)
    temperature = torch.tensor([x.temperature for x in sayings], device=weight.device)
    room = (len(sayings), s.kv_heads, longest + limit, s.head_dim)
    caches = [Cache(weight.new_zeros(room), weight.new_zeros(room)) for _ in network.layers()]
    logits, first = evaluate(network, ids, caches, 0, pad, taps)
    states, top_ids, top_p = [first.half()], [], []
    stop = torch.tensor(sorted(ends), device=weight.device)
    ended = torch.zeros(len(sayings), dtype=torch.bool, device=weight.device)
    for place in range(longest, longest + limit):
        p, best = logits.softmax(-1).topk(TOP)
        top_ids.append(best)
        top_p.append(p.half())
        token = choose(logits, temperature, noise)[:, None]
        ids = torch.cat((ids, token), 1)
        ended |= torch.isin(token[:, 0], stop)
        if ended.all() or place == longest + limit - 1:
            break
        logits, state = evaluate(network, token, caches, place, pad, taps)
        states.append(state.half())
    found = torch.cat(states, 1).cpu().numpy()
    chosen, shares = torch.stack(top_ids, 1).cpu().numpy(), torch.stack(top_p, 1).cpu().numpy()
    kind = id_type(s.vocab)
    for i, (saying, row) in enumerate(zip(sayings, ids.tolist(), strict=True)):
        said = row[longest : longest + saying.limit]
        count = next((n for n, token_id in enumerate(said, 1) if token_id in ends), len(said))
        begin = longest - len(saying.prompt)
        yield Heard(
            np.asarray(row[begin : longest + count], kind),
            len(saying.prompt),
            saying.temperature,
            found[i, begin : longest + count - 1],
            chosen[i, :count].astype(kind),
            shares[i, :count],
        )


def sing(
    network: Llama, sayings: list[Saying], taps: tuple[int, ...], ends: set[int], width: int, seed: int
) -> Iterator[Heard]:
    """Yield every text, `width` prompts of similar length at a time."""
    noise = torch.Generator(network.embed.weight.device).manual_seed(seed)
    order = sorted(sayings, key=lambda x: len(x.prompt))
    for i in range(0, len(order), width):
        yield from together(network, order[i : i + width], taps, ends, noise)
