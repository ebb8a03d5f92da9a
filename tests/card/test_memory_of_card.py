"""What fits on a card is chosen by the card's memory; unloading frees it; too little is a sentence."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import tiny_gguf
from commands import in_process
from test_plan import plan

from edgespec.commands.plan.bandwidth import LAYER, seconds_a_byte
from edgespec.engine.pair import Pair
from edgespec.llama.model import Model
from edgespec.memory.at_load import fitted, pair_fit, ram
from edgespec.memory.oracle import MemoryOracle
from edgespec.pairs.settings import PairSettings
from edgespec.system.builds import built_for
from edgespec.system.config import cache_folder
from edgespec_models.fit.allotment import ALL, CARD_MARGIN
from edgespec_models.fit.need import RAM, Device

SETTINGS = PairSettings(n_ctx=1024, threads=1, remember=False)


def of_size(card: Device, n_bytes: int) -> Device:
    return Device(card.name, n_bytes, n_bytes, card.description, card.shares_ram)


def test_the_card_is_asked_for_in_the_child_too(card: Device) -> None:
    with MemoryOracle() as oracle:
        assert [found.name for found in oracle.devices()][0] == card.name


def test_as_many_layers_as_fit_lie_on_the_card(card: Device, tmp_path: Path) -> None:
    """The layers that were chosen are those that llama.cpp then puts there."""
    path = tiny_gguf.write_llama(
        tmp_path / "model.gguf", n_vocab=1024, d=512, layers=6, n_head=8, ffn=2048, context_length=1024,
        dtype="F16",
    )  # fmt: skip
    whole = pair_fit(path, None, SETTINGS, [ram(), card])
    assert whole.choice.n_gpu_layers == ALL and whole.choice.on(card.name) > whole.choice.on(RAM)
    little = of_size(card, CARD_MARGIN + whole.choice.on(card.name) * 2 // 3)
    some = pair_fit(path, None, SETTINGS, [ram(), little])
    assert some.fits and 0 < some.choice.n_gpu_layers < 7
    assert some.choice.on(card.name) <= little.free - CARD_MARGIN
    assert some.gave_up == (f"{7 - some.choice.n_gpu_layers} of the target's 7 layers stay in RAM",)
    with Model(path, n_gpu_layers=some.choice.n_gpu_layers) as model:
        assert model.layers[card.name] == some.choice.n_gpu_layers


def test_a_pair_is_loaded_with_the_layers_that_fit(card: Device, tiny_target: Path, tiny_draft: Path) -> None:
    settings, gave_up = fitted(tiny_target, tiny_draft, SETTINGS, [card])
    assert settings.n_gpu_layers == settings.draft_gpu_layers == ALL and not gave_up
    with Pair(tiny_target, tiny_draft, settings) as pair:
        assert pair.target.layers == {card.name: 11} and pair.draft and pair.draft.on_gpu
        assert pair.place == card.description


def test_the_draft_lies_where_it_is_worth_most(card: Device, tiny_target: Path, tiny_draft: Path) -> None:
    """On a device in software the processor is the better place by far; the next start knows that."""
    if "llvmpipe" not in card.description:
        pytest.skip(f"which place is better for the embedded draft is not known of {card.description}")
    with Pair(tiny_target, tiny_draft, SETTINGS) as pair:
        assert pair.target.on_gpu and pair.draft and not pair.draft.on_gpu
        assert pair.place == f"{card.description}; draft on the processor"
        (kept,) = (cache_folder() / "places").iterdir()
        assert json.loads(kept.read_text())["draft_gpu_layers"] == 0
        costs = pair.costs()
        assert costs.draft.seconds(1) < costs.target.seconds(1) / 10
    with Pair(tiny_target, tiny_draft, SETTINGS) as pair:
        assert pair.draft and not pair.draft.on_gpu


def test_unloading_gives_the_memory_back(tiny_target: Path) -> None:
    """A device in software has the machine's memory: what a process holds stays where it was."""
    code = f"""
import ctypes, psutil
from edgespec.llama.context import Context, ContextSettings
from edgespec.llama.model import Model
held = []
for _ in range(6):
    with Model({str(tiny_target)!r}) as model, Context(model, ContextSettings(n_ctx=2048, n_rows=49)):
        there = psutil.Process().memory_info().rss
    ctypes.CDLL(None).malloc_trim(0)
    held.append(psutil.Process().memory_info().rss)
print(there - held[-1], held[-1] - held[2])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    given_back, grown = map(int, done.stdout.split())
    assert given_back > 8 << 20 and grown < 4 << 20


def test_a_card_that_has_less_than_it_stated_takes_what_it_can(tiny_target: Path, tmp_path: Path) -> None:
    """It was called a damaged file."""
    if built_for() != "Vulkan":
        pytest.skip("no variable makes other back ends refuse memory")
    code = f"""
from edgespec.engine.pair import Pair
from edgespec.pairs.settings import PairSettings
with Pair({str(tiny_target)!r}, None, PairSettings(n_ctx=256, threads=1, remember=False)) as pair:
    print(pair.gave_up[0], pair.target.layers["CPU"] > 0, sep="|")
"""
    refused = {**os.environ, "GGML_VK_FORCE_MAX_BUFFER_SIZE": "4000000"}  # bytes in one piece
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=refused)
    assert done.stdout == "a graphics card had less memory than it reported|True\n", done.stderr
    words = [sys.executable, "-m", "edgespec", "run", "--target", str(tiny_target), "--no-draft", "-n", "4"]
    done = subprocess.run([*words, "--gpu-layers", "11", "a"], capture_output=True, text=True, env=refused)
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert "too little memory for target.gguf" in done.stderr and "--gpu-layers" in done.stderr


@pytest.mark.timeout(400)  # shaders are compiled for each size that is measured
def test_commands_name_the_card(
    card: Device, tiny_target: Path, tiny_draft: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = ("--target", tiny_target, "--draft", tiny_draft)
    _, out, err = in_process("doctor", "--no-measure", *pair)
    assert card.description in " ".join(out.split()), err
    less = replace(LAYER, d=64, ffn=256)  # large models take minutes on a device in software
    assert seconds_a_byte("F16", PairSettings(), less)[1] > 0
    assert plan(*pair) == 0
    assert card.description in " ".join(capsys.readouterr().out.split())
