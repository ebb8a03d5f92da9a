"""From a name to an installed pair: find the files, check the pair and the room, download, install.

    hub, store = Hub(), Store(folder)
    plan = plan_pull(hub, order("qwen3-8b"))    # fetches two headers; raises if the pair is no good
    pull = Pull(plan, hub, store)
    pair = pull.run(on_progress)                # pull.cancel() from another thread ends it at once

Nothing is installed before every file is whole; an interrupted download is not lost.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgespec_models.gguf.facts import why_not_usable
from edgespec_models.gguf.header import Header, HeaderError
from edgespec_models.gguf.heads import head_of
from edgespec_models.hub.choose_file import (
    Chosen,
    WantedFile,
    bits_of,
    choose,
    instead_of,
    parse_wanted,
    projector_in,
    quantisation_of,
)
from edgespec_models.hub.download import Cancelled, Download, Downloaded, OnProgress
from edgespec_models.hub.errors import HubError
from edgespec_models.hub.hub import Hub, HubFile
from edgespec_models.hub.propose import base_name
from edgespec_models.shelf.catalogue import CatalogueEntry, CatalogueModel, find
from edgespec_models.shelf.pair_check import PairVerdict, check_headers
from edgespec_models.shelf.sizes import no_room
from edgespec_models.shelf.store import InstalledModel, InstalledPair, Store, check_name

MOST_JUDGED = 4  # models besides the usual one: each costs some megabytes
SUITS = 2
# of target and draft, with a projector; 0: not at all
Suitable = Callable[[Sequence[Sequence[Header]], Chosen | None], int]
__all__ = ["Cancelled", "HubError", "Order", "Downloaded", "Pull", "PullPlan", "order", "plan_pull"]


@dataclass(frozen=True, slots=True)
class Order:
    """What to pull."""

    target: WantedFile
    draft: WantedFile | None
    name: str  # what the pair will be called
    named: bool  # by the user; else another name is found if a different model has it
    entry: CatalogueEntry | None  # if it is in the catalogue
    reads: bool = True  # a projector is taken, too, if there is one


@dataclass(frozen=True, slots=True)
class PullPlan:
    """What a pull would do; everything that can be known without the weights has been checked."""

    order: Order
    target: Chosen
    draft: Chosen | None
    projector: Chosen | None
    heads: tuple[tuple[Header, ...], ...]  # of all parts of target and draft
    verdict: PairVerdict | None  # of the pair check; None without a draft
    header_bytes: int  # fetched to know all this
    to_fetch: int  # bytes
    at_hand: int  # bytes that are there already, from earlier and interrupted downloads
    cached: tuple[bool, ...]  # whether each file is there
    folder: Path  # where the files go

    @property
    def headers(self) -> tuple[Header, ...]:
        """Those of target and draft that have the metadata."""
        return tuple(parts[0] for parts in self.heads)

    @property
    def files(self) -> tuple[HubFile, ...]:
        models = (self.target, self.draft, self.projector)
        return tuple(part for model in models if model for part in model.parts)


def order(what: str, *, draft: str | None = None, name: str | None = None) -> Order:
    """Reads NAME, or repo[:quant] with a draft's. Raises HubError, CatalogueError and StoreError."""
    if "/" in what:
        target = parse_wanted(what)
        small = parse_wanted(draft) if draft else None
        return Order(target, small, check_name(name or _default_name(target)), name is not None, None)
    entry = find(what)
    known = _file_of(entry.draft) if entry.draft else None
    small = parse_wanted(draft) if draft else known
    return Order(_file_of(entry.target), small, check_name(name or entry.name), name is not None, entry)


def _file_of(model: CatalogueModel) -> WantedFile:
    return WantedFile(model.repo, model.file, None if model.revision == "main" else model.revision)


def _default_name(target: WantedFile) -> str:
    name = "".join(c if c.isalnum() or c in "._-" else "-" for c in base_name(target.repo))
    return name.strip("._-")[:64] or "pair"


def plan_pull(
    hub: Hub,
    wanted: Order,
    *,
    room: bool = True,
    memory: int | None = None,
    suitable: Suitable | None = None,
) -> PullPlan:
    """Finds the files, checks the pair by its headers and, if `room`, the room on the disk.

    memory: bytes available for the target, if its quantisation is not named. suitable: then judges it, and
    others. Raises HubError if a file is unavailable or unusable, the pair does not fit, or there is no room.
    """
    entry = wanted.entry
    target = _chosen(hub, wanted.target, entry.target if entry else None, draft=False, memory=memory)
    draft = _chosen(hub, wanted.draft, entry.draft if entry else None, draft=True) if wanted.draft else None
    draft_headers: tuple[Header, ...] = ()
    fetched = 0
    if draft:
        draft_headers, fetched = _usable_headers(hub, draft, draft=True)
    projector = None
    if wanted.reads:
        projector = projector_in(hub.repository(wanted.target.repo, wanted.target.revision))
    target, of_target, n_bytes = _most_suitable(
        hub, wanted.target, target, draft_headers, projector, suitable
    )
    heads = (of_target, draft_headers) if draft else (of_target,)
    verdict = check_headers(of_target[0], draft_headers[0]) if draft_headers else None
    if verdict and draft and not verdict.usable:
        raise HubError(
            f"{draft.first} cannot draft for {target.first}: {verdict}; nothing was downloaded, so name "
            "another draft, or none to see what fits"
        )
    files = [part for model in (target, draft, projector) if model for part in model.parts]
    cached = tuple(hub.cached(file) is not None for file in files)
    missing = [file for file, there in zip(files, cached, strict=True) if not there]
    left = sum(file.size or 0 for file in missing)
    if room and (why := no_room(hub.cache, left, "downloaded")):
        raise HubError(f"{why}: make room, or name another folder with HF_HUB_CACHE")
    return PullPlan(
        wanted,
        target,
        draft,
        projector,
        heads,
        verdict,
        fetched + n_bytes,
        left,
        sum(file.size or 0 for file in files) - left,
        cached,
        hub.cache,
    )


