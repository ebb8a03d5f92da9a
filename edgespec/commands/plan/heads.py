"""Where the headers of a pair's files come from: this machine, or the hub, where only they are read."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from edgespec.memory.at_load import memory_for_models, projector_need
from edgespec.memory.header_fit import need_of_projector, suitable
from edgespec.memory.recommended import acceptance_of
from edgespec.pairs.check import header_errors, headers_of
from edgespec.pairs.settings import PairSettings
from edgespec.pairs.store import hub_errors, installed_pair, installed_pairs, store_errors
from edgespec_models import tiny
from edgespec_models.fit.need import Need
from edgespec_models.gguf.header import Header
from edgespec_models.shelf.store import EMBEDDED


@dataclass(frozen=True, slots=True)
class PairHeads:
    """The headers of a pair. acceptance: of its guesses, as far as known. projector: memory that it takes."""

    name: str
    target: tuple[Header, ...]
    draft: tuple[Header, ...] | None
    acceptance: tuple[float, bool]  # and whether it is assumed
    projector: Need | None = None


def local_pair(target: Path, draft: Path | None, name: str, projector: Path | None = None) -> PairHeads:
    """Returns the headers of two files of this machine. Raises ModelFileError."""
    with header_errors():
        heads = tuple(headers_of(target)), tuple(headers_of(draft)) if draft else None
    return PairHeads(name, *heads, acceptance_of(name), projector_need(projector))


def named_pair(name: str, draft: str | None, settings: PairSettings) -> PairHeads:
    """Returns the headers of the embedded pair, an installed one, one of the catalogue, or of repositories.

    Raises SettingError for what is unknown, ModelFileError for what is gone, and DownloadError.
    """
    if name == EMBEDDED:
        return local_pair(tiny.target_path(), tiny.draft_path(), name)
    if not draft and name in installed_pairs() and (pair := installed_pair(name)):
        files = [model.path if model else None for model in (pair.draft, pair.projector)]
        return local_pair(pair.target.path, files[0], name, files[1])

    from edgespec_models.hub.hub import Hub  # huggingface-hub takes a while to load
    from edgespec_models.hub.pull import order, plan_pull

    with store_errors(), hub_errors():
        wanted, judge = order(name, draft=draft), partial(suitable, settings=settings)
        found = plan_pull(Hub(), wanted, room=False, memory=memory_for_models(), suitable=judge)
    if not (wanted.entry or wanted.target.which):
        name = f"{wanted.target}:{found.target.quantisation or found.target.first.name}"
    small = found.heads[1] if len(found.heads) > 1 else None
    return PairHeads(name, found.heads[0], small, acceptance_of(name), need_of_projector(found.projector))
