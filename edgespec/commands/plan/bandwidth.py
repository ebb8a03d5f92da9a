"""How fast this machine reads weights: a child evaluates a small model that was grown for it.

What an evaluation costs depends on shapes and number formats, not on the values of the weights.
"""

import statistics
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from edgespec.errors import EdgeSpecError, PlanError
from edgespec.pairs.settings import FLOATS, PairSettings
from edgespec.system.json_child import ChildDiedError, JsonChild, answer_questions
from edgespec_models import tiny
from edgespec_models.grow import grow
from edgespec_models.grow.source import GrowError, ModelShape

SIZES = (1, 2, 3, 4, 5, 6, 8, 12, 16)  # rows of an evaluation
LAYERS = {"F16": 6, "Q8_0": 12, "Q4_0": 22}  # about 200 MB: several times what a processor's caches hold
LAYER = ModelShape(1, 1024, 1, 16, 8, 128, 3072)  # as in Qwen3 0.6B
TURNS = 5
BEFORE = 4  # tokens before those that are timed


def seconds_a_byte(dtype: str, settings: PairSettings, layer: ModelShape = LAYER) -> dict[int, float]:
    """Returns rows -> seconds for each byte of weights, measured in two seconds. Raises PlanError."""
    small = tiny.draft_path()
    with tempfile.TemporaryDirectory(prefix="edgespec-") as folder, JsonChild(__spec__.name) as child:
        path = Path(folder) / "grown.gguf"
        shape = replace(layer, layers=LAYERS[dtype])
        asked = {name: getattr(settings, name) for name in ("n_gpu_layers", "threads", "kv_type", "rpc")}
        asked |= {"path": str(path), "tensor_split": settings.tensor_split}
        try:
            grow.grow(small, path, grow.fit(shape, grow.read_shape(small)), dtype=dtype)
            found = child.ask(asked)
        except (GrowError, OSError, ChildDiedError) as error:
            found = {"error": str(error)}
        if "seconds" not in found:
            raise PlanError(f"nothing can be planned here: {found['error']}")
        return {int(n): float(s) / path.stat().st_size for n, s in found["seconds"].items()}


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    """Returns number of rows -> the usual seconds of evaluating them, or why not; runs in the child."""
    import numpy as np

    from edgespec.core.loop import Want
    from edgespec.llama import remote
    from edgespec.llama.context import Context, ContextSettings
    from edgespec.llama.model import Model

    def evaluate(n: int) -> float:
        context.score([Want(first)])
        before = context.seconds
        context.score([Want(first, tuple(range(BEFORE, BEFORE + n)), n)])
        return context.seconds - before

    kv_type, first = asked["kv_type"], np.arange(BEFORE, dtype=np.int32)
    settings = ContextSettings(
        n_ctx=256,
        n_rows=max(SIZES),
        kv_type=kv_type,
        flash_attention=kv_type not in FLOATS,
        threads=asked["threads"],
    )
    placed = {"n_gpu_layers": asked["n_gpu_layers"], "tensor_split": asked["tensor_split"]}
    try:
        with (
            Model(asked["path"], devices=remote.devices(asked["rpc"]), **placed) as model,
            Context(model, settings) as context,
        ):
            turns = [[evaluate(n) for n in SIZES] for _ in range(TURNS)][1:]  # the first warms up
    except EdgeSpecError as error:
        return {"error": str(error)}
    usual = [statistics.median(of_size) for of_size in zip(*turns, strict=True)]
    return {"seconds": {n: min(usual[i:]) for i, n in enumerate(SIZES)}}  # longer than for more: disturbed


if __name__ == "__main__":
    answer_questions(answer)
