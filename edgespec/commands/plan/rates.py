"""What reading a byte of a number format costs on this machine, by rows at once: measured once, and kept.

Models of one format with random weights are evaluated in the real engine: one larger than the processor's
caches and about as wide as the model that is planned, and one with many narrow layers, which cost nothing but
their calls.
"""

import hashlib
import json
import math
import platform
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from edgespec.errors import PlanError
from edgespec.pairs.placement import MAIN_MEMORY, Rule
from edgespec.pairs.settings import PairSettings
from edgespec.system.builds import built_for
from edgespec.system.config import cache_folder
from edgespec.system.cores import threads_wanted
from edgespec.system.json_child import ChildDiedError, JsonChild
from edgespec.system.other_programs import BUSY_CORES, Others
from edgespec_models.gguf.number_formats import FORMATS, n_bytes
from edgespec_models.gguf.uniform import shapes, write_uniform
from edgespec_models.kept_file import write_whole
from edgespec_models.shelf.sizes import no_room

FORMAT = 3  # of what is kept; others are ignored
BUDGET_S = 3.0  # of evaluations of one model
LONGEST_S = 300.0
WIDTHS = (1024, 2048, 4096)  # of which the next is taken: rows cost less in wider matrices
LARGE = 192 << 20  # bytes of layers: several times what caches hold
NARROW, MANY = 256, 20  # width and number of layers that cost nothing but calls
LEAST = 0.3  # share of a wide model's time that is its weights', at least: times are disturbed
F16 = 1
STRAYS: tuple[Rule, ...] = (("ffn", MAIN_MEMORY),)  # half of each layer, in main memory
ByRows = Mapping[int, float]
OnStage = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Rate:
    """Seconds by rows at once. busy: cores that other programs kept busy while this was measured."""

    seconds: ByRows
    busy: float = 0.0


