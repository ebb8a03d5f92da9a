"""Experts in main memory, and tensors where the user wants them: what is chosen, refused and told."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Literal

import pytest
import tiny_gguf
from hypothesis import given
from hypothesis import strategies as st

from edgespec.core.request import Request, Scoring
from edgespec.engine.pair import Pair, PairSettings
from edgespec.errors import SettingError
from edgespec.pairs.check import headers_of
from edgespec.pairs.metadata_override import MetadataOverride, parse_overrides
from edgespec.pairs.placement import ALL_LAYERS, Placement, expert_layers, place_of, placement
from edgespec.sampling.sampler import Sampling
from edgespec_models.fit.allotment import ALL, CARD_MARGIN, RAM_MARGIN
from edgespec_models.fit.fit import Fit, choose
from edgespec_models.fit.need import RAM, Device, Need, Parts

GIB = 2**30
MIXED = tuple(range(1, 32))  # the first of 32 layers is dense; each other has 1 GiB of experts


def asks(
    model: Literal["target", "draft"],
    *,
    n_gpu_layers: int,
    n_ctx: int,
    kv_type: str | None,
    cpu_moe: tuple[int, ...] | None,
) -> Need:
    """A mixture of 31 GiB of experts on two cards, beside 0.1 GiB a layer; layers go there in halves."""
    on_cards = 32 if n_gpu_layers == ALL else n_gpu_layers
    found = {RAM: 0.0, "CUDA0": 0.0, "CUDA1": 0.0}
    for layer in range(32):
        card = "CUDA0" if layer < 16 else "CUDA1"
        where = card if layer >= 32 - on_cards else RAM
        found[where] += 0.1 + 0.25 * n_ctx / 8192
        if layer in MIXED:
            found[RAM if layer in (cpu_moe or ()) else where] += 1
    return Need({name: Parts(weights=int(size * GIB)) for name, size in found.items()}, 32)


def fit(cards: tuple[float, float], ram: float = 64.0, n_ctx: int | None = None) -> Fit:
    devices = [Device(RAM, int(ram * GIB) + RAM_MARGIN, 128 * GIB)]
    devices += [Device(f"CUDA{i}", int(free * GIB) + CARD_MARGIN, 48 * GIB) for i, free in enumerate(cards)]
    return choose(
        asks, devices, has_draft=False, n_ctx_train=8192, n_ctx=n_ctx, expert_layers=MIXED
    )  # fmt: skip


def test_a_mixture_that_fits_lies_on_the_cards_whole() -> None:
    found = fit((24, 24))
    assert found.choice.n_gpu_layers == ALL and not found.choice.cpu_moe and not found.gave_up


@pytest.mark.parametrize("cards", [(16, 16), (12, 12), (8, 8), (20, 10)])
def test_as_few_experts_as_possible_stay_in_ram_and_all_layers_go_on_the_cards(
    cards: tuple[float, float],
) -> None:
    found = fit(cards, n_ctx=8192)
    kept = found.choice.cpu_moe or ()
    assert found.choice.n_gpu_layers == ALL and kept and set(kept) <= set(MIXED)
    assert found.gave_up == (f"experts of {len(kept)} of 31 layers in main memory",)
    for free, card in zip(cards, ("CUDA0", "CUDA1"), strict=True):
        assert found.choice.on(card) <= free * GIB
    spread = [sum(layer < 16 for layer in kept), sum(layer >= 16 for layer in kept)]
    assert abs(spread[0] - spread[1]) <= 2, "a contiguous run would empty one card and leave the other full"


def test_layers_leave_the_cards_only_when_all_experts_have() -> None:
    found = fit((3, 3), n_ctx=8192)
    assert found.fits and found.choice.cpu_moe == MIXED and 0 < found.choice.n_gpu_layers < 32


def test_the_rules_name_the_layers_experts_and_the_users_own_come_first() -> None:
    placed = Placement((0, 12), ((r"blk\.12\.ffn_up", "CUDA0"),))
    names = [f"blk.{i}.ffn_{part}_exps.weight" for i in (0, 1, 12, 120) for part in ("up", "gate_up")]
    assert [place_of(name, placed.rules) for name in names] == [
        "CPU", "CPU", None, None, "CUDA0", "CPU", None, None
    ]  # fmt: skip
    assert place_of("blk.7.ffn_down_chexps.weight", Placement(ALL_LAYERS).rules) == "CPU"
    assert place_of("blk.7.ffn_down_shexp.weight", Placement(ALL_LAYERS).rules) is None, (
        "every token reads it"
    )
    assert Placement().rules == Placement(()).rules == ()


def test_flags_say_what_llama_servers_say() -> None:
    read = placement(cpu_moe=False, n_cpu_moe=2, overrides=["exps=CPU,attn_(q|k)=CUDA1", "a=b=CPU"])
    assert read == Placement((0, 1), (("exps", "CPU"), ("attn_(q|k)", "CUDA1"), ("a=b", "CPU")))
    assert placement(cpu_moe=True, n_cpu_moe=None, overrides=[]).cpu_moe == ALL_LAYERS
    assert placement(cpu_moe=False, n_cpu_moe=0, overrides=[]).cpu_moe == (), "none, and none chosen"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"cpu_moe": True, "n_cpu_moe": 1}, "say how many experts"),
        ({"n_cpu_moe": -1}, "from 0 to 10,000"),
        ({"overrides": ["exps"]}, "write PATTERN=PLACE"),
        ({"overrides": ["=CPU"]}, "write PATTERN=PLACE"),
        ({"overrides": ["exps="]}, "write PATTERN=PLACE"),
        ({"overrides": ["(=CPU"]}, "no regular expression"),
        ({"overrides": ["(?<=a)b=CPU"]}, "llama.cpp does not know (?"),
        ({"overrides": ["a*+=CPU"]}, "llama.cpp does not know *+"),
    ],
)
def test_nonsense_is_refused_before_anything_is_loaded(given: dict[str, object], expected: str) -> None:
    with pytest.raises(SettingError, match=re.escape(expected)):
        placement(**{"cpu_moe": False, "n_cpu_moe": None, "overrides": [], **given})  # type: ignore[arg-type]


@given(st.text(max_size=12))
def test_any_pattern_is_understood_or_refused(text: str) -> None:
    try:
        Placement(None, ((text, "CPU"),)).check([SimpleNamespace(name="m", tensors=())])  # type: ignore[list-item]
    except SettingError as error:
        assert "--override-tensor" in str(error)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (("expss", "CPU"), "matches no tensor of"),
        (("exps", "CUDA9"), "names the place CUDA9, which is not here"),
    ],
)
def test_a_pair_refuses_a_pattern_without_tensors_and_a_place_that_is_not_here(
    rule: tuple[str, str], expected: str, tmp_path: Path
) -> None:
    model = tiny_gguf.write_experts(tmp_path / "experts.gguf")
    assert expert_layers(headers_of(model)) == (0, 1)
    with pytest.raises(SettingError, match=expected):
        Pair(model, None, PairSettings(n_ctx=64, remember=False, placement=Placement(None, (rule,))))


def test_metadata_is_read_as_the_user_says(tmp_path: Path) -> None:
    """Fewer experts a token, as people have it for speed: other logits, and llama.cpp read it."""
    model = tiny_gguf.write_experts(tmp_path / "experts.gguf")
    one = parse_overrides(["qwen3moe.expert_used_count=int:1"])
    assert one == (MetadataOverride("qwen3moe.expert_used_count", 1),)
    assert parse_overrides(["a=bool:true,b=float:0.5", "c=str:x=y:z"])[2] == ("c", "x=y:z")

    def first(metadata: tuple[MetadataOverride, ...]) -> list[float]:
        settings = PairSettings(n_ctx=64, threads=1, remember=False, metadata=metadata)
        with Pair(model, None, settings) as pair:
            request = Request(sampling=Sampling(temperature=0), max_tokens=1, scoring=Scoring())
            rounds = pair.generate(pair.prompt_tokens("def f"), request)
            return [score.chosen.logprob for round_ in rounds for score in round_.scores]

    assert first(one) != first(())


@pytest.mark.parametrize(
    "wrong", ["a", "a=int", "a=int:x", "a=bool:1", "=int:1", "a=what:1", "a=str:" + "x" * 200]
)
def test_metadata_in_another_form_is_refused(wrong: str) -> None:
    with pytest.raises(SettingError, match="write KEY=TYPE:VALUE"):
        parse_overrides([wrong])
