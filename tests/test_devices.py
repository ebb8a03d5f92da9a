"""Which devices llama.cpp finds, what is on them, and how that is reported."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import llama_cpp
import pytest
from fake_machine import fake_machine

from edgespec.client.answer import Info
from edgespec.engine import loading
from edgespec.engine.pair import Pair
from edgespec.errors import DeviceFullError
from edgespec.llama import devices, model
from edgespec.llama.model import Model
from edgespec.llama.settings import ContextSettings, keeps_order
from edgespec.memory import at_load
from edgespec.pairs.settings import PairSettings
from edgespec.system import isolate, self_test
from edgespec_models.fit.allotment import Allotment
from edgespec_models.fit.fit import Fit
from edgespec_models.fit.need import RAM, Device, Need, Parts
from edgespec_tui.widgets.panel import PanelState, rows_of

CARD = Device("CUDA0", 7 << 30, 8 << 30, "RTX 4060")


@pytest.mark.slow
def test_a_card_that_is_full_too_soon_has_the_pair_loaded_by_a_smaller_plan(
    tiny_target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """llama.cpp's refusal was told as a damaged file, and the pair was not loaded."""
    asked: list[int] = []
    load = loading.load_pair

    def refusing(*arguments: Any) -> Any:
        asked.append(arguments[2].n_gpu_layers)
        if arguments[2].n_gpu_layers:
            raise DeviceFullError("it is full")
        return load(*arguments)

    monkeypatch.setattr(loading, "load_pair", refusing)
    monkeypatch.setattr(loading, "cards", lambda: [CARD])
    with Pair(tiny_target, None, PairSettings(n_ctx=64, remember=False)) as pair:
        assert asked == [-1, 0] and pair.settings.n_gpu_layers == 0
        assert pair.gave_up == ("a graphics card had less memory than it reported", "all layers stay in RAM")
    with pytest.raises(DeviceFullError, match="it is full"):  # somebody said how many layers
        Pair(tiny_target, None, PairSettings(n_ctx=64, remember=False, n_gpu_layers=5))


def test_other_machines_count_next_to_cards(tiny_target: Path, tiny_draft: Path) -> None:
    """Their memory was left out where this machine has a card: layers stayed in RAM that fit there."""
    asked: list[list[str]] = []

    def fit(target: Path, draft: Path | None, settings: PairSettings, devices: list[Device]) -> Fit:
        asked.append([device.name for device in devices])
        return Fit(True, Allotment(4096, -1, -1, {}), tuple(devices))

    for cards, used in (([CARD], [CARD.name]), ([], [])):
        with fake_machine() as machine:
            settings = PairSettings(rpc=(machine.address,))
            at_load.fitted(tiny_target, tiny_draft, settings, cards, ask=fit)
            assert asked[-1] == [RAM, machine.address, *used]


def test_a_plan_that_a_card_had_no_memory_for_is_not_tried_again(tiny_target: Path) -> None:
    """The engine was started again with the same layers on the card, and ran out of its memory again."""
    layers = {7.0: -1, 4.9: -1, 2.8: 5}  # that fit, by GiB free

    def fit(target: Path, draft: Path | None, settings: PairSettings, devices: list[Device]) -> Fit:
        n = next((layers[round(card.free / 2**30, 1)] for card in devices if card.name == CARD.name), 0)
        return Fit(True, Allotment(4096, n, n, {}), tuple(devices))

    for failed, expected in ((0, [-1, 5, 0]), (1, [5, 0]), (2, [0]), (3, [0])):
        plans = at_load.plans(tiny_target, None, PairSettings(plans_failed=failed), [CARD], ask=fit)
        assert [settings.n_gpu_layers for settings, _ in plans] == expected
    given = PairSettings(n_gpu_layers=11, plans_failed=1)
    only = Fit(True, Allotment(4096, 11, 11, {}), ())
    plans = at_load.plans(tiny_target, None, given, [CARD], ask=lambda *_: only)
    assert [settings.n_gpu_layers for settings, _ in plans] == [11]


@pytest.mark.parametrize(
    "line",
    [
        "alloc_tensor_range: failed to allocate Vulkan0 buffer of size 7855104",
        "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 8.00 MiB on device 0: cudaMalloc failed: o",
        "  what():  vk::Device::allocateMemory: ErrorOutOfDeviceMemory",
        "CUDA error: out of memory",
    ],
)
def test_memory_that_is_refused_is_reported_as_that(line: str) -> None:
    with pytest.raises(DeviceFullError, match="too little memory for a.gguf .*--gpu-layers"):
        model.refuse_full_device(["llama_model_load: loading", line], "a.gguf")
    told = isolate.cause_of_death(-signal.SIGABRT, f"terminate called\n{line}\n")
    assert told and "ran out of memory" in told and line.strip() in told and "damaged" not in told
    assert isolate.card_was_full(-signal.SIGABRT, f"terminate called\n{line}\n")


