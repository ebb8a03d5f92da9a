"""llama.cpp is asked what a model takes, and its answer is what the model then takes."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import numpy as np
import psutil
import pytest
import tiny_gguf
from little_memory import memory_is
from tiny_projector import write_seeing

from edgespec.engine.pair import Pair, PairSettings
from edgespec.errors import DoesNotFitError, EngineDiedError, ModelFileError, ModelUnsupportedError
from edgespec.llama.context import Context, ContextSettings
from edgespec.llama.log import listening
from edgespec.llama.memory_question import Question
from edgespec.llama.model import Model
from edgespec.llama.projector import mtmd_cpp
from edgespec.memory import at_load, free
from edgespec.memory.oracle import MemoryOracle
from edgespec_models.fit.formulas import formula_need
from edgespec_models.fit.need import RAM, Device, Need
from edgespec_models.gguf.header import read_file

MIB = 2**20
N_CTX = 4096
SIZE = {"n_vocab": 4096, "d": 256, "context_length": N_CTX, "dtype": "F16"}
ARCHITECTURES: dict[str, Callable[[Path], Path]] = {
    "dense": lambda path: tiny_gguf.write_llama(path, layers=4, ffn=512, **SIZE),
    "grouped heads": lambda path: tiny_gguf.write_llama(path, layers=4, n_head=8, n_kv=2, ffn=512, **SIZE),
    "quantised": lambda path: tiny_gguf.write_llama(path, layers=4, ffn=512, **{**SIZE, "dtype": "Q8_0"}),
    "sliding window": lambda path: tiny_gguf.write_sliding(path, **SIZE),
    "mixture of experts": lambda path: tiny_gguf.write_experts(path, **SIZE),
    "hybrid": lambda path: tiny_gguf.write_hybrid(path, attention=(False, True, False, True), **SIZE),
    "recurrent": lambda path: tiny_gguf.write_recurrent(path, layers=6, **{**SIZE, "d": 128}),
}
ROWS = 49


@pytest.fixture(scope="module")
def oracle() -> MemoryOracle:
    with MemoryOracle() as oracle:
        yield oracle  # type: ignore[misc]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("architectures")
    return {kind: write(folder / f"{kind}.gguf") for kind, write in ARCHITECTURES.items()}


def question(
    path: Path,
    *,
    n_ctx: int = N_CTX,
    n_seq: int = 1,
    n_rows: int = ROWS,
    kv: str = "f16",
    flash: bool | None = True,
) -> Question:
    return Question(str(path), -1, n_ctx, n_ctx * n_seq, n_seq, n_rows, kv, flash)  # type: ignore[arg-type]


def allocated(path: Path, **wanted: object) -> dict[str, float]:
    """Returns the MiB of the buffers that llama.cpp makes when it does load the model."""
    with listening() as log, Model(path) as model:
        settings = {"n_ctx": N_CTX, "n_rows": ROWS, "flash_attention": True, **wanted}
        with Context(model, ContextSettings(**settings)):  # type: ignore[arg-type]
            pass
    text = "\n".join(log)
    kinds = {"weights": "model", "cache": "KV", "state": "RS", "compute": "compute"}
    return {
        part: sum(float(size) for size in re.findall(rf"\S+ +{name} buffer size = +([0-9.]+) MiB", text))
        for part, name in kinds.items()
    }


@pytest.mark.parametrize("flash", [True, False])
@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_what_is_computed_is_what_is_allocated(
    kind: str, flash: bool, oracle: MemoryOracle, files: dict[str, Path]
) -> None:
    """With flash attention, and with the scores that take its place."""
    said = oracle.need(question(files[kind], flash=flash)).parts
    made = allocated(files[kind], flash_attention=flash)
    for part, size in made.items():
        assert getattr(said, part) / MIB == pytest.approx(size, rel=0.01, abs=0.011), part
    assert (said.total - said.output) / MIB == pytest.approx(sum(made.values()), rel=0.01)


@pytest.mark.parametrize("kind", ["grouped heads", "hybrid"])
def test_the_settings_of_the_context_count(kind: str, oracle: MemoryOracle, files: dict[str, Path]) -> None:
    said = oracle.need(question(files[kind], n_ctx=1024, n_rows=8, kv="q8_0")).parts
    made = allocated(files[kind], n_ctx=1024, n_rows=8, kv_type="q8_0")
    assert said.cache / MIB == pytest.approx(made["cache"], rel=0.02, abs=0.011)
    assert said.compute / MIB == pytest.approx(made["compute"], rel=0.01, abs=0.011)


def test_logits_rows_are_counted_before_they_are_asked_for(
    oracle: MemoryOracle, files: dict[str, Path]
) -> None:
    """llama.cpp makes room for one row at first, and for the rest in the middle of the first verification."""
    assert oracle.need(question(files["dense"])).parts.output == ROWS * 4096 * 4


@pytest.mark.slow
def test_the_process_grows_by_what_is_computed(tmp_path: Path) -> None:
    """The buffers are memory: measured from outside, on a model of 150 MB whose cache has been filled."""
    path = tiny_gguf.write_llama(
        tmp_path / "model.gguf", n_vocab=8192, d=1024, layers=8, n_head=8, ffn=2048, context_length=8192,
        dtype="F16",
    )  # fmt: skip
    with MemoryOracle() as oracle:
        printed = oracle.need(question(path, n_ctx=8192, flash=None))
    code = f"""
