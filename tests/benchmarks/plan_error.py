"""How far plans are from whole models: costs by bytes, and the whole file evaluated, in turn.

    python tests/benchmarks/plan_error.py [FILE.gguf ...]

Without files, models of a few hundred MB and of several architectures are made with random weights. What is
printed is the median of the planned time over the whole one's, for each number of tokens evaluated at once.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import tiny_gguf

from edgespec.commands.plan import measuring
from edgespec.commands.plan.model_cost import model_cost
from edgespec.commands.plan.rates import BUDGET_S, Rates
from edgespec.pairs.settings import PairSettings
from edgespec.system.json_child import JsonChild
from edgespec_models.gguf.header import read_file

TURNS = 3
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


def compare(name: str, path: Path) -> None:
    """Prints planned over whole, by number of tokens."""
    settings, header = PairSettings(), read_file(path)
    asked = {
        "path": str(path), "n_gpu_layers": settings.n_gpu_layers, "threads": None, "kv_type": "f16",
        "rpc": (), "tensor_split": (), "budget": BUDGET_S,
    }  # fmt: skip
    ratios: dict[int, list[float]] = {n: [] for n in measuring.SIZES}
    least = float("inf")
    for _ in range(TURNS):
        planned = model_cost([header], Rates(settings, anew=True)).seconds
        with JsonChild("edgespec.commands.plan.measuring") as child:
            whole = {int(n): float(s) for n, s in child.ask(asked)["seconds"].items()}
        least = min(least, whole[1])
        for n in ratios:
            ratios[n].append(planned[n] / whole[n])
    cells = "".join(f"{statistics.median(of):7.2f}" for of in ratios.values())
    print(f"{name:28}{path.stat().st_size >> 20:6} MiB{1000 * least:9.1f} ms{cells}", flush=True)


def main() -> None:
    """Compares the files named, else models made here."""
    head = "".join(f"{n:7}" for n in measuring.SIZES)
    print(f"{'model':28}{'':10}{'one token':>12}{head}")
    with tempfile.TemporaryDirectory() as folder:
        files = {Path(name).stem: Path(name) for name in sys.argv[1:]} or made(Path(folder))
        for name, path in files.items():
            compare(name, path)


if __name__ == "__main__":
    main()