def test_a_machine_without_memory_is_no_full_card() -> None:
    """Layers that leave the card would come to where there is no room."""
    refused = "ggml_backend_cpu_buffer_type_alloc_buffer: failed to allocate buffer of size 8388608"
    told = isolate.cause_of_death(-signal.SIGABRT, refused)
    assert told and "ran out of memory" in told
    assert not isolate.card_was_full(-signal.SIGABRT, refused)
    assert not isolate.card_was_full(-signal.SIGABRT, "GGML_ASSERT(n > 0) failed")


def test_other_faults_are_no_lack_of_memory() -> None:
    line = "error loading model: invalid magic"
    model.refuse_full_device([line], "a.gguf")  # raises nothing
    assert not isolate.card_was_full(-signal.SIGABRT, line)


def lying_on(**layers: int) -> Model:
    return SimpleNamespace(layers=Counter(layers))  # type: ignore[return-value]


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells which libraries are loaded")
def test_devices_are_asked_of_the_libraries_that_evaluate(tmp_path: Path) -> None:
    """LLAMA_CPP_LIB_PATH names another build; asked of the package's own, it had no graphics card."""
    folder = tmp_path / "elsewhere"
    shutil.copytree(Path(llama_cpp.__file__).parent / "lib", folder)
    code = "from edgespec.llama.devices import devices; devices(); print(open('/proc/self/maps').read())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**self_test.os.environ, "LLAMA_CPP_LIB_PATH": str(folder), "LD_LIBRARY_PATH": str(folder)},
    )
    found = {Path(line.split()[-1]).parent for line in done.stdout.splitlines() if "libggml" in line}
    assert found == {folder}


def test_another_build_is_tested_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = self_test.kept_in()
    (tmp_path / "libggml.so").write_bytes(b"another")
    monkeypatch.setenv("LLAMA_CPP_LIB_PATH", str(tmp_path))
    assert self_test.kept_in() != known


@pytest.mark.parametrize(
    ("target", "draft", "expected"),
    [
        (lying_on(CPU=11), lying_on(CPU=3), ""),
        (lying_on(CUDA0=11), None, "RTX 4060"),
        (lying_on(CUDA0=11), lying_on(CUDA0=3), "RTX 4060"),
        (lying_on(CUDA0=4, CPU=7), lying_on(CUDA0=3), "RTX 4060, 4 of 11 layers; draft: RTX 4060"),
        (lying_on(CUDA0=11), lying_on(CPU=3), "RTX 4060; draft on the processor"),
        (lying_on(CPU=11), lying_on(CUDA0=3), "draft: RTX 4060"),
        (lying_on(CUDA0=6, CUDA1=5), None, "RTX 4060 and CUDA1"),
    ],
)
def test_where_a_pair_lies_is_reported(target: Model, draft: Model | None, expected: str) -> None:
    assert devices.place_of(target, draft, [CARD]) == expected


def test_a_loaded_model_knows_where_its_layers_lie(tiny_target: Path) -> None:
    with Model(tiny_target, n_gpu_layers=0) as loaded:
        assert loaded.layers == {"CPU": 11} and not loaded.on_gpu


def test_cells_are_kept_in_order_on_the_processor_alone() -> None:
    """On a card batches differ from single tokens anyway, and masked cells would be read for nothing."""
    settings = ContextSettings(64, n_seq=2, n_rows=2)
    for on_gpu in (False, True):
        there = SimpleNamespace(on_gpu=on_gpu, has_recurrent_state=False)
        assert keeps_order(there, settings) is not on_gpu  # type: ignore[arg-type]


def test_what_lies_on_a_card_is_reported_with_its_name() -> None:
    need = Need({RAM: Parts(weights=1 << 20), "CUDA0": Parts(weights=2 << 30)}, 11)
    choice = Allotment(4096, -1, -1, {"target": need})
    ram = Device(RAM, 16 << 30, 16 << 30)
    told = Fit(True, choice, (ram, CARD)).where
    assert told == "2.0 GiB on CUDA0 (RTX 4060; 7.0 GiB of 8.0 GiB free), 1 MiB in RAM"
    assert Fit(True, choice, (ram,)).where == ""


def test_the_panel_names_the_card() -> None:
    rows = dict(rows_of(None, PanelState(info=Info("a", speculates=True, card="RTX 4060"))))
    assert rows["card"] == "RTX 4060"
    assert "card" not in dict(rows_of(None, PanelState(info=Info("a", speculates=True))))
