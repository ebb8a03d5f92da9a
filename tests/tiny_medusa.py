"""Write Medusa heads for tests, random ones or fitted to what a tiny target writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tiny_gguf as tiny
from gguf import GGUFWriter
from numpy.typing import NDArray

from edgespec.core.loop import Want
from edgespec.core.request import Request
from edgespec.engine.pair import Pair
from edgespec.llama.context import Context, ContextSettings
from edgespec.llama.heads.taps import tap_outputs
from edgespec.llama.model import Model
from edgespec.pairs.settings import PairSettings
from edgespec.sampling.sampler import Sampling

N_VOCAB, HEADS, D = 512, 3, 64
Floats = NDArray[np.float32]


def write_medusa(
    path: Path, *, d: int = D, n_vocab: int = N_VOCAB, d2t: Sequence[int] | None = None,
    tensors: Mapping[str, Floats | None] | None = None, metadata: Mapping[str, Any] | None = None,
) -> Path:  # fmt: skip
    """Write random heads and return `path`; `tensors` adds, replaces or, given None, leaves out."""
    writer, rng = GGUFWriter(path, "medusa"), np.random.default_rng(3)
    writer.add_embedding_length(d)
    writer.add_uint32("medusa.head_count", HEADS)
    tiny.add_vocabulary(writer, tiny.make_vocabulary(n_vocab), None)
    tiny.add_metadata(writer, metadata or {})
    rows = n_vocab if d2t is None else len(d2t)
    made: dict[str, Floats | None] = {"output.weight": rng.standard_normal((rows, d)).astype(np.float32)}
    for i in range(HEADS):
        made[f"head.{i}.weight"] = rng.standard_normal((d, d)).astype(np.float32)
        made[f"head.{i}.bias"] = np.zeros(d, np.float32)
    if d2t is not None:
        writer.add_tensor("d2t", np.array(d2t, np.int64))
    changed = {name: tensor for name, tensor in (made | dict(tensors or {})).items() if tensor is not None}
    tiny.finish(writer, changed, "F32")
    return path


def write_fitted(target: Path, path: Path, prompts: Sequence[NDArray[np.int32]]) -> Path:
    """Write heads that were fitted to a target's greedy answers, by least squares."""
    texts = []
    with Pair(target, settings=PairSettings(remember=False, head=False)) as pair:
        for ids in prompts:
            request = Request(Sampling(temperature=0), max_tokens=100, drafter="none")
            answer = [token for round_ in pair.generate(ids, request) for token in round_.tokens]
            texts.append(np.append(ids, np.array(answer, np.int32)))
    with Model(target) as model, Context(model, ContextSettings(n_ctx=256, n_rows=200)) as context:
        tap, switch = tap_outputs(context.handle, D)
        rows = context.keep_hidden(tap, D, switch=switch, kept=200)
        states = []
        for text in texts:
            context.clear()
            context.score([Want(text, (), text.size)])
            states.append(rows.between(0, 0, text.size))
    output = np.random.default_rng(4).standard_normal((N_VOCAB, D)).astype(np.float32)
    output -= output.mean(1, keepdims=True)  # so that the bias below adds nothing
    found: dict[str, Floats] = {"output.weight": output}
    for i in range(HEADS):
        x = np.concatenate([of[: -2 - i] for of in states])
        wanted = output[np.concatenate([text[2 + i :] for text in texts])] - x
        found[f"head.{i}.weight"] = np.ascontiguousarray(np.linalg.lstsq(x, wanted)[0].T, np.float32)
        found[f"head.{i}.bias"] = np.full(D, 30, np.float32)  # SiLU of much is as much
    return write_medusa(path, d=D, tensors=found)
