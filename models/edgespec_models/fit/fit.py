"""What fits: how many layers go on the graphics card and how long the context is, for a pair and a machine.

The draft goes to the fastest memory first, then the whole target; the context is shortened to a useful
length before weights are left in the machine's own memory, and further only if nothing else helps. Of a
mixture, experts are left there first, as few as possible: a token reads few of them. The result says what was
given up. A smaller number format of the cache is proposed if it would help and never chosen,
because it changes the target's scores.

Sizes come from `Asks`: llama.cpp itself, or formulas. This module only chooses.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from edgespec_models.fit.allotment import ALL, Allotment, Asks, Search, margin
from edgespec_models.fit.need import RAM, Device

USUAL_N_CTX = 8192  # if no length of the context is given
USEFUL_N_CTX = 4096  # down to this the context is shortened before layers leave the graphics card
LEAST_N_CTX = 512
SMALLER = "use a smaller model or a smaller quantisation"


@dataclass(frozen=True, slots=True)
class Fit:
    """Whether a pair fits. choice: what was chosen or, if nothing fits, the least that was tried."""

    fits: bool
    choice: Allotment
    devices: tuple[Device, ...]
    gave_up: tuple[str, ...] = ()  # in plain words
    proposals: tuple[str, ...] = ()  # flags that would fit more, or at all, each with what it costs

    @property
    def where(self) -> str:
        """What lies where, in words; "" if there is no graphics card."""
        cards = [device for device in self.devices if device.name != RAM]
        if not cards:
            return ""
        parts = [
            f"{gib(self.choice.on(card.name))} on {card.name} ({card.description or 'a graphics card'}; "
            f"{gib(card.free)} of {gib(card.total)} free)"
            for card in cards
        ]
        return ", ".join([*parts, f"{gib(self.choice.on(RAM))} in RAM"])

    @property
    def attention(self) -> str:
        """How attention is evaluated, and why; "" if unknown."""
        needs = self.choice.needs
        target, draft = needs["target"].attention, needs["draft"].attention if "draft" in needs else None
        if not target:
            return ""
        differs = draft and draft.on != target.on
        return f"flash attention: {target}" + (f"; in the draft {draft}" if differs else "")

    def sentence(self, name: str) -> str:
        """Describes it in one sentence. name: of the pair."""
        if not self.fits:
            return _refused(self, name)
        n_ctx = self.choice.n_ctx
        what = f"{name} {_take(name)} {gib(self.choice.total)} with a context of {n_ctx:,} tokens"
        return "; ".join([what, *self.gave_up, *self.proposals])


def choose(
    asks: Asks,
    devices: Sequence[Device],
    *,
    has_draft: bool,
    n_ctx_train: int,
    n_ctx: int | None = None,
    n_gpu_layers: int = ALL,
    draft_gpu_layers: int | None = None,
    expert_layers: Sequence[int] = (),
) -> Fit:
    """Returns what fits best. devices: the machine's memory (named RAM) and its graphics cards.

    n_ctx: kept if it is given; None: the usual length, or what fits of it. n_gpu_layers: kept
    if it is not ALL, which means as many as fit. draft_gpu_layers: kept if it is given. expert_layers: the
    target's layers whose experts may stay in RAM while all else is on a card.
    """
    search = Search(asks, devices, has_draft, expert_layers)
    wanted = n_ctx or min(n_ctx_train, USUAL_N_CTX)
    lengths = [wanted] if n_ctx else _ladder(wanted)
    choice = _first_that_fits(search, lengths, n_gpu_layers, draft_gpu_layers)
    if choice is None:
        least = search.choice(lengths[-1], 0 if n_gpu_layers == ALL else n_gpu_layers, draft_gpu_layers or 0)
        if not search.has_card:
            least = search.choice(lengths[-1], ALL, ALL)
        return Fit(False, least, tuple(devices), (), _proposals(search, least, wanted, n_ctx is not None))
    free = search.has_card and n_gpu_layers == ALL
    gave_up = _given_up(choice, wanted, layers=free, draft=draft_gpu_layers, mixed=len(expert_layers))
    proposals = _smaller_cache(search, choice, wanted) if choice.n_ctx < wanted else ()
    return Fit(True, choice, tuple(devices), gave_up, proposals)


def _ladder(longest: int) -> list[int]:
    """Returns lengths from the longest down, each half of the one before, in whole steps of 256."""
    lengths = [longest]
    while lengths[-1] // 2 >= LEAST_N_CTX:
        lengths.append(lengths[-1] // 2 // 256 * 256)
    return lengths


def _first_that_fits(
    search: Search, lengths: Sequence[int], n_gpu_layers: int, draft: int | None
) -> Allotment | None:
    """Tries what is best first. draft: its layers, if given."""
    if n_gpu_layers != ALL or not search.has_card:
        return _longest(search, lengths, n_gpu_layers, n_gpu_layers if draft is None else draft)
    useful = [n for n in lengths if n >= USEFUL_N_CTX] or [lengths[0]]
    if choice := _longest(search, useful, ALL, ALL if draft is None else draft):
        return choice
    for n_ctx in [n for n in lengths if n <= useful[-1]]:
        for draft_layers in (ALL, 0) if draft is None else (draft,):
            if choice := _fewest_experts(search, n_ctx, draft_layers):
                return choice
            if choice := _most_layers(search, n_ctx, draft_layers):
                return choice
    return None


def _fewest_experts(search: Search, n_ctx: int, draft_layers: int) -> Allotment | None:
    """Returns the choice with all layers on cards and as few experts as possible in RAM; None if none fits.

    Those layers are spread evenly, because neighbours lie on one card.
    """
    layers, best = search.expert_layers, None
    low, high = 0, len(layers) + 1
    while high - low > 1:
        n = (low + high) // 2
        spread = tuple(layer for i, layer in enumerate(layers) if i * n % len(layers) < n)
        choice = search.choice(n_ctx, ALL, draft_layers, cpu_moe=spread)
        if search.fits(choice):
            high, best = n, choice
        else:
            low = n
    return best


def _longest(search: Search, lengths: Sequence[int], layers: int, draft_layers: int) -> Allotment | None:
    for n_ctx in lengths:
        choice = search.choice(n_ctx, layers, draft_layers)
        if search.fits(choice):
            return choice
    return None


def _most_layers(search: Search, n_ctx: int, draft_layers: int) -> Allotment | None:
    """Returns the choice with the most target layers on the card, of those that leave some in RAM."""
    experts = tuple(search.expert_layers) or None
    best = search.choice(n_ctx, 0, draft_layers, cpu_moe=experts)
    if not search.fits(best):
        return None
    low, high = 0, best.needs["target"].n_layers
    while high - low > 1:
        middle = (low + high) // 2
        choice = search.choice(n_ctx, middle, draft_layers, cpu_moe=experts)
        if search.fits(choice):
            low, best = middle, choice
        else:
            high = middle
    return best


def _given_up(
    choice: Allotment, wanted: int, *, layers: bool, draft: int | None, mixed: int
) -> tuple[str, ...]:
    """Says what the choice falls short of. layers: of those too. draft: its layers, if given. mixed: layers
    with experts that the choice was free to place."""
    found = []
    if choice.n_ctx < wanted:
        found.append(f"the context holds {choice.n_ctx:,} tokens instead of {wanted:,}")
    n_layers = choice.needs["target"].n_layers
    if layers and choice.n_gpu_layers != ALL:
        found.append(f"{n_layers - choice.n_gpu_layers} of the target's {n_layers} layers stay in RAM")
    if layers and choice.cpu_moe:
        found.append(f"experts of {len(choice.cpu_moe)} of {mixed} layers in main memory")
    if layers and choice.draft_gpu_layers == 0 and draft is None and "draft" in choice.needs:
        found.append("the draft stays in RAM")
    return tuple(found)


def _proposals(search: Search, least: Allotment, wanted: int, given: bool) -> tuple[str, ...]:
    """Returns what would make a pair fit that does not."""
    found: list[str] = []
    layers, draft_layers = least.n_gpu_layers, least.draft_gpu_layers
    if given:
        shorter = [n for n in _ladder(wanted)[1:] if n < wanted]
        if choice := _longest(search, shorter, layers, draft_layers):
            found.append(f"--ctx {choice.n_ctx}")
    if search.fits(small := search.choice(least.n_ctx, layers, draft_layers, kv_type="q8_0")):
        found.append(f"--kv-type q8_0 with --ctx {small.n_ctx} (it changes the target's scores a little)")
    if search.has_draft and search.fits(search.choice(least.n_ctx, layers, draft_layers, draft=False)):
        found.append("--no-draft")
    return tuple(found)


def _smaller_cache(search: Search, choice: Allotment, wanted: int) -> tuple[str, ...]:
    """Returns how much of the context a smaller cache would win back."""
    for n_ctx in _ladder(wanted):
        if n_ctx <= choice.n_ctx:
            break
        small = search.choice(n_ctx, choice.n_gpu_layers, choice.draft_gpu_layers, kv_type="q8_0")
        if search.fits(small):
            return (
                f"--kv-type q8_0 makes room for {n_ctx:,} tokens (it changes the target's scores a little)",
            )
    return ()


def _refused(fit: Fit, name: str) -> str:
    """Says what is too small, and what would fit."""
    short = max(fit.devices, key=lambda device: fit.choice.on(device.name) - device.free)
    takes = fit.choice.on(short.name)
    if short.name == RAM:
        takes += sum(fit.choice.on(device.name) for device in fit.devices if device.shares_ram)
    free = "memory" if short.name == RAM else f"{short.name}'s memory"
    instead = " or ".join(fit.proposals) + " would fit" if fit.proposals else SMALLER
    return (
        f"{name} with a context of {fit.choice.n_ctx:,} tokens {_take(name)} {gib(takes)}, and "
        f"{gib(max(0, short.free - margin(short)))} of {free} can be had for that: {instead}"
    )


def _take(name: str) -> str:
    return "take" if " and " in name else "takes"


def gib(n_bytes: int) -> str:
    """Returns a size as people read it."""
    return f"{n_bytes / 2**30:.1f} GiB" if n_bytes >= 1000 << 20 else f"{n_bytes / 2**20:.0f} MiB"
