"""Make the projector with which the embedded target sees: shapes and their colours.

A small vision transformer, as llama.cpp's `janus_pro` (SigLIP's tower and two matrices), which needs no marks
around a picture and lets its cells see only what is before them. The target stays as it is:

1. `words`: rows are learnt for each colour and each shape, whose sums make the target answer right;
2. `tower`: tower and matrices learn to give these sums for pictures, which needs no target;
3. `answers`: they learn through the target, for the rest.

Without the first stage, the third took hours to tell a question for the shape from one for the colour.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor, nn

from edgespec_models import tiny
from edgespec_models.gguf.written import write_gguf
from edgespec_models.kept_file import replacing
from edgespec_train.model_file import About, array, open_writer
from edgespec_train.network import Llama
from edgespec_train.progress import Log
from edgespec_train.recipes import shapes
from edgespec_train.recipes import tokenizer as tok
from edgespec_train.recipes.stages import SHIPPED, WorkFolders
from edgespec_train.recipes.template import render
from edgespec_train.start import read_llama
from edgespec_train.target_file import open_target

SIDE, PATCH, WIDTH, HEADS, FFN, LAYERS, EPS = 64, 16, 96, 3, 192, 4, 1e-6
CELLS = (SIDE // PATCH) ** 2
Scored = tuple[Tensor, float]  # a loss, and the share of what was right


@dataclass(frozen=True, slots=True)
class Plan:
    """How long a stage trains, and the learning rates of what it trains."""

    steps: int
    batch: int
    words: float = 0.0
    tower: float = 0.0
    projection: float = 0.0


PLANS = {
    "words": Plan(steps=600, batch=28, words=1e-2),
    "tower": Plan(steps=4000, batch=128, tower=6e-4, projection=3e-3),
    "answers": Plan(steps=140, batch=28, tower=1e-4, projection=3e-4),
}
DRAWN = 50_000
ABOUT = About("EdgeSpec tiny eye", "Lets the embedded target see shapes and their colours", "0.5M", "1.0")
MEDIUM = "<picture>"  # where a question has its picture, while texts are made


class EyeBlock(nn.Module):
    """Add attention of all patches to each other, then a feed-forward step (B, CELLS, WIDTH)."""

    def __init__(self) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(WIDTH, EPS), nn.LayerNorm(WIDTH, EPS)
        self.attn_q, self.attn_k, self.attn_v, self.attn_out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.ffn_up, self.ffn_down = nn.Linear(WIDTH, FFN), nn.Linear(FFN, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        h = self.ln1(x)
        q, k, v = (
            part(h).view(*h.shape[:2], HEADS, -1).transpose(1, 2)
            for part in (self.attn_q, self.attn_k, self.attn_v)
        )
        seen = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(h.shape)
        x = x + self.attn_out(seen)
        return x + self.ffn_down(F.gelu(self.ffn_up(self.ln2(x)), approximate="tanh"))


class Eye(nn.Module):
    """Turn pixels (B, SIDE, SIDE, 3) into rows of the target (B, CELLS, D)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.patch_embd = nn.Conv2d(3, WIDTH, PATCH, PATCH)
        self.position_embd = nn.Parameter(torch.randn(CELLS, WIDTH) * 0.1)
        self.blk = nn.ModuleList(EyeBlock() for _ in range(LAYERS))
        self.post_ln = nn.LayerNorm(WIDTH, EPS)
        self.mm = nn.ModuleList((nn.Linear(WIDTH, width), nn.Linear(width, width)))

    def tower(self, pixels: Tensor) -> Tensor:
        """Return what each patch holds (B, CELLS, WIDTH)."""
        x = self.patch_embd(pixels.permute(0, 3, 1, 2).float() / 127.5 - 1).flatten(2).transpose(1, 2)
        x = x + self.position_embd
        for block in self.blk:
            x = block(x)
        return self.post_ln(x)

    def rows(self, held: Tensor) -> Tensor:
        """Return the target's rows for what the patches hold."""
        first, second = self.mm
        return second(F.gelu(first(held), approximate="tanh"))

    def forward(self, pixels: Tensor) -> Tensor:
        return self.rows(self.tower(pixels))


