"""Where the headers of a pair's files come from: this machine, or the hub, where only they are read."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from edgespec.commands.plan.header_fit import need_of_projector, suitable
from edgespec.errors import DownloadError, HubLostError, SettingError
from edgespec.memory.at_load import memory_for_models, projector_need
from edgespec.memory.recommended import ACCEPTED
from edgespec.pairs.check import headers_of
from edgespec.pairs.projector import AUTO, projector_of
from edgespec.pairs.settings import PairSettings
from edgespec.pairs.store import open_store, store_told
from edgespec_models import tiny
from edgespec_models.fit.need import Need
from edgespec_models.gguf.header import Header, HeaderError
from edgespec_models.shelf.catalogue import CatalogueEntry, CatalogueError, catalogue, find
from edgespec_models.shelf.store import EMBEDDED, StoreError

EMBEDDED_ACCEPTED = 0.61  # measured on held-out prompts, greedy, four at a time (its model card)


@dataclass(frozen=True, slots=True)
class PairHeads:
    """The headers of one pair, and what is known of its guesses. assumed: nothing is.

    projector: what the file takes with which it reads pictures.
    """

    name: str
    target: tuple[Header, ...]
    draft: tuple[Header, ...] | None
    acceptance: float
    assumed: bool
    projector: Need | None = None


def local_pair(target: str, draft: str | None) -> PairHeads:
    """Returns the headers of two files of this machine. Raises SettingError."""
    try:
        heads = tuple(headers_of(target)), tuple(headers_of(draft)) if draft else None
    except HeaderError as error:
        raise SettingError(str(error)) from None
    eyes = projector_need(projector_of(Path(target), AUTO))
    return PairHeads(Path(target).stem, *heads, ACCEPTED["chat"], True, eyes)


def named_pair(name: str, draft: str | None, settings: PairSettings | None = None) -> PairHeads:
    """Returns the headers of the embedded pair, an installed one, one of the catalogue, or of repositories.

    Raises SettingError for an unknown name, DownloadError if the hub does not give the headers.
    """
    if name == EMBEDDED:
        heads = tuple(headers_of(tiny.target_path())), tuple(headers_of(tiny.draft_path()))
        return PairHeads(EMBEDDED, *heads, EMBEDDED_ACCEPTED, False)
    if draft is None and (installed := _installed(name)):
        return installed
    return _on_the_hub(name, draft, settings)


def is_here(name: str) -> bool:
    """Returns whether a pair's headers are on this machine."""
    with suppress(StoreError):
        return name == EMBEDDED or any(
            pair.name == name and not pair.missing for pair in open_store().pairs()
        )
    return False


def _installed(name: str) -> PairHeads | None:
    """Returns the headers of an installed pair; None if none has that name.

    Raises SettingError if its files are gone or damaged, and the hub cannot be asked for them by its name.
    """
    try:
        pair = next((pair for pair in open_store().pairs() if pair.name == name), None)
        if pair is None:
            return None
        if pair.missing:
            if name in {entry.name for entry in catalogue()}:
                return None  # the hub has them
            again = "`edgespec pull` it again" if pair.source == "pulled" else "`edgespec import` it again"
            raise SettingError(f"{pair.missing[0]} of pair {name} is gone: {again}, or `edgespec rm {name}`")
        target = tuple(headers_of(pair.target.path))
        draft = tuple(headers_of(pair.draft.path)) if pair.draft else None
    except (StoreError, HeaderError) as error:
        raise SettingError(str(error)) from None
    eyes = projector_need(pair.projector.path if pair.projector else None)
    return PairHeads(name, target, draft, *acceptance_of(name), eyes)


def _on_the_hub(name: str, draft: str | None, settings: PairSettings | None) -> PairHeads:
    from edgespec_models.hub.hub import Hub  # huggingface-hub takes a while to load
    from edgespec_models.hub.pull import order, plan_pull

    with store_told(), hub_told():
        wanted = order(name, draft=draft)
        judge = partial(suitable, settings=settings)
        found = plan_pull(Hub(), wanted, room=False, memory=memory_for_models(), suitable=judge)
    parts, eyes = found.heads, need_of_projector(found.projector)
    if not (wanted.entry or wanted.target.which):
        name = f"{wanted.target}:{found.target.quantisation or found.target.first.name}"
    return PairHeads(name, parts[0], parts[1] if len(parts) > 1 else None, *acceptance_of(name), eyes)


@contextmanager
def hub_told() -> Iterator[None]:
    """Turns what the hub, its files and the catalogue complain of into errors of the program."""
    from edgespec_models.hub.errors import HubAwayError, HubError

    try:
        yield
    except HubAwayError as error:
        raise HubLostError(str(error)) from None
    except (HubError, HeaderError) as error:
        raise DownloadError(str(error)) from None
    except CatalogueError as error:
        raise SettingError(str(error)) from None


def acceptance_of(name: str) -> tuple[float, bool]:
    """Returns what is known of a pair's guesses, and whether it is only assumed."""
    try:
        entry = find(name)
    except CatalogueError:
        return ACCEPTED["chat"], True
    if entry.acceptance is not None:
        return entry.acceptance, False
    return ACCEPTED[entry.use], True


def fitting_entries(free: int) -> Sequence[CatalogueEntry]:
    """Returns the pairs of the catalogue whose files leave a tenth of the free bytes for caches."""
    return [entry for entry in catalogue() if entry.size <= 0.9 * free]
