"""What fits is chosen from sizes alone; here the sizes are those of arithmetic models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import pytest

from edgespec_models.fit.allotment import ALL, CARD_MARGIN, RAM_MARGIN
from edgespec_models.fit.fit import Fit, choose
from edgespec_models.fit.need import RAM, Device, Need, Parts

MIB, GIB = 2**20, 2**30
LAYERS = 32  # of the target, and one for the output
KV = {None: 1.0, "f16": 1.0, "q8_0": 17 / 32}


def asks(
    model: Literal["target", "draft"],
    *,
    n_gpu_layers: int,
    n_ctx: int,
    kv_type: str | None,
    cpu_moe: tuple[int, ...] | None = None,
) -> Need:
    """A target of 8 GiB with 1 GiB of cache per 8,192 tokens; a draft of an eighth of it."""
    layers, size = (LAYERS + 1, 8 * GIB) if model == "target" else (9, GIB)
    on_card = layers if n_gpu_layers == ALL else min(n_gpu_layers, layers)
    cache = int(size / 8 * n_ctx / 8192 * KV[kv_type])
    there, here = on_card / layers, 1 - on_card / layers
    return Need(
        {
            "CUDA0": Parts(weights=int(size * there), cache=int(cache * there), compute=64 * MIB),
            RAM: Parts(weights=int(size * here), cache=int(cache * here), output=30 * MIB),
        },
        layers,
    )


def on_cpu(
    model: Literal["target", "draft"],
    *,
    n_gpu_layers: int,
    n_ctx: int,
    kv_type: str | None,
    cpu_moe: tuple[int, ...] | None,
) -> Need:
    return Need({RAM: asks(model, n_gpu_layers=n_gpu_layers, n_ctx=n_ctx, kv_type=kv_type).parts}, 33)


def machine(ram: float, card: float | None = None) -> list[Device]:
    """GiB that are free beside the margins."""
    found = [Device(RAM, int(ram * GIB) + RAM_MARGIN, 64 * GIB)]
    if card is not None:
        found.append(Device("CUDA0", int(card * GIB) + CARD_MARGIN, 24 * GIB))
    return found


def fit(
    devices: Sequence[Device],
    *,
    n_ctx: int | None = None,
    has_draft: bool = True,
    layers: int = ALL,
    draft: int | None = None,
) -> Fit:
    card = len(devices) > 1
    return choose(
        asks if card else on_cpu, devices, has_draft=has_draft, n_ctx_train=40960, n_ctx=n_ctx,
        n_gpu_layers=layers, draft_gpu_layers=draft,
    )  # fmt: skip


def takes_no_more_than_there_is(found: Fit) -> bool:
    margins = {RAM: RAM_MARGIN, "CUDA0": CARD_MARGIN}
    return all(found.choice.on(d.name) <= d.free - margins[d.name] for d in found.devices)


def test_with_plenty_of_memory_nothing_is_given_up() -> None:
    found = fit(machine(16))
    assert found.fits and found.choice.n_ctx == 8192 and not found.gave_up and not found.proposals


def test_the_context_is_shortened_where_nobody_set_how_long_it_is_to_be() -> None:
    found = fit(machine(9.9))
    assert found.fits and found.choice.n_ctx == 4096 and takes_no_more_than_there_is(found)
    assert found.gave_up == ("the context holds 4,096 tokens instead of 8,192",)


def test_a_smaller_cache_is_proposed_and_never_chosen() -> None:
    found = fit(machine(9.9))
    assert "--kv-type q8_0 makes room for 8,192 tokens" in found.proposals[0]
    assert found.choice.needs["target"].parts.cache == GIB // 2, "half of the tokens, at full size"


def test_a_context_that_was_asked_for_is_kept_or_refused() -> None:
    assert fit(machine(16), n_ctx=32768).choice.n_ctx == 32768
    refused = fit(machine(11), n_ctx=32768)
    assert not refused.fits
    assert refused.sentence("big and small") == (
        "big and small with a context of 32,768 tokens take 13.7 GiB, and 11.0 GiB of memory can be had "
        "for that: --ctx 8192 would fit"
    )
    assert "--ctx 8192" in refused.proposals


@pytest.mark.parametrize("ram", [9.3, 9.6, 10.0, 11.0])
def test_what_a_refusal_proposes_does_fit(ram: float) -> None:
    refused = fit(machine(ram), n_ctx=32768)
    assert not refused.fits and refused.proposals
    n_ctx = int(refused.proposals[0].removeprefix("--ctx "))
    assert fit(machine(ram), n_ctx=n_ctx).fits
    assert not fit(machine(ram), n_ctx=2 * n_ctx).fits, "and twice as much does not"


def test_without_its_draft_a_target_may_still_fit() -> None:
    refused = fit(machine(8.3))
    assert not refused.fits and "--no-draft" in refused.proposals
    assert fit(machine(8.3), has_draft=False).fits


def test_a_model_that_is_simply_too_large_is_refused_in_one_sentence() -> None:
    refused = fit(machine(2))
    assert not refused.fits and not refused.proposals
    assert refused.sentence("big") == (
        "big with a context of 512 tokens takes 9.3 GiB, and 2.0 GiB of memory can be had for that: "
        "use a smaller model or a smaller quantisation"
    )


def test_all_goes_on_the_card_where_all_fits() -> None:
    found = fit(machine(4, card=12))
    assert found.choice.n_gpu_layers == ALL == found.choice.draft_gpu_layers and not found.gave_up


def test_the_context_is_halved_before_layers_leave_the_card() -> None:
    found = fit(machine(4, card=9.9))
    assert found.choice.n_gpu_layers == ALL and found.choice.n_ctx == 4096


@pytest.mark.parametrize("card", [3.0, 5.0, 7.0, 9.0])
def test_as_many_layers_as_fit_go_on_the_card_and_no_more(card: float) -> None:
    devices = machine(16, card=card)
    found = fit(devices)
    layers = found.choice.n_gpu_layers
    assert found.fits and 0 < layers < LAYERS + 1 and takes_no_more_than_there_is(found)
    assert found.choice.draft_gpu_layers == ALL, "the draft first: it is evaluated most often"
    assert not fit(devices, layers=layers + 1, n_ctx=found.choice.n_ctx).fits, "one more would not fit"
    assert f"{LAYERS + 1 - layers} of the target's 33 layers stay in RAM" in found.gave_up


def test_a_card_too_small_for_the_draft_leaves_it_in_ram() -> None:
    found = fit(machine(16, card=0.9))
    assert found.fits and found.choice.draft_gpu_layers == 0
    assert "the draft stays in RAM" in found.gave_up


def test_layers_that_were_asked_for_are_kept_to() -> None:
    assert fit(machine(16, card=8), layers=10).choice.n_gpu_layers == 10
    assert not fit(machine(16, card=2), layers=33).fits


def test_a_draft_lies_where_it_was_asked_to() -> None:
    """With a card, what was said of the draft's layers was passed over: it lay where the target did."""
    beside = fit(machine(16, card=24), draft=0)
    assert (beside.choice.n_gpu_layers, beside.choice.draft_gpu_layers) == (ALL, 0) and not beside.gave_up
    assert fit(machine(16, card=8), layers=10, draft=0).choice.draft_gpu_layers == 0
    assert fit(machine(16, card=24), layers=0, draft=ALL).choice.draft_gpu_layers == ALL


def test_a_card_without_memory_of_its_own_is_counted_once() -> None:
    """On Apple silicon what is on the card is in RAM too: both limits hold, the sum is not free twice."""
    ram = Device(RAM, 6 * GIB, 16 * GIB)
    shared = Device("CUDA0", 12 * GIB, 12 * GIB, shares_ram=True)
    found = fit([ram, shared])
    assert not found.fits and "9.3 GiB, and 5.8 GiB of memory can be had" in found.sentence("big")
