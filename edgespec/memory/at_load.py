"""Compares a pair with the free memory before it is loaded, so that it never exhausts the machine.

The formula shows at once that a small pair fits; if it could be close, llama.cpp itself is asked.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Literal

from edgespec.errors import (
    DoesNotFitError,
    EdgeSpecError,
    MachineLostError,
    ModelFileError,
    UnknownPlaceError,
)
from edgespec.llama.memory_question import Question
from edgespec.memory.free import free_memory, mapped_files
from edgespec.memory.oracle import MemoryOracle
from edgespec.pairs.check import headers_of
from edgespec.pairs.placement import expert_layers
from edgespec.pairs.settings import KvType, PairSettings
from edgespec.system.machines import remote_devices
from edgespec_models.fit.allotment import ALL, RAM_MARGIN, Asks
from edgespec_models.fit.fit import USUAL_N_CTX, Fit, choose
from edgespec_models.fit.formulas import formula_need
from edgespec_models.fit.need import RAM, Device, Need
from edgespec_models.gguf.facts import facts_of
from edgespec_models.gguf.head_check import own_head
from edgespec_models.gguf.header import Header, HeaderError
from edgespec_models.gguf.heads import head_of

ONE_AT_A_TIME = ("hybrid", "recurrent")  # memories that serve one request at a time, whatever is asked for
SMALLER_PLANS = (0.7, 0.4)  # of the free memory that the cards report
ROOMY = 2.0  # factor over the formula that must be free to ask nobody else
Cards = list[Device]
Ask = Callable[[Path, Path | None, PairSettings, list[Device]], Fit] | None
ROWS = {True: 49, False: 63}  # logits rows of the target: alone (the longest draft and one), with others


def fitted(
    target: Path, draft: Path | None, settings: PairSettings, cards: Cards, taken: int = 0, ask: Ask = None
) -> tuple[PairSettings, tuple[str, ...]]:
    """Returns the settings with which the pair fits, and in words what was given up for that; chooses context
    and layers if they are not set.

    cards: the graphics cards that llama.cpp uses. taken: bytes of RAM that will be taken besides. ask: what
    says what fits on devices; None: `pair_fit`.
    Raises DoesNotFitError, which says what would fit, ModelFileError for a damaged header, which llama.cpp
    never sees, MachineLostError and UnknownPlaceError. Other problems of a sound file pass: loading it
    reports them.
    """
    try:
        if not (cards or settings.rpc) and _plenty(target, draft, settings, taken):
            return settings, ()
        fit = (ask or pair_fit)(target, draft, settings, [ram(taken), *remote_devices(settings.rpc), *cards])
    except HeaderError as error:
        raise ModelFileError(str(error)) from None
    except (MachineLostError, UnknownPlaceError):
        raise
    except EdgeSpecError:
        return settings, ()
    if not fit.fits:
        raise DoesNotFitError(fit.sentence(" and ".join(path.name for path in (target, draft) if path)))
    if settings.n_ctx is None:
        settings = replace(settings, n_ctx=fit.choice.n_ctx)
    settings = replace(
        settings, n_gpu_layers=fit.choice.n_gpu_layers, draft_gpu_layers=fit.choice.draft_gpu_layers
    )
    if fit.choice.cpu_moe is not None:
        settings = replace(settings, placement=replace(settings.placement, cpu_moe=fit.choice.cpu_moe))
    return settings, (*fit.gave_up, *(fit.proposals if fit.gave_up else ()))


def plans(
    target: Path, draft: Path | None, settings: PairSettings, cards: Cards, taken: int = 0, ask: Ask = None
) -> Iterator[tuple[PairSettings, tuple[str, ...]]]:
    """Yields what `fitted` returns and, in case a card has less memory than it reported, smaller
    plans, the last without a card. If the layers are set, there is one plan. Those of
    `settings.plans_failed` are skipped, but never the last."""
    different: list[tuple[PairSettings, tuple[str, ...]]] = []
    for plan in _smaller_and_smaller(target, draft, settings, cards, taken, ask):
        if different and plan[0] == different[-1][0]:
            continue  # the card had no room for exactly that
        different.append(plan)
        if len(different) > settings.plans_failed:
            yield plan
    if len(different) <= settings.plans_failed:
        yield different[-1]


def _smaller_and_smaller(
    target: Path, draft: Path | None, settings: PairSettings, cards: Cards, taken: int, ask: Ask
) -> Iterator[tuple[PairSettings, tuple[str, ...]]]:
    yield fitted(target, draft, settings, cards, taken, ask=ask)
    if not cards or settings.n_gpu_layers >= 0:
        return
    why = "a graphics card had less memory than it reported"
    for share in SMALLER_PLANS:
        with suppress(DoesNotFitError):
            less = [replace(card, free=int(card.free * share)) for card in cards]
            smaller, gave_up = fitted(target, draft, settings, less, taken, ask=ask)
            yield smaller, (why, *gave_up)
    settings = replace(settings, n_gpu_layers=0, draft_gpu_layers=0)
    settings, gave_up = fitted(target, draft, settings, [], taken, ask=ask)
    yield settings, (why, "all layers stay in RAM", *gave_up)


def fits_with(
    target: Path,
    draft: Path | None,
    settings: PairSettings,
    engines: Sequence[int],
    *,
    mapped: Callable[[int], int] = mapped_files,
) -> bool:
    """Returns whether a pair fits with what is loaded, and gives up nothing for that.

    engines: the processes that have models, whose files are `mapped`. True for files that cannot be read:
    loading them says why.
    """
    if settings.rpc:  # each of these machines has one client at a time
        return False
    try:
        fit = pair_fit(target, draft, settings, taken=sum(map(mapped, engines)))
    except (EdgeSpecError, HeaderError):
        return True
    return fit.fits and not fit.gave_up


def pair_fit(
    target: Path,
    draft: Path | None,
    settings: PairSettings,
    devices: list[Device] | None = None,
    taken: int = 0,
    projector: Need | None = None,
) -> Fit:
    """Returns what fits of a pair, asking llama.cpp. devices: None are those of this machine. taken: bytes of
    its memory that look free and are not. projector: what lies there besides the pair.

    Raises HeaderError for a file that is not a model, MachineLostError if a machine of --rpc cannot serve
    us, and what MemoryOracle.need raises.
    """
    files = {"target": target, "draft": draft}
    headers = {name: headers_of(path) for name, path in files.items() if path}
    if any(facts_of(of[0]).memory in ONE_AT_A_TIME for of in headers.values()):
        settings = replace(settings, slots=1)
    with MemoryOracle() as oracle:
        asks = _asks(oracle, headers, files, settings)
        if devices is None:
            devices = [ram(taken), *remote_devices(settings.rpc), *oracle.devices()]
        if projector:
            devices = [replace(one, free=one.free - projector.on(one.name)) for one in devices]
        return choose(
            asks,
            devices,
            has_draft=draft is not None,
            n_ctx_train=headers["target"][0].of_architecture("context_length", USUAL_N_CTX) or USUAL_N_CTX,
            n_ctx=settings.n_ctx,
            n_gpu_layers=settings.n_gpu_layers if settings.n_gpu_layers >= 0 else ALL,
            draft_gpu_layers=settings.draft_gpu_layers,
            expert_layers=expert_layers(headers["target"]) if settings.placement.cpu_moe is None else (),
        )


def ram(taken: int = 0) -> Device:
    """Returns the machine's own memory. taken: bytes that look free and are not."""
    free, total = free_memory()
    return Device(RAM, free - taken, total)


