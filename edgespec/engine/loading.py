"""Loading a pair: the weights of target and draft or head, and their caches."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from edgespec.errors import DeviceFullError, ModelUnsupportedError
from edgespec.llama import remote
from edgespec.llama.context import Context
from edgespec.llama.devices import cards
from edgespec.llama.heads.guessing import DraftContext, head_context
from edgespec.llama.heads.head_settings import OF_NEXTN
from edgespec.llama.model import Model
from edgespec.llama.settings import settings_for
from edgespec.llama.translated_context import TranslatedContext
from edgespec.memory.at_load import plans
from edgespec.pairs.check import headers_of
from edgespec.pairs.settings import PairSettings
from edgespec_models.gguf.heads import Head
from edgespec_models.gguf.translation import Translation

WEIGHTS = 0.9  # of the loading time
OnProgress = Callable[[Literal["target", "draft", "caches"], float], None]


@dataclass(frozen=True, slots=True)
class LoadedModels:
    """Models and contexts of a pair."""

    target: Model
    draft: Model | None  # the file beside the target's: of a draft model, or of a head
    target_context: Context
    draft_context: DraftContext | None


def load_what_fits(
    opened: ExitStack,
    target: Path,
    draft: Path | None,
    head: Head | None,
    translation: Translation | None,
    settings: PairSettings,
    n_rows: int,
    on_progress: OnProgress,
) -> tuple[LoadedModels, PairSettings, tuple[str, ...]]:
    """Loads a pair as `load_pair` does, with a smaller plan if a graphics card is full sooner than planned.

    Also returns the settings it was loaded with, and in words what was given up to fit into memory.
    """
    full = DeviceFullError("no plan was tried")
    for planned, gave_up in plans(target, draft, settings, cards()):
        with ExitStack() as tried:
            try:
                loaded = load_pair(tried, target, draft, head, translation, planned, n_rows, on_progress)
            except DeviceFullError as error:
                full = error
                continue
            opened.push(tried.pop_all())
            return loaded, planned, gave_up
    raise full


def load_pair(
    opened: ExitStack,
    target: Path,
    draft: Path | None,
    head: Head | None,
    translation: Translation | None,
    settings: PairSettings,
    n_rows: int,
    on_progress: OnProgress,
) -> LoadedModels:
    """Loads the weights and makes the contexts; `opened` closes them.

    head: in the draft's file or, without one, in the target's. translation: for a draft with another
    vocabulary. n_rows: logits rows that one evaluation of the target may have. A head in the target's file
    that this build of llama.cpp cannot run is ignored.
    """
    share = _share(target, draft)
    layers = settings.n_gpu_layers
    in_target = head is not None and not head.alone

    def show(done: float) -> None:
        on_progress("draft", share + (WEIGHTS - share) * done)

    large = opened.enter_context(
        Model(
            target,
            n_gpu_layers=layers,
            mtp=in_target,
            devices=remote.devices(settings.rpc),
            tensor_split=settings.tensor_split,
            on_progress=lambda done: on_progress("target", share * done),
        )
    )
    small: Model | None = None
    if draft is not None:
        layers = layers if settings.draft_gpu_layers is None else settings.draft_gpu_layers
        mtp = head is not None and head.kind in OF_NEXTN
        small = opened.enter_context(
            Model(draft, n_gpu_layers=layers, mtp=mtp, head=head is not None, on_progress=show)
        )
    remote.watch(settings.rpc)
    on_progress("caches", WEIGHTS)
    wanted = settings_for(large, settings)
    context = opened.enter_context(Context(large, replace(wanted, n_rows=n_rows)))
    guessing = small or (large if in_target else None)
    if guessing is None:
        return LoadedModels(large, None, context, None)
    n_ctx, rope = wanted.n_ctx, wanted.rope
    if not head:
        rope = rope.of_draft(headers_of(large.path)[0], headers_of(guessing.path)[0])
        n_ctx = min(n_ctx, rope.reach(guessing.n_ctx_train))
    cells = min(wanted.cells, n_ctx * settings.slots) if wanted.cells else None
    wanted = replace(wanted, n_ctx=n_ctx, cells=cells, kv_type=settings.draft_kv_type, rope=rope)
    if head is None:
        own = opened.enter_context(Context(guessing, wanted))
        seen = TranslatedContext(own, translation, large.n_vocab) if translation else own
        return LoadedModels(large, small, context, seen)
    try:
        made = head_context(guessing, context, wanted, head)
    except ModelUnsupportedError:
        if head.alone:  # the user named it
            raise
        context.close()  # it may keep hidden rows already
        context = opened.enter_context(Context(large, replace(settings_for(large, settings), n_rows=n_rows)))
        return LoadedModels(large, None, context, None)
    opened.callback(made.close)
    return LoadedModels(large, small, context, made)


def _share(target: Path, draft: Path | None) -> float:
    """Returns the target's part of loading, going by file sizes."""
    sizes = [file.stat().st_size if file.exists() else 0 for file in (target, draft) if file]
    return WEIGHTS * (sizes[0] / max(sum(sizes), 1))
