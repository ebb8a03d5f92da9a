"""Let a target in torch continue many prompts side by side, and record its states and rows.

`listen.py` does the same through llama.cpp and for every target; this is for llama-shaped ones, on GPUs too.
The weights are those of the GGUF file; products have 16 bits, so rows differ a little from llama.cpp's
(SmolLM2 Q4_1: about 0.03 of total variation).

A text has a slot. When one ends, another prompt takes its place; longer ones are kept for later
slots, because slots that attend together have the room of the longest.
"""

from bisect import insort
from collections.abc import Iterable, Iterator
from itertools import islice

import torch
import torch.nn.functional as F
from torch import Tensor

from edgespec_models.distill.heard import TOP, Heard, id_type
from edgespec_models.distill.listen import TextInProgress
from edgespec_models.distill.network import Llama, NetworkBlock, rotate
from edgespec_models.distill.progress import Wish
from edgespec_models.distill.rows import best_of, draw
from edgespec_models.distill.saying import Saying

GROUP = 16  # slots that attend together, over the positions of the longest
BLOCK = 64  # positions by which their room grows: products of a part of it would copy that first
WAITING = 64  # prompts among which a slot finds a fitting one
SURE = 16  # scores that are computed with all bits beside the TOP


class Layer:
    """Hold a block's matrices as `kind`, and keys and values of each GROUP (slots, kv heads, room, R)."""

    def __init__(self, block: NetworkBlock, width: int, kind: torch.dtype) -> None:
        s = self.shape = block.shape
        self.norms = [norm.weight.detach().float() for norm in (block.attn_norm, block.ffn_norm)]
        together = torch.cat([w.weight.detach() for w in (block.wq, block.wk, block.wv)])
        self.qkv, self.wo = together.to(kind), block.wo.weight.detach().to(kind)
        self.gate_up = torch.cat((block.gate.weight.detach(), block.up.weight.detach())).to(kind)
        self.down = block.down.weight.detach().to(kind)
        sizes = [min(GROUP, width - i) for i in range(0, width, GROUP)]
        none = [self.wo.new_zeros(n, s.kv_heads, 0, s.head_dim) for n in sizes]
        self.keys, self.values = none, list(none)

    def fit(self, group: int, room: int) -> None:
        """Give a group room for so many positions; what is beyond them goes."""
        for held in (self.keys, self.values):
            more = max(0, room - held[group].shape[2])
            held[group] = F.pad(held[group][:, :, :room], (0, 0, 0, more)).contiguous()

    def split(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values (B, heads, T, R) of a stream (B, T, D)."""
        s = self.shape
        h = F.rms_norm(x, x.shape[-1:], self.norms[0], s.eps).to(self.qkv.dtype)
        heads = F.linear(h, self.qkv).unflatten(-1, (-1, s.head_dim)).transpose(1, 2)
        q, k, v = heads.split((s.heads, s.kv_heads, s.kv_heads), 1)
        return rotate(q, cos, sin), rotate(k, cos, sin), v

    def read(self, x: Tensor, cos: Tensor, sin: Tensor, slot: int) -> Tensor:
        """Let a prompt (1, T, D) take a slot; return the stream after the block."""
        q, k, v = self.split(x, cos, sin)
        group, place = divmod(slot, GROUP)
        self.keys[group][place, :, : x.shape[1]], self.values[group][place, :, : x.shape[1]] = k[0], v[0]
        return self.leave(x, F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True))

    def go_on(self, x: Tensor, cos: Tensor, sin: Tensor, places: Tensor, far: list[Tensor]) -> Tensor:
        """Add one token to every slot (W, 1, D) at its position (W); return the stream after the block.

        `far` has for each GROUP what is added to scores (slots, 1, 1, room).
        """
        s, width, mixed = self.shape, len(x), []
        q, k, v = self.split(x, cos, sin)
        parts = (part.split(GROUP) for part in (q.view(width, s.kv_heads, -1, s.head_dim), k, v, places))
        for keys, values, away, q, k, v, at in zip(self.keys, self.values, far, *parts, strict=True):
            slots = torch.arange(len(at), device=at.device)
            keys[slots, :, at], values[slots, :, at] = k[:, :, 0], v[:, :, 0]
            scores = (keys @ q.transpose(2, 3)).transpose(2, 3)  # half the time of q @ keys'
            mixed.append((scores.float() * s.head_dim**-0.5 + away).softmax(-1).to(v.dtype) @ values)
        return self.leave(x, torch.cat(mixed).view(width, s.heads, 1, s.head_dim))

    def leave(self, x: Tensor, mixed: Tensor) -> Tensor:
        """Add to a stream (B, T, D) the output of attention (B, heads, T, R), and the feed-forward step."""
        x = x + F.linear(mixed.transpose(1, 2).flatten(2), self.wo)
        h = F.rms_norm(x, x.shape[-1:], self.norms[1], self.shape.eps).to(self.down.dtype)
        gate, up = F.linear(h, self.gate_up).chunk(2, -1)
        return x + F.linear(F.silu(gate) * up, self.down)


class Choir:
    """Hold a target that continues `width` texts."""

    def __init__(
        self, network: Llama, taps: tuple[int, ...], width: int, kind: torch.dtype = torch.bfloat16
    ) -> None:
        self.taps, self.shape, self.width = taps, network.shape, width
        self.layers = [Layer(block, width, kind) for block in network.layers()]
        self.embed, self.norm = network.embed.weight.detach().float(), network.norm.weight.detach().float()
        self.output = self.embed.to(kind)
        self.cos, self.sin = network.cos.to(kind), network.sin.to(kind)

    def behind(self, x: Tensor, tapped: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Return the normed end of streams (B, T, D) at their last positions, and all states (B, T, F)."""
        states = torch.cat([tapped[i] for i in self.taps], -1) if self.taps else x
        return F.rms_norm(x[:, -1], x.shape[-1:], self.norm, self.shape.eps), states.half()

    def fit(self, group: int, places: int) -> int:
        """Give a group room for so many positions, and at most two blocks more; return the room."""
        had = self.layers[0].keys[group].shape[2]
        if places <= had < places + 2 * BLOCK:
            return had
        room = -(-places // BLOCK) * BLOCK
        for layer in self.layers:
            layer.fit(group, room)
        return room

    def read(self, prompt: list[int], slot: int) -> tuple[Tensor, Tensor]:
        """Put a prompt into a slot; return its normed end (1, D), and the states of its tokens (n, F)."""
        group = slot // GROUP
        self.fit(group, max(len(prompt), self.layers[0].keys[group].shape[2]))
        cos, sin = self.cos[: len(prompt)], self.sin[: len(prompt)]
        x, tapped = self.embed[torch.tensor([prompt], device=self.embed.device)], []
        for layer in self.layers:
            tapped.append(x)
            x = layer.read(x, cos, sin, slot)
        end, states = self.behind(x, tapped)
        return end, states[0]

    def go_on(self, tokens: list[int], places: list[int]) -> tuple[Tensor, Tensor]:
        """Add a token to every slot at its position; return normed ends (W, D) and states (W, F)."""
        ids, at = (torch.tensor(part, device=self.embed.device) for part in (tokens, places))
        cos, sin = (angle[at][:, None, None] for angle in (self.cos, self.sin))
        far = []
        for i, part in enumerate(at.split(GROUP)):
            room = self.fit(i, int(part.max()) + 1)
            seen = torch.arange(room, device=at.device) <= part[:, None]
            far.append(torch.zeros_like(seen, dtype=torch.float32).masked_fill_(~seen, -1e9)[:, None, None])
        x, tapped = self.embed[ids][:, None], []
        for layer in self.layers:
            tapped.append(x)
            x = layer.go_on(x, cos, sin, at, far)
        end, states = self.behind(x, tapped)
        return end, states[:, 0]

    def rows(self, end: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return what comes next after normed ends (n, D): TOP ids and probabilities, best first, and scores.

        The best scores (n, V) have all bits: 16 would leave ties at the top.
        """
        scores = F.linear(end.to(self.output.dtype), self.output).float()
        likely = scores.topk(min(TOP + SURE, scores.shape[1])).indices
        exact = (self.embed[likely] @ end[:, :, None])[..., 0]
        scores.scatter_(1, likely, exact)
        return *best_of(scores), scores


class Singer:
    """Give every slot of a choir its texts, one after another."""

    def __init__(self, choir: Choir, ends: set[int], seed: int) -> None:
        self.choir, self.ends = choir, ends
        self.noise = torch.Generator(choir.embed.device).manual_seed(seed)
        self.kind = id_type(choir.shape.vocab)

    def take(self, slots: list[TextInProgress], end: Tensor, states: list[Tensor]) -> None:
        """Give each slot its states (tokens, F), its row, and the token drawn from it, of ends (n, D)."""
        ids, p, scores = self.choir.rows(end)
        temperatures = torch.tensor([slot.saying.temperature for slot in slots], device=end.device)
        drawn = draw(scores, ids[:, 0], temperatures, self.noise).tolist()
        top_ids, top_p = ids.cpu().numpy().astype(self.kind), p.half().cpu().numpy()
        for i, slot in enumerate(slots):
            slot.states.append(states[i].numpy())
            slot.top_ids.append(top_ids[i])
            slot.top_p.append(top_p[i])
            slot.ids.append(drawn[i])

    def begin(self, saying: Saying, number: int) -> TextInProgress:
        """Read a prompt into a slot."""
        end, states = self.choir.read(saying.prompt, number)
        slot = TextInProgress(saying, list(saying.prompt))
        self.take([slot], end, [states.cpu()])
        return slot

    def step(self, slots: list[TextInProgress | None]) -> None:
        """Let every slot that has a text write one more token."""
        tokens = [slot.ids[-1] if slot else 0 for slot in slots]
        end, states = self.choir.go_on(tokens, [len(slot.ids) - 1 if slot else 0 for slot in slots])
        busy = [i for i, slot in enumerate(slots) if slot]
        told = states.cpu()
        self.take([s for s in slots if s], end[busy], [told[i : i + 1] for i in busy])


@torch.inference_mode()
def sing(
    choir: Choir, sayings: Iterable[Saying], ends: set[int], seed: int, stop: Wish | None = None
) -> Iterator[Heard]:
    """Yield every text when it has ended; if a stop is requested, texts end where they are."""
    singer, coming = Singer(choir, ends, seed), iter(sayings)
    waiting: list[Saying] = []  # by length
    slots: list[TextInProgress | None] = [None] * choir.width
    while True:
        for i, slot in enumerate(slots):
            while slot is None or slot.ended(ends):
                if slot:
                    yield slot.heard()
                if stop and stop.wanted:
                    waiting, coming = [], iter(())
                for saying in islice(coming, WAITING - len(waiting)):
                    insort(waiting, saying, key=lambda one: len(one.prompt))
                if not waiting:
                    slot = slots[i] = None
                    break
                slot = slots[i] = singer.begin(waiting.pop(i * len(waiting) // choir.width), i)
        if not any(slots):
            return
        if stop and stop.wanted:
            yield from (slot.heard() for slot in slots if slot)
            return
        singer.step(slots)