def projector_need(path: Path | None) -> Need | None:
    """Returns what a projector takes; None without one, and of one that cannot be used."""
    try:
        with MemoryOracle() as oracle:
            return oracle.projector(str(path)) if path else None
    except EdgeSpecError:
        return None


def memory_for_models() -> int:
    """Returns the bytes that are free for a model: the machine's own and those of its graphics cards."""
    try:
        with MemoryOracle() as oracle:
            cards = sum(card.free for card in oracle.devices() if not card.shares_ram)
    except EdgeSpecError:  # llama.cpp cannot be loaded: loading a model reports it
        cards = 0
    return free_memory()[0] + cards


def _asks(
    oracle: MemoryOracle,
    headers: dict[str, list[Header]],
    files: dict[str, Path | None],
    settings: PairSettings,
) -> Asks:
    head_file = head_of(headers["draft"]) if "draft" in headers else None
    head, why_not = own_head(headers["target"])
    mtp = settings.head and files["draft"] is None and head is not None and why_not is None

    def ask(
        model: Literal["target", "draft"],
        *,
        n_gpu_layers: int,
        n_ctx: int,
        kv_type: str | None,
        cpu_moe: tuple[int, ...] | None,
    ) -> Need:
        if model == "draft" and head_file is None:  # it guesses from the end of a longer conversation
            rope, header = (
                settings.rope.of_draft(headers["target"][0], headers["draft"][0]),
                headers["draft"][0],
            )
            n_ctx = min(n_ctx, rope.reach(header.of_architecture("context_length", n_ctx) or n_ctx))
        cells = n_ctx * settings.slots
        if settings.cache_tokens is not None:
            cells = max(n_ctx, min(settings.cache_tokens, cells))
        asked: KvType = settings.kv_type if model == "target" else settings.draft_kv_type
        chosen = asked if kv_type is None else "q8_0"
        placed = settings.placement if model == "target" else settings.draft_placement
        if cpu_moe is not None:
            placed = replace(placed, cpu_moe=cpu_moe)
        rows = ROWS[settings.slots == 1] if model == "target" else settings.slots
        try:
            return oracle.need(
                Question(
                    path=str(files[model]),
                    n_gpu_layers=n_gpu_layers,
                    n_ctx=n_ctx,
                    cells=cells,
                    n_seq=settings.slots,
                    n_rows=rows,
                    kv_type=chosen,
                    flash_attention=False if settings.byte_identical else settings.flash_attention,
                    mtp=mtp,
                    target=str(files["target"]) if head_file and model == "draft" else None,
                    rpc=settings.rpc if model == "target" else (),
                    tensor_split=settings.tensor_split if model == "target" else (),
                    rules=placed.rules,
                )
            )
        except UnknownPlaceError:
            raise
        except EdgeSpecError:  # an architecture that this build does not know: loading it reports that
            return formula_need(
                headers[model], cells=cells, n_rows=rows, kv_type=chosen, n_seq=settings.slots
            )

    return ask


def _plenty(target: Path, draft: Path | None, settings: PairSettings, needed: int) -> bool:
    """True if even twice the formula's figure is free. needed: bytes besides."""
    for path, rows in ((target, 63), (draft, settings.slots)):
        if path:
            headers = headers_of(path)
            trained = headers[0].of_architecture("context_length", USUAL_N_CTX) or USUAL_N_CTX
            cells = (settings.n_ctx or min(trained, USUAL_N_CTX)) * settings.slots
            needed += formula_need(headers, cells=cells, n_rows=rows, n_seq=settings.slots).total
    return needed * ROOMY < free_memory()[0] - RAM_MARGIN