import numpy as np, psutil
from edgespec.llama.context import Context, ContextSettings
from edgespec.core.loop import Want
from edgespec.llama.model import Model
held = lambda: psutil.Process().memory_info().rss
before = held()
with Model({str(path)!r}) as model, Context(model, ContextSettings(n_ctx=8192, n_rows=49)) as context:
    context.score([Want(np.arange(600, dtype=np.int32), (0,) * 48, 49)])
    print(held() - before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) == pytest.approx(printed.total, rel=0.05)


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_the_formula_is_near_where_llama_cpp_cannot_be_asked(
    kind: str, oracle: MemoryOracle, files: dict[str, Path]
) -> None:
    header = read_file(files[kind])
    estimated = formula_need([header], cells=N_CTX, n_rows=ROWS)
    said = oracle.need(question(files[kind], flash=False))
    assert estimated.source == "formula"
    assert estimated.total == pytest.approx(said.total, rel=0.25)
    assert estimated.parts.weights == pytest.approx(said.parts.weights, rel=0.001)
    assert estimated.parts.cache == pytest.approx(said.parts.cache, rel=0.01, abs=0.011 * MIB)


def test_a_head_of_a_large_model_is_enough(oracle: MemoryOracle, tmp_path: Path) -> None:
    """What was read of a file on the hub, made as long as the file is, without its weights."""
    whole = tiny_gguf.write_llama(tmp_path / "whole.gguf", layers=8, d=256, ffn=1024)
    header, stub = read_file(whole), tmp_path / "stub.gguf"
    stub.write_bytes(header.raw)
    with open(stub, "r+b") as file:
        file.truncate(whole.stat().st_size)
    assert stub.stat().st_blocks * 512 < whole.stat().st_size / 10, "a sparse file takes no space"
    assert oracle.need(question(stub, n_ctx=256)) == oracle.need(question(whole, n_ctx=256))


def test_a_file_that_llama_cpp_refuses_is_refused_here(oracle: MemoryOracle, tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + b"\3\0\0\0" + b"\xff" * 100)
    with pytest.raises(ModelFileError, match="broken.gguf"):
        oracle.need(question(broken))
    with pytest.raises((ModelFileError, ModelUnsupportedError)):
        oracle.need(question(tiny_gguf.write_llama(tmp_path / "none.gguf", vocab="none")))


def test_a_file_that_ends_llama_cpp_ends_the_child_alone(tmp_path: Path, files: dict[str, Path]) -> None:
    texts = list(tiny_gguf.make_vocabulary().texts)
    texts[300] = texts[301]  # on which llama.cpp ends its process
    vocabulary = tiny_gguf.make_vocabulary()
    twice = tiny_gguf.Vocabulary(
        tuple(texts), vocabulary.types, vocabulary.merges, vocabulary.bos, vocabulary.eos
    )
    path = tiny_gguf.write_llama(tmp_path / "twice.gguf", vocab=twice)
    with MemoryOracle() as oracle:
        with pytest.raises(EngineDiedError, match="llama.cpp aborted"):
            oracle.need(question(path, n_ctx=256))
        assert oracle.need(question(files["dense"])).total > 0, "the next question starts another"


# --- when a pair is loaded


@pytest.fixture
def heavy(tmp_path: Path) -> Path:
    """A target whose cache is larger than its weights: 64 MiB for 8,192 tokens."""
    return tiny_gguf.write_llama(
        tmp_path / "heavy.gguf", n_vocab=4096, d=256, layers=8, context_length=32768, dtype="F16"
    )


def test_a_pair_that_fits_well_is_loaded_without_asking(heavy: Path) -> None:
    def ask(*_: object) -> NoReturn:
        pytest.fail("it was asked")

    assert at_load.fitted(heavy, None, PairSettings(), [], ask=ask) == (PairSettings(), ())