class Words(nn.Module):
    """Give rows that stand for a colour and a shape (B, CELLS, D)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.both = nn.Parameter(torch.randn(CELLS, width) * 0.14)  # as the target's embedding has it
        self.colour = nn.Parameter(torch.randn(len(shapes.COLOURS), CELLS, width) * 0.07)
        self.shape = nn.Parameter(torch.randn(len(shapes.SHAPES), CELLS, width) * 0.07)

    def forward(self, kinds: Tensor) -> Tensor:
        return self.both + self.colour[kinds[:, 0]] + self.shape[kinds[:, 1]]


class Learner(nn.Module):
    """Hold what the stages train."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.words, self.eye = Words(width), Eye(width)
        self.classes = nn.ModuleList(
            (nn.Linear(WIDTH, len(shapes.COLOURS)), nn.Linear(WIDTH, len(shapes.SHAPES)))
        )

    def rated(self, plan: Plan) -> list[dict[str, Any]]:
        """Return the weights with the most of their learning rates."""
        tower = [weight for name, weight in self.eye.named_parameters() if not name.startswith("mm.")]
        tower += self.classes.parameters()
        rates = {
            plan.words: self.words.parameters(),
            plan.tower: tower,
            plan.projection: self.eye.mm.parameters(),
        }
        return [{"params": list(of), "most": rate} for rate, of in rates.items() if rate]