class Rates:
    """The rates of this machine with some settings."""

    def __init__(
        self,
        settings: PairSettings,
        *,
        on_stage: OnStage = lambda text: None,
        anew: bool = False,
        kept_only: bool = False,
    ) -> None:
        """anew: measure again what is known. kept_only: measure nothing; what is unknown is a PlanError."""
        self._settings, self._on_stage = settings, on_stage
        self._anew, self._kept_only = anew, kept_only
        self._known: dict[str, Rate] = {}

    def layer(self) -> Rate:
        """Returns what a layer costs beside its weights. Raises PlanError."""
        return self._of("layer", lambda: {n: s / MANY for n, s in self._evaluated(F16, NARROW, MANY).items()})

    def crossing(self) -> Rate:
        """Returns what it costs to go to main memory within a layer, and back. Raises PlanError."""
        layer = self.layer().seconds

        def measured() -> dict[int, float]:
            found = self._evaluated(F16, NARROW, MANY, rules=STRAYS)
            return {n: max(s / MANY - layer[n], LEAST * layer[n]) for n, s in found.items()}

        return self._of("crossing", measured)

    def byte(self, type_: int, width: int, *, mixed: bool = False) -> Rate:
        """Returns what a byte of a format costs in matrices about so wide. Raises PlanError.

        mixed: in a mixture's experts, whose rows llama.cpp multiplies by other means.
        """
        width = min(WIDTHS, key=lambda wide: abs(math.log(wide / width)))
        sizes = {name: n_bytes(of, type_) for name, of in _matrices(width, mixed=mixed).items()}
        layers, layer = -(-LARGE // sum(sizes.values())), self.layer().seconds
        dense = self.byte(type_, width).seconds if mixed else {}
        read = sum(size for name, size in sizes.items() if not mixed or "_exps" in name)

        def measured() -> dict[int, float]:
            found = self._evaluated(type_, width, layers, mixed=mixed)
            beside = {n: layer[n] + (sum(sizes.values()) - read) * dense.get(n, 0.0) for n in found}
            return {n: max(s / layers - beside[n], LEAST * s / layers) / read for n, s in found.items()}

        return self._of(f"{FORMATS[type_].name}-{width}{'-experts' if mixed else ''}", measured)

    def _of(self, name: str, measure: Callable[[], dict[int, float]]) -> Rate:
        """Returns a rate: as it is kept, or measured in some seconds if it is unknown or was disturbed."""
        found = self._known.get(name) or (None if self._anew else self._kept(name))
        if self._kept_only and found is None:
            raise PlanError(f"{name} was not measured here")
        if found is None or (found.busy >= BUSY_CORES and name not in self._known and not self._kept_only):
            self._on_stage(f"measuring {name} on this machine")
            others = Others()
            found = Rate(measure(), others.cores())
            said = {"format": FORMAT, "seconds": found.seconds, "busy": found.busy}
            with suppress(OSError):
                write_whole(self._path(name), json.dumps(said), sync=False)
        self._known[name] = found
        return found

    def _kept(self, name: str) -> Rate | None:
        """Returns an earlier measurement; None if there is none that makes sense."""
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            said = json.loads(self._path(name).read_text(encoding="utf-8"))
            seconds = {int(n): float(s) for n, s in said["seconds"].items()}
            if said["format"] == FORMAT and 1 in seconds and all(s > 0 for s in seconds.values()):
                return Rate(seconds, float(said["busy"]))
        return None

    def _evaluated(
        self, type_: int, width: int, layers: int, *, mixed: bool = False, rules: Sequence[Rule] = ()
    ) -> dict[int, float]:
        """Returns the seconds of evaluations by rows, in a child. Raises PlanError."""
        settings = self._settings
        with tempfile.TemporaryDirectory(prefix="edgespec-") as folder:
            path = Path(folder) / "random.gguf"
            size = layers * sum(n_bytes(of, type_) for of in _matrices(width, mixed=mixed).values())
            if why := no_room(path.parent, 2 * size):
                raise PlanError(
                    f"nothing can be planned: {why}; make room, or name another folder with TMPDIR"
                )
            try:
                write_uniform(path, type_, width, layers, mixed=mixed)
            except OSError as error:
                raise PlanError(
                    f"nothing can be planned: {path} cannot be written ({error.strerror})"
                ) from None
            asked = {
                "path": str(path),
                "n_gpu_layers": settings.n_gpu_layers,
                "threads": settings.threads,
                "kv_type": settings.kv_type,
                "rpc": settings.rpc,
                "tensor_split": settings.tensor_split,
                "rules": rules,
                "budget": BUDGET_S,
            }
            with JsonChild("edgespec.commands.plan.measuring", longest_s=LONGEST_S) as child:
                try:
                    said = child.ask(asked)
                except ChildDiedError as error:
                    said = {"error": str(error)}
        if "seconds" not in said:
            reason = str(said["error"]).replace(str(path), "a model of random weights")
            raise PlanError(f"nothing can be planned here: {reason}")
        return {int(n): float(s) for n, s in said["seconds"].items()}

    def _path(self, name: str) -> Path:
        """Returns the file with one rate, on this machine and with these settings."""
        settings = self._settings
        said = [
            name, settings.n_gpu_layers, settings.kv_type, settings.threads or threads_wanted(), built_for(),
            platform.node(), platform.machine(), metadata.version("llama_cpp_python"),
            *([settings.rpc, settings.tensor_split] if settings.rpc else ()),
        ]  # fmt: skip
        key = hashlib.sha256(json.dumps(said, default=str).encode()).hexdigest()[:20]
        return cache_folder() / "plans" / f"{name}-{key}.json"


def _matrices(width: int, *, mixed: bool) -> dict[str, tuple[int, ...]]:
    """Returns those of a layer."""
    return {
        name: of for name, of in shapes(width, 1, mixed=mixed).items() if name[:3] == "blk" and len(of) > 1
    }
