"""Where the headers of a pair's files come from: this machine, or the hub, where only they are read."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from edgespec.errors import SettingError
from edgespec.memory.at_load import memory_for_models, projector_need
from edgespec.memory.header_fit import need_of_projector, suitable
from edgespec.memory.recommended import ACCEPTED
from edgespec.pairs.check import headers_of
from edgespec.pairs.settings import PairSettings
from edgespec.pairs.store import hub_errors, installed_pair, installed_pairs, store_errors
from edgespec_models import tiny
from edgespec_models.fit.need import Need
from edgespec_models.gguf.header import Header, HeaderError
from edgespec_models.shelf.catalogue import CatalogueError, catalogue, find
from edgespec_models.shelf.store import EMBEDDED

EMBEDDED_ACCEPTED = 0.61  # measured on held-out prompts, greedy, four at a time (its model card)


@dataclass(frozen=True, slots=True)
class PairHeads:
    """The headers of a pair. acceptance: of its guesses, as far as known. projector: memory that it takes."""

    name: str
    target: tuple[Header, ...]
    draft: tuple[Header, ...] | None
    acceptance: tuple[float, bool]  # and whether it is assumed
    projector: Need | None = None


def local_pair(
    target: str | Path, draft: str | Path | None, name: str, projector: Path | None = None
) -> PairHeads:
    """Returns the headers of two files of this machine. Raises SettingError."""
    try:
        heads = tuple(headers_of(target)), tuple(headers_of(draft)) if draft else None
    except HeaderError as error:
        raise SettingError(str(error)) from None
    return PairHeads(name, *heads, acceptance_of(name), projector_need(projector))


def named_pair(name: str, draft: str | None, settings: PairSettings) -> PairHeads:
    """Returns the headers of the embedded pair, an installed one, one of the catalogue, or of repositories.

    Raises SettingError for what is unknown or gone, DownloadError if the hub does not give them.
    """
    if name == EMBEDDED:
        return local_pair(tiny.target_path(), tiny.draft_path(), name)
    pair = None if draft else installed_pairs().get(name)
    if pair and not pair.missing:
        files = pair.target.path, pair.draft.path if pair.draft else None
        return local_pair(*files, name, pair.projector.path if pair.projector else None)
    if pair and name not in {entry.name for entry in catalogue()}:  # of those the hub has the files
        installed_pair(name)  # raises, with what is gone
    return _on_the_hub(name, draft, settings)


def _on_the_hub(name: str, draft: str | None, settings: PairSettings) -> PairHeads:
    from edgespec_models.hub.hub import Hub  # huggingface-hub takes a while to load
    from edgespec_models.hub.pull import order, plan_pull

    with store_errors(), hub_errors():
        wanted, judge = order(name, draft=draft), partial(suitable, settings=settings)
        found = plan_pull(Hub(), wanted, room=False, memory=memory_for_models(), suitable=judge)
    if not (wanted.entry or wanted.target.which):
        name = f"{wanted.target}:{found.target.quantisation or found.target.first.name}"
    small = found.heads[1] if len(found.heads) > 1 else None
    return PairHeads(name, found.heads[0], small, acceptance_of(name), need_of_projector(found.projector))


def acceptance_of(name: str) -> tuple[float, bool]:
    """Returns what is known of a pair's guesses, and whether it is only assumed."""
    if name == EMBEDDED:
        return EMBEDDED_ACCEPTED, False
    try:
        entry = find(name)
    except CatalogueError:
        return ACCEPTED["chat"], True
    return (entry.acceptance, False) if entry.acceptance is not None else (ACCEPTED[entry.use], True)