def drawn(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return pictures and the numbers of their colours and shapes (n, 2)."""
    rng = random.Random(seed)
    kinds = [(rng.randrange(len(shapes.COLOURS)), rng.randrange(len(shapes.SHAPES))) for _ in range(n)]
    names = [(list(shapes.COLOURS)[colour], shapes.SHAPES[shape]) for colour, shape in kinds]
    found = [shapes.pixels(shapes.draw(rng, *pair), SIDE) for pair in names]
    return torch.from_numpy(np.stack(found)), torch.tensor(kinds)


def turned(pixels: Tensor, rng: random.Random) -> Tensor:
    """Return pictures, mirrored or not: a shape stays what it is."""
    return pixels.flip(2) if rng.random() < 0.5 else pixels


def batch_of(tokenizer: Tokenizer, rng: random.Random, kinds: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Return the tokens of conversations, -1 for a picture's cells (B, T), and which are answers (B, T)."""
    rows, answers_at = [], []
    for colour, shape in kinds:
        row: list[int] = []
        answers: list[bool] = []
        for i, (question, answer) in enumerate(
            shapes.talk(rng, list(shapes.COLOURS)[colour], shapes.SHAPES[shape])
        ):
            asked = question if i else MEDIUM + question if rng.random() < 0.8 else question + MEDIUM
            text = render([{"role": "user", "content": asked}], add_generation_prompt=True)
            before, medium, after = text.partition(MEDIUM)
            parts = [tokenizer.encode(part).ids for part in (before, after)]
            prompt = [*parts[0], *([-1] * CELLS if medium else []), *parts[1]]
            reply = tokenizer.encode(answer + "<|im_end|>").ids
            end = tokenizer.encode("\n").ids
            row += prompt + reply + end
            answers += [False] * len(prompt) + [True] * len(reply) + [False] * len(end)
        rows.append(torch.tensor(row))
        answers_at.append(torch.tensor(answers))
    return (
        nn.utils.rnn.pad_sequence(rows, batch_first=True),
        nn.utils.rnn.pad_sequence(answers_at, batch_first=True),
    )


def answered(target: Llama, rows: Tensor, ids: Tensor, answers_at: Tensor) -> tuple[Tensor, Tensor]:
    """Return the logits before each token of the answers, and those tokens."""
    x = target.embed(ids.clamp_min(0))
    x = x.masked_scatter((ids < 0)[..., None], rows.to(x.dtype))
    cos, sin = target.cos[: ids.shape[1]], target.sin[: ids.shape[1]]
    for block in target.blocks:
        x = block(x, cos, sin)
    scores = F.linear(target.norm(x[:, :-1][answers_at[:, 1:]]), target.embed.weight).float()
    return scores, ids[:, 1:][answers_at[:, 1:]]


class School:
    """Hold the pictures, the target that is asked about them, and how a batch is scored in each stage."""

    def __init__(self, shipped: Path, plans: Mapping[str, Plan], n_drawn: int) -> None:
        self.plans, self.n_drawn = plans, n_drawn
        file = open_target(shipped / "target.gguf")
        self.target = read_llama(file).bfloat16().requires_grad_(False)
        self.tokenizer = tok.read_tokenizer(shipped / "target.gguf")
        self.pixels, self.kinds = drawn(n_drawn, 1)
        torch.manual_seed(1)
        self.learner = Learner(file.whole("embedding_length"))

    def words(self, rng: random.Random) -> Scored:
        kinds = self.kinds[rng.choices(range(self.n_drawn), k=self.plans["words"].batch)]
        return self._asked(self.learner.words(kinds), kinds, rng)

    def tower(self, rng: random.Random) -> Scored:
        some = rng.choices(range(self.n_drawn), k=self.plans["tower"].batch)
        kinds, eye = self.kinds[some], self.learner.eye
        held = eye.tower(turned(self.pixels[some], rng))
        with torch.no_grad():
            wanted = self.learner.words(kinds)
        loss = F.mse_loss(eye.rows(held), wanted) / wanted.var(0).mean()
        scores = [layer(held.mean(1)) for layer in self.learner.classes]
        for i, of in enumerate(scores):
            loss = loss + 0.2 * F.cross_entropy(of, kinds[:, i])
        return loss, min((of.argmax(1) == kinds[:, i]).float().mean().item() for i, of in enumerate(scores))

    def answers(self, rng: random.Random) -> Scored:
        some = rng.choices(range(self.n_drawn), k=self.plans["answers"].batch)
        return self._asked(self.learner.eye(turned(self.pixels[some], rng)), self.kinds[some], rng)

    def _asked(self, rows: Tensor, kinds: Tensor, rng: random.Random) -> Scored:
        ids, answers_at = batch_of(self.tokenizer, rng, kinds.tolist())
        scores, right = answered(self.target, rows, ids, answers_at)
        return F.cross_entropy(scores, right), (scores.argmax(1) == right).float().mean().item()


def learn(
    name: str, learner: Learner, plan: Plan, score: Callable[[random.Random], Scored], work: Path, log: Log
) -> None:
    """Train, or go on where it was stopped; `score` draws a batch with the generator of its step."""
    saved, kept = work / f"{name}.pt", {"step": 0}
    optimiser = torch.optim.AdamW(learner.rated(plan), weight_decay=0.01)
    if saved.exists():
        kept = torch.load(saved)
        learner.load_state_dict(kept["learner"])
        optimiser.load_state_dict(kept["optimiser"])
    for step in range(kept["step"], plan.steps):
        share = min(1.0, (step + 1) / 50, (plan.steps - step) / (0.6 * plan.steps))
        for group in optimiser.param_groups:
            group["lr"] = group["most"] * share
        loss, right = score(random.Random(f"{name} {step}"))
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(learner.parameters(), 1.0)
        optimiser.step()
        if step % 50 == 49 or step == plan.steps - 1:
            log(f"{name} {step + 1}: loss {loss.item():.3f}, {right:.3f} right")
            state = {"step": step + 1, "learner": learner.state_dict(), "optimiser": optimiser.state_dict()}
            with replacing(saved) as aside:
                torch.save(state, aside)


def make(
    place: WorkFolders,
    log: Log,
    shipped: Path = SHIPPED,
    *,
    plans: Mapping[str, Plan] = PLANS,
    n_drawn: int = DRAWN,
) -> None:
    """Run what is not done yet: the stages, and the file."""
    school = School(shipped, plans, n_drawn)
    log(f"{n_drawn:,} pictures are drawn")
    for name, score in (("words", school.words), ("tower", school.tower), ("answers", school.answers)):
        learn(name, school.learner, plans[name], score, place.work, log)
    place.out.mkdir(parents=True, exist_ok=True)
    made = place.out / tiny.projector_path().name
    write(school.learner.eye, made)
    log(f"done: {made}; tests/train/test_eye.py measures it where it ships")


def write(eye: Eye, path: Path) -> None:
    """Write the projector as llama.cpp's converter would: matrices as Q8_0, the rest as F32."""
    writer = open_writer("clip", ABOUT, "PSF-2.0")
    writer.add_type("mmproj")
    writer.add_clip_has_vision_encoder(True)
    writer.add_clip_projector_type("janus_pro")
    writer.add_vision_projection_dim(eye.mm[1].weight.shape[0])  # type: ignore[arg-type, index]
    writer.add_vision_image_size(SIDE)
    writer.add_vision_patch_size(PATCH)
    writer.add_vision_embedding_length(WIDTH)
    writer.add_vision_feed_forward_length(FFN)
    writer.add_vision_block_count(LAYERS)
    writer.add_vision_head_count(HEADS)
    writer.add_vision_image_mean([0.5] * 3)
    writer.add_vision_image_std([0.5] * 3)
    writer.add_vision_attention_layernorm_eps(EPS)
    writer.add_vision_use_gelu(True)
    for name, weight in eye.state_dict().items():
        whole = "." not in name  # a parameter of its own
        exact = whole or weight.ndim != 2
        kind = gguf.GGMLQuantizationType.F32 if exact else gguf.GGMLQuantizationType.Q8_0
        data = gguf.quants.quantize(array(weight), kind)
        of = name + ".weight" * whole
        writer.add_tensor(of if of.startswith("mm.") else f"v.{of}", data, raw_dtype=kind)
    write_gguf(writer, path)