def _most_suitable(
    hub: Hub,
    wanted: WantedFile,
    target: Chosen,
    draft_headers: Sequence[Header],
    projector: Chosen | None,
    suitable: Suitable | None,
) -> tuple[Chosen, tuple[Header, ...], int]:
    """Returns the target or, if that is left open, what suits better; its headers; and bytes fetched."""
    instead = instead_of(hub.repository(wanted.repo, wanted.revision), target) if not wanted.which else []
    best, fetched = _usable_headers(hub, target, draft=False)
    if not (suitable and instead):
        return target, best, fetched
    grade = suitable([best, draft_headers] if draft_headers else [best], projector)
    for model in instead[:MOST_JUDGED]:
        if grade == SUITS or grade and bits_of(model.quantisation) < bits_of(target.quantisation):
            break
        found, n_bytes = _usable_headers(hub, model, draft=False)
        fetched += n_bytes
        if (other := suitable([found, draft_headers] if draft_headers else [found], projector)) > grade:
            target, best, grade = model, found, other
    return target, best, fetched


def _chosen(
    hub: Hub, wanted: WantedFile, known: CatalogueModel | None, *, draft: bool, memory: int | None = None
) -> Chosen:
    """Finds a model; if the catalogue's file name was never checked, its quantisation will do."""
    repository = hub.repository(wanted.repo, wanted.revision)
    try:
        found = choose(repository, wanted.which, draft=draft, memory=memory)
    except HubError:
        if known is None or known.file != wanted.which or "file" not in known.unverified:
            raise
        found = choose(repository, quantisation_of(known.file), draft=draft)
    if known and known.sha256 and found.first.sha256 != known.sha256:
        raise HubError(f"{found.first} is another file than the one that was tried")
    return found


def _usable_headers(hub: Hub, model: Chosen, *, draft: bool) -> tuple[tuple[Header, ...], int]:
    """Returns the headers of all parts, and the bytes fetched for them. draft: it may be a head as well."""
    found = []
    for part in model.parts:
        try:
            found.append(hub.header(part))
        except HeaderError as error:
            raise HubError(f"{model.first.repo}: {error}") from None
        header = found[0][0]
        if len(found) == 1 and not (draft and head_of([header])) and (reason := why_not_usable(header)):
            raise HubError(f"{reason} (in {model.first.repo}): choose another file")
    return tuple(header for header, _ in found), sum(fetched for _, fetched in found)


class Pull:
    """One pull, once its plan is made."""

    def __init__(self, plan: PullPlan, hub: Hub, store: Store) -> None:
        self.plan, self.hub, self.store = plan, hub, store
        known = {
            (path, sha)
            for pair in store.pairs()
            for model in pair.models
            for path, sha in zip(model.paths, model.sha256, strict=False)
        }
        verified = [(str(hub.cached(file)), file.sha256) in known for file in plan.files]
        self._download = Download(hub, plan.files, verified=verified)

    def cancel(self) -> None:
        """Ends it at once, from any thread; `run` raises Cancelled. Files that are whole are kept."""
        self._download.cancel()

    def run(self, on_progress: OnProgress) -> InstalledPair:
        """Downloads, verifies and installs. on_progress: called about ten times a second, in this thread.

        Raises HubError, StoreError and Cancelled.
        """
        self.store.check_writable()  # not to be found out after gigabytes
        try:
            paths = self._download.run(on_progress)
        except BaseException:
            new = [str(path) for i, path in self._download.finished.items() if not self.plan.cached[i]]
            if new:
                self.store.note_fetched(new)
            raise
        plan, done = self.plan, list(zip(paths, self.plan.cached, strict=True))

        def taken(model: Chosen) -> InstalledModel:
            own = [done.pop(0) for _ in model.parts]
            return _installed(model, [path for path, _ in own], [cached for _, cached in own])

        pair = InstalledPair(
            name=_free_name(plan, self.store),
            target=taken(plan.target),
            draft=taken(plan.draft) if plan.draft else None,
            projector=taken(plan.projector) if plan.projector else None,
            source="pulled",
            installed_at=time.time(),
        )
        self.store.add(pair)
        return self.store.get(pair.name)


def _free_name(plan: PullPlan, store: Store) -> str:
    """Returns the pair's name, with its quantisation if another model of the repository has it already."""
    name, first = plan.order.name, plan.target.first
    taken = {pair.name: pair.target for pair in store.pairs()}.get(name)
    if plan.order.named or taken is None:
        return name
    if taken.repo == first.repo and taken.path.name == first.name.rpartition("/")[2]:
        return name  # the same model: a newer version, or another draft
    return f"{name[:48]}-{(plan.target.quantisation or 'other').lower()}"


def _installed(model: Chosen, paths: Sequence[Path], cached: Sequence[bool]) -> InstalledModel:
    hashes = tuple(part.sha256 for part in model.parts if part.sha256)
    return InstalledModel(
        paths=tuple(str(path) for path in paths),
        size=sum(path.stat().st_size for path in paths),
        repo=model.first.repo,
        revision=model.first.commit,
        sha256=hashes if len(hashes) == len(paths) else (),
        fetched=not any(cached),
    )