def test_the_context_is_what_fits_where_nobody_set_it(monkeypatch: pytest.MonkeyPatch, heavy: Path) -> None:
    memory_is(monkeypatch, int(MIB * (256 + 60)))
    settings, gave_up = at_load.fitted(heavy, None, PairSettings(), [])
    assert settings.n_ctx == 4096
    with Pair(heavy, None, PairSettings(remember=False)) as pair:
        assert pair.n_ctx == 4096 and pair.gave_up == gave_up
    assert gave_up[0] == "the context holds 4,096 tokens instead of 8,192"


def test_a_model_that_serves_one_at_a_time_is_measured_for_one(
    monkeypatch: pytest.MonkeyPatch, files: dict[str, Path]
) -> None:
    """A server asks for four; what a hybrid would take with four was held against it."""
    alone, four = (PairSettings(slots=slots, flash_attention=False) for slots in (1, 4))
    one = at_load.pair_fit(files["hybrid"], None, alone).choice
    assert at_load.pair_fit(files["hybrid"], None, four).choice == one


def test_a_context_that_cannot_fit_is_refused_with_what_would(
    monkeypatch: pytest.MonkeyPatch, heavy: Path
) -> None:
    memory_is(monkeypatch, int(MIB * (256 + 150)))
    with pytest.raises(DoesNotFitError) as refused:
        Pair(heavy, heavy, PairSettings(n_ctx=16384))
    said = str(refused.value)
    assert re.match(r"heavy.gguf and heavy.gguf with a context of 16,384 tokens take \d+ MiB", said), said
    assert "--ctx 4096" in said and "\n" not in said
    with Pair(heavy, heavy, PairSettings(n_ctx=4096, remember=False)) as pair:
        assert pair.n_ctx == 4096


def test_what_is_no_model_is_refused_before_llama_cpp_sees_it(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"no model")
    with pytest.raises(ModelFileError, match="model.gguf is not a GGUF file"):
        at_load.fitted(path, None, PairSettings(), [])


def test_the_limit_of_a_container_counts(tmp_path: Path) -> None:
    """A container of 100 MiB on a machine of many GiB was given caches that ended it."""
    (tmp_path / "memory.max").write_text(f"{100 * MIB}\n")
    (tmp_path / "memory.current").write_text(f"{70 * MIB}\n")
    (tmp_path / "memory.stat").write_text(f"anon 1\ninactive_file {10 * MIB}\n")
    assert free.free_memory(tmp_path) == (40 * MIB, 100 * MIB)
    (tmp_path / "memory.max").write_text("max\n")
    assert free.free_memory(tmp_path)[1] == psutil.virtual_memory().total
    assert free.free_memory(tmp_path / "nothing")[0] > 0
    own = tmp_path / "user.slice" / "a.scope"
    own.mkdir(parents=True)
    (own.parent / "memory.max").write_text(f"{50 * MIB}")
    (own.parent / "memory.current").write_text(f"{20 * MIB}")
    (own.parent / "memory.stat").write_text("inactive_file 0")
    (tmp_path / "mine").write_text("0::/user.slice/a.scope\n")
    assert free.free_memory(tmp_path, tmp_path / "mine") == (30 * MIB, 50 * MIB), "of a group above ours"


def test_needs_are_added_up_by_device() -> None:
    from edgespec_models.fit.need import Parts

    need = Need({RAM: Parts(weights=3, cache=4), "CUDA0": Parts(weights=5, compute=6)}, 2)
    assert need.total == 18 and need.on(RAM) == 7 and need.on("Vulkan0") == 0
    assert need.parts == Parts(weights=8, cache=4, compute=6)
    assert np.isclose(need.parts.total, need.total)


def test_a_projector_is_asked_for_too(oracle: MemoryOracle, tmp_path: Path) -> None:
    """What is said is what its file's weights are, and room for a picture; a pair has the rest."""
    try:
        mtmd_cpp()
    except ModelUnsupportedError as missing:
        pytest.skip(str(missing))
    target, projector = write_seeing(tmp_path, "gemma3")
    need = oracle.projector(str(projector))
    weights = sum(tensor.n_bytes or 0 for tensor in read_file(projector).tensors)
    assert abs(need.devices[RAM].weights - weights) < 2**14 and need.devices[RAM].compute > 2**17
    room = [Device(RAM, 2**30, 2**30)]
    fit = at_load.pair_fit(target, None, PairSettings(), room, projector=need)
    assert fit.devices[0].free == 2**30 - need.total
    projector.write_bytes(b"GGUF")
    assert at_load.projector_need(projector) is None and at_load.projector_need(None) is None
