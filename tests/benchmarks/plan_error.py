"""How far plans are from whole models: these, and the models of random weights that plans rest on, in turn.

    python tests/benchmarks/plan_error.py [FILE.gguf ...]

Without files, models of a few hundred MB and of several architectures are made with random weights. What is
printed is the planned time over the whole one's, by medians, for each number of tokens evaluated at once.
"""

from __future__ import annotations

import os
import random
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import tiny_gguf

from edgespec.commands.plan import measuring
from edgespec.commands.plan.model_cost import Places, model_cost
from edgespec.commands.plan.rates import Rates
from edgespec.llama.context import Context
from edgespec.llama.model import Model
from edgespec.pairs.placement import Rule
from edgespec.pairs.settings import PairSettings
from edgespec_models.gguf.header import read_file
from edgespec_models.gguf.uniform import write_uniform

TURNS = 9
RNG = random.Random(1)
SIZES: dict[str, Any] = {"n_vocab": 4096, "d": 1024, "n_head": 8, "context_length": 512}


def made(folder: Path) -> dict[str, Path]:
    """Writes models of random weights."""
    files = {
        name: folder / f"{name.replace(' ', '-')}.gguf"
        for name in ("llama Q8_0", "gemma3 F16", "qwen3moe F16", "lfm2 Q8_0")
    }
    llama, gemma, mixed, hybrid = files.values()
    tiny_gguf.write_llama(llama, layers=24, n_kv=2, ffn=4096, dtype="Q8_0", **SIZES)
    tiny_gguf.write_sliding(gemma, layers=18, ffn=4096, dtype="F16", **SIZES)
    tiny_gguf.write_experts(mixed, layers=16, experts=16, used=4, ffn=512, dtype="F16", **SIZES)
    tiny_gguf.write_hybrid(hybrid, attention=(False, False, True) * 8, ffn=4096, dtype="Q8_0", **SIZES)
    return files


class InTurn(Rates):
    """Rates of models that are evaluated in turn with the whole one, so that other load affects all alike."""

    def __init__(self, folder: Path, opened: ExitStack) -> None:
        super().__init__(PairSettings(), anew=True)
        self._folder, self._opened = folder, opened
        self.evaluate: dict[object, Callable[[int], float]] = {}
        self.took: dict[object, dict[int, list[float]]] = {}

    def add(self, key: object, path: Path) -> None:
        """Opens a model that takes part."""
        model = self._opened.enter_context(Model(path))
        context = self._opened.enter_context(Context(model, measuring.context_settings(model)))
        self.evaluate[key] = measuring.timed(context)

    def turn(self) -> None:
        """Evaluates all, in random order, with each number of tokens."""
        for n in measuring.SIZES:
            for key in RNG.sample(list(self.evaluate), len(self.evaluate)):
                of = self.took.setdefault(key, {size: [] for size in measuring.SIZES})
                of[n].append(self.evaluate[key](n))

    def usual(self, key: object) -> dict[int, float]:
        """Returns medians without the first turn, which warms up."""
        return {n: statistics.median(of[1:]) for n, of in self.took[key].items()}

    def _evaluated(
        self, type_: int, width: int, layers: int, *, mixed: bool = False, rules: Sequence[Rule] = ()
    ) -> dict[int, float]:
        key = (type_, width, layers, mixed)
        if key not in self.evaluate:  # asked for what is to be measured
            path = self._folder / "-".join(map(str, key))
            write_uniform(path, type_, width, layers, mixed=mixed)
            self.add(key, path)
        return self.usual(key) if key in self.took else dict.fromkeys(measuring.SIZES, 1.0)


def compare(name: str, path: Path) -> None:
    """Prints planned over whole, by number of tokens."""
    header = read_file(path)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as opened:
        rates = InTurn(Path(folder), opened)
        model_cost([header], Places(rates))
        rates.add("whole", path)
        for _ in range(TURNS):
            rates.turn()
        rates._known.clear()
        planned, whole = model_cost([header], Places(rates)).seconds, rates.usual("whole")
    cells = "".join(f"{planned[n] / whole[n]:7.2f}" for n in measuring.SIZES)
    print(f"{name:28}{path.stat().st_size >> 20:6} MiB{1000 * whole[1]:9.1f} ms{cells}", flush=True)


def main() -> None:
    """Compares the files named, else models made here."""
    head = "".join(f"{n:7}" for n in measuring.SIZES)
    print(f"{'model':28}{'':10}{'one token':>12}{head}")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["EDGESPEC_CACHE_DIR"] = folder
        files = {Path(name).stem: Path(name) for name in sys.argv[1:]} or made(Path(folder))
        for name, path in files.items():
            compare(name, path)


if __name__ == "__main__":
    main()
