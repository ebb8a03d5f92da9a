"""Experts on the processor and the rest on the card: texts are those of the processor, within the margin."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny_gguf
import tiny_heads
from card.places import LOGITS_DIFFER_AT_MOST, apart
from test_architectures import models as models

from edgespec.commands.verify.equality import complaint, output
from edgespec.core.request import Request
from edgespec.engine.pair import Pair
from edgespec.llama import model
from edgespec.pairs.check import headers_of
from edgespec.pairs.placement import ALL_LAYERS, Placement, expert_layers
from edgespec.pairs.settings import PairSettings
from edgespec.sampling.sampler import Sampling

SETTINGS = PairSettings(n_ctx=128, threads=1, remember=False)
GREEDY = Request(Sampling(temperature=0), 8, drafter="none")
ATTENTION = (("attn", "CPU"),)
OURS = {
    "qwen3moe": tiny_gguf.write_experts,
    "glm4moe, with an MTP block": tiny_heads.write_experts_mtp,
    "qwen3.5, with an MTP block": tiny_heads.write_hybrid_mtp,
}
GENERATED = ("deepseek2", "gpt-oss", "lfm2moe", "llama", "olmoe", "qwen2moe", "qwen3next")


def check(path: Path, settings: PairSettings = SETTINGS) -> None:
    """Compares the texts of every placement with the processor's."""
    layers = expert_layers(headers_of(path))
    with Pair(path, None, replace(settings, n_gpu_layers=0)) as processor:
        prompt = np.random.default_rng(5).integers(3, processor.target.n_vocab, 40).astype(np.int32)
        right = output(processor, prompt, GREEDY)
        for where in (Placement(ALL_LAYERS), Placement(layers[:1]), Placement(None, ATTENTION)):
            with Pair(path, None, replace(settings, placement=where)) as pair:
                found = [apart(processor, right, pair, output(pair, prompt, GREEDY))]
                wrong = complaint(found, identical=False, logits_differ_at_most=LOGITS_DIFFER_AT_MOST)
                assert pair.target.on_gpu and wrong is None, f"{where}: {wrong}"


@pytest.mark.parametrize("name", OURS)
def test_a_mixture_says_the_same_wherever_its_experts_lie(name: str, tmp_path: Path) -> None:
    check(OURS[name](tmp_path / "model.gguf"))


@pytest.mark.parametrize("name", GENERATED)
def test_mixtures_of_llama_cpps_generator_say_the_same_wherever_their_experts_lie(
    name: str, models: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They need EDGESPEC_TEST_PEER, as test_architectures.py does.

    A card in software compiles flash attention for DeepSeek's heads for minutes.
    """
    monkeypatch.setitem(model._TOKENISERS, 7, "test")
    path = next(path for path in models if path.stem == f"{name}-moe")
    check(path, replace(SETTINGS, flash_attention=None if name != "deepseek2" else False))
