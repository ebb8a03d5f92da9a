"""What evaluations of one model cost on this machine, by its header alone: measured on slices, and kept."""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from edgespec.commands.plan.slices import slices_of, whole_cost
from edgespec.errors import PlanError
from edgespec.pairs.settings import PairSettings
from edgespec.system.builds import built_for
from edgespec.system.config import cache_folder
from edgespec.system.cores import threads_wanted
from edgespec.system.json_child import ChildDiedError, JsonChild
from edgespec.system.other_programs import BUSY_CORES, Others
from edgespec_models.gguf.header import Header
from edgespec_models.gguf.number_formats import UnknownFormatError
from edgespec_models.gguf.slice import Layers, layers_of, write_slice
from edgespec_models.kept_file import write_whole
from edgespec_models.shelf.sizes import size_text

FORMAT = 2  # of what is kept; others are ignored
BUDGET_S = 3.0  # of evaluations of one slice
LONGEST_S = 300.0
SPARE_DISK = 64 << 20  # bytes that are left free
OnStage = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ModelCost:
    """Seconds of evaluating a number of tokens at once, at the beginning of a text."""

    seconds: dict[int, float]
    measured_layers: int
    layers: int
    busy: float = 0.0  # cores that other programs kept busy meanwhile

    @property
    def disturbed(self) -> bool:
        """Whether other programs made it look more expensive than it is."""
        return self.busy >= BUSY_CORES

    @property
    def whole(self) -> bool:
        """Whether all layers were made, so that nothing was scaled."""
        return self.measured_layers == self.layers


def kept_cost(headers: Sequence[Header], settings: PairSettings) -> ModelCost | None:
    """Returns the earlier measurement; None if there is none that makes sense, or not of this."""
    try:
        said = json.loads(cost_path(headers, settings).read_text(encoding="utf-8"))
        seconds = {int(n): float(s) for n, s in said["seconds"].items()}
        if said["format"] != FORMAT or not all(s > 0 for s in seconds.values()) or 1 not in seconds:
            return None
        return ModelCost(seconds, int(said["measured_layers"]), int(said["layers"]), float(said["busy"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def model_cost(
    headers: Sequence[Header],
    settings: PairSettings,
    *,
    on_stage: OnStage = lambda text: None,
    anew: bool = False,
) -> ModelCost:
    """Returns what a model costs here, measuring it in some seconds if that is unknown or was disturbed.

    Raises PlanError if it cannot be made or evaluated.
    """
    known = None if anew else kept_cost(headers, settings)
    if known and not known.disturbed:
        return known
    with told(headers[0].name):
        found = _measured(layers_of(headers), settings, on_stage)
    _keep(cost_path(headers, settings), found)
    return found


@contextmanager
def told(name: str) -> Iterator[None]:
    """Turns what prevents a model from being made into a PlanError. name: of its file."""
    try:
        yield
    except UnknownFormatError as error:
        raise PlanError(f"{name} cannot be planned: {error}") from None
    except OSError as error:
        raise PlanError(
            f"a model of random weights cannot be written to {tempfile.gettempdir()}: {error.strerror}; make "
            "room there, or name another folder with TMPDIR"
        ) from None


def _measured(model: Layers, settings: PairSettings, on_stage: OnStage) -> ModelCost:
    if not model.layers:
        raise PlanError(f"{model.header.name} cannot be planned: it has no layers")
    slices, others = slices_of(model), Others()
    found: list[dict[int, float]] = []
    with tempfile.TemporaryDirectory(prefix="edgespec-") as folder:
        for n in (slices.small, slices.large):
            if n is not None:
                on_stage(f"{n} of {slices.whole} layers of {Path(model.header.name).name}")
                path = Path(folder) / "slice.gguf"
                _check_room(path.parent, model, n)
                write_slice(path, model, n)
                found.append(evaluated(path, settings, model.header.name))
    seconds = whole_cost(model, slices, found[0], found[-1])
    return ModelCost(seconds, slices.large, slices.whole, others.cores())


def _check_room(folder: Path, model: Layers, n: int) -> None:
    """Raises PlanError if n layers of a model do not fit on the disk: its header may say anything."""
    needed, free = model.stored((model.others, *model.slice(n))), shutil.disk_usage(folder).free
    if needed + SPARE_DISK > free:
        raise PlanError(
            f"{model.header.name} cannot be planned: {n} of its layers take {size_text(needed)} in "
            f"{folder.parent}, where {size_text(free)} are free; make room there, or name another folder "
            "with TMPDIR"
        )


def evaluated(path: Path, settings: PairSettings, name: str) -> dict[int, float]:
    """Returns the seconds of evaluations by size, in a child."""
    asked = {
        "path": str(path),
        "n_gpu_layers": settings.n_gpu_layers,
        "threads": settings.threads,
        "kv_type": settings.kv_type,
        "rpc": settings.rpc,
        "tensor_split": settings.tensor_split,
        "budget": BUDGET_S,
    }
    with JsonChild("edgespec.commands.plan.measuring", longest_s=LONGEST_S) as child:
        try:
            said = child.ask(asked)
        except ChildDiedError as error:
            said = {"error": str(error)}
    if "seconds" not in said:
        raise PlanError(f"{name} cannot be planned: {said['error']}".replace(str(path), "a slice of it"))
    return {int(n): float(s) for n, s in said["seconds"].items()}


def _keep(path: Path, cost: ModelCost) -> None:
    """Writes the measurements, whole or not at all; ignores a full disk."""
    said = {
        "format": FORMAT,
        "seconds": cost.seconds,
        "measured_layers": cost.measured_layers,
        "layers": cost.layers,
        "busy": cost.busy,
    }
    with suppress(OSError):
        write_whole(path, json.dumps(said), sync=False)


def cost_path(headers: Sequence[Header], settings: PairSettings) -> Path:
    """Returns the file with the cost of this shape, on this machine and with these settings."""
    shape = [(t.name, t.shape, t.type) for header in headers for t in header.tensors]
    head = headers[0]
    scalars = {
        key: value
        for key, value in head.metadata.items()
        if key.startswith(f"{head.architecture}.") and isinstance(value, int | float | str | bool)
    }
    said = [
        head.architecture,
        sorted(scalars.items()),
        shape,
        settings.n_gpu_layers,
        settings.kv_type,
        settings.threads or threads_wanted(),
        built_for(),
        platform.node(),
        platform.machine(),
        metadata.version("llama_cpp_python"),
        *([settings.rpc, settings.tensor_split] if settings.rpc else ()),
    ]
    key = hashlib.sha256(json.dumps(said, default=str).encode()).hexdigest()[:20]
    return cache_folder() / "plans" / f"{head.architecture[:20]}-{key}.json"
