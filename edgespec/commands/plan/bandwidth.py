"""How fast this machine reads weights: a child evaluates a small model that was grown for it.

What an evaluation costs depends on shapes and number formats, not on the values of the weights.
"""

import tempfile
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from edgespec.core.values import LONGEST_DRAFT
from edgespec.errors import EdgeSpecError, PlanError
from edgespec.pairs.placement import Placement
from edgespec.pairs.settings import FLOATS, PairSettings
from edgespec.system.json_child import ChildDiedError, JsonChild, answer_questions
from edgespec_models import tiny
from edgespec_models.grow import grow
from edgespec_models.grow.source import GrowError, ModelShape

SIZES = (1, 2, 3, 4, 5, 6, 8, 12, 16)  # rows of an evaluation
LAYERS = {"F16": 6, "Q8_0": 12, "Q4_0": 22}  # about 200 MB: several times what a processor's caches hold
LAYER = ModelShape(1, 1024, 1, 16, 8, 128, 3072)  # as in Qwen3 0.6B


def seconds_a_byte(dtype: str, settings: PairSettings, layer: ModelShape = LAYER) -> dict[int, float]:
    """Returns rows -> seconds for each byte of weights, measured in two seconds. Raises PlanError."""
    flash = settings.kv_type not in FLOATS
    how = replace(settings, n_ctx=256, flash_attention=flash, placement=Placement())
    with tempfile.TemporaryDirectory(prefix="edgespec-") as folder, JsonChild(__spec__.name) as child:
        path = Path(folder) / "grown.gguf"
        shape, small = replace(layer, layers=LAYERS[dtype]), tiny.draft_path()
        try:
            grow.grow(small, path, shape, dtype=dtype)
            found = child.ask({"path": str(path), "settings": asdict(how)})
        except (GrowError, OSError, ChildDiedError) as error:
            found = {"error": str(error)}
        if "seconds" not in found:
            raise PlanError(f"nothing can be planned here: {found['error']}")
        return {int(n): float(s) / path.stat().st_size for n, s in found["seconds"].items()}


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    """Returns number of rows -> the usual seconds of evaluating them, or why not; runs in the child."""
    from pydantic import TypeAdapter

    from edgespec.engine.loading import PairFiles, load_pair
    from edgespec.engine.measuring import measure_costs

    settings = TypeAdapter(PairSettings).validate_python(asked["settings"])  # JSON has no tuples
    try:
        with ExitStack() as opened:
            files = PairFiles(Path(asked["path"]))
            context = load_pair(opened, files, settings, LONGEST_DRAFT + 1, lambda *_: None).target_context
            costs = measure_costs(context, None).target
    except EdgeSpecError as error:
        return {"error": str(error)}
    return {"seconds": {n: costs.seconds(n) for n in SIZES}}


if __name__ == "__main__":
    answer_questions(answer)
