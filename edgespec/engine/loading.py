"""Loading a pair: the weights of target and draft or head, and their caches."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from edgespec.errors import DeviceFullError, ModelUnsupportedError
from edgespec.llama import huge_pages, remote
from edgespec.llama.context import Context
from edgespec.llama.devices import cards
from edgespec.llama.heads.guessing import DraftContext, head_context
from edgespec.llama.heads.head_settings import OF_NEXTN
from edgespec.llama.heads.medusa_context import MedusaModel
from edgespec.llama.identical import check_identical, refuse_identical
from edgespec.llama.model import Model
from edgespec.llama.settings import ContextSettings, settings_for
from edgespec.llama.translated_context import TranslatedContext
from edgespec.memory.at_load import plans
from edgespec.memory.free import free_memory
from edgespec.pairs.adapters import Scales
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
    draft: Model | MedusaModel | None  # the file next to the target's: of a draft model, or of a head
    target_context: Context
    draft_context: DraftContext | None


@dataclass(frozen=True, slots=True)
class PairFiles:
    """What a pair is loaded from.

    head: in the draft's file or, without one, in the target's. translation: for a draft with another
    vocabulary. medium: cells of the largest picture that the target has to read at once; encoding: bytes of
    RAM that its projector takes only then.
    """

    target: Path
    draft: Path | None = None
    head: Head | None = None
    translation: Translation | None = None
    medium: int = 0
    encoding: int = 0

    @property
    def head_in_target(self) -> bool:
        return self.head is not None and not self.head.alone


def load_what_fits(
    opened: ExitStack, files: PairFiles, settings: PairSettings, n_rows: int, on_progress: OnProgress
) -> tuple[LoadedModels, PairSettings, tuple[str, ...]]:
    """Loads a pair as `load_pair` does, with a smaller plan if a graphics card is full sooner than planned.

    Also returns the settings it was loaded with, and in words what was given up to fit into memory.
    """
    full = DeviceFullError("no plan was tried")
    for planned, gave_up in plans(files.target, files.draft, settings, cards(), files.encoding):
        with ExitStack() as tried:
            try:
                loaded = load_pair(tried, files, planned, n_rows, on_progress)
            except DeviceFullError as error:
                full = error
                continue
            opened.push(tried.pop_all())
            return loaded, planned, gave_up
    raise full


def load_pair(
    opened: ExitStack, files: PairFiles, settings: PairSettings, n_rows: int, on_progress: OnProgress
) -> LoadedModels:
    """Loads the weights and makes the contexts; `opened` closes them.

    n_rows: logits rows that one evaluation of the target may have. A head in the target's file that this
    build of llama.cpp cannot run is ignored.
    """
    large, small = _weights(opened, files, settings, on_progress)
    remote.watch(settings.rpc)
    on_progress("caches", WEIGHTS)
    wanted = settings_for(large, settings)
    of_target = replace(wanted, n_rows=n_rows, medium=files.medium, identical=settings.byte_identical)
    context = opened.enter_context(_target_context(large, of_target, settings.scales))
    guessing = small or (large if files.head_in_target else None)
    if guessing is None:
        return LoadedModels(large, None, context, None)
    head, wanted = files.head, replace(wanted, kv_type=settings.draft_kv_type)
    if head is None:
        assert isinstance(guessing, Model)
        wanted = _as_far_as_it_reads(large, guessing, wanted)
        own = opened.enter_context(Context(guessing, wanted))
        seen = TranslatedContext(own, files.translation, large.n_vocab) if files.translation else own
        return LoadedModels(large, small, context, seen)
    try:
        made = head_context(guessing, context, wanted, head)
    except ModelUnsupportedError:
        if head.alone:  # the user named it
            raise
        context.close()  # it may keep hidden rows already
        return LoadedModels(
            large, None, opened.enter_context(_target_context(large, of_target, settings.scales)), None
        )
    opened.callback(made.close)
    return LoadedModels(large, small, context, made)


def _target_context(target: Model, how: ContextSettings, scales: Scales) -> Context:
    if how.identical:
        refuse_identical(target)
    context = Context(target, how)
    if how.identical:
        check_identical(context)
    context.adapt(scales)
    return context


def _weights(
    opened: ExitStack, files: PairFiles, settings: PairSettings, on_progress: OnProgress
) -> tuple[Model, Model | MedusaModel | None]:
    """Loads the target, and the file next to it if there is one.

    A head may work with the target's own matrices, and so has to know the machines that they lie on.
    """
    share, layers = _share(files.target, files.draft), settings.n_gpu_layers
    machines = remote.devices(settings.rpc)
    large = opened.enter_context(
        Model(
            files.target,
            n_gpu_layers=layers,
            mtp=files.head_in_target,
            devices=machines,
            tensor_split=settings.tensor_split,
            rules=settings.placement.rules,
            metadata=settings.metadata,
            extra_buffers=False if settings.byte_identical else None,
            in_huge_pages=not machines and huge_pages.pay(files.target, free_memory()[0]),
            on_progress=lambda done: on_progress("target", share * done),
        )
    )
    large.add_adapters(settings.adapters)
    if files.draft is None:
        return large, None
    if files.head and files.head.kind == "medusa":
        return large, opened.enter_context(MedusaModel(files.draft, large.n_vocab))
    shared = machines if files.head else []
    on_card = layers if settings.draft_gpu_layers is None else settings.draft_gpu_layers
    small = Model(
        files.draft,
        n_gpu_layers=0 if shared else on_card,
        devices=shared,
        mtp=files.head is not None and files.head.kind in OF_NEXTN,
        head=files.head is not None,
        in_huge_pages=not machines and huge_pages.pay(files.draft, free_memory()[0]),
        rules=settings.draft_placement.rules,
        on_progress=lambda done: on_progress("draft", share + (WEIGHTS - share) * done),
    )
    return large, opened.enter_context(small)


def _as_far_as_it_reads(large: Model, draft: Model, wanted: ContextSettings) -> ContextSettings:
    """Returns the settings of a draft's context: its positions may be scaled in another way."""
    rope = wanted.rope.of_draft(headers_of(large.path)[0], headers_of(draft.path)[0])
    n_ctx = min(wanted.n_ctx, rope.reach(draft.n_ctx_train))
    cells = min(wanted.cells, n_ctx * wanted.n_seq) if wanted.cells else None
    return replace(wanted, n_ctx=n_ctx, cells=cells, rope=rope)


def _share(target: Path, draft: Path | None) -> float:
    """Returns the target's part of loading, going by file sizes."""
    sizes = [file.stat().st_size if file.exists() else 0 for file in (target, draft) if file]
    return WEIGHTS * (sizes[0] / max(sum(sizes), 1))
