"""Which drafts would fit a target: from the catalogue, from this machine, from the same family on the hub.

Every candidate's header is checked against the target's, so a proposed one is known to fit; the others
are named with the reason. A candidate on the hub costs only the bytes of its header.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from huggingface_hub import HfApi

from edgespec_models.gguf.header import Header, HeaderError
from edgespec_models.hub.choose_file import Chosen, WantedFile, choose, heads_in
from edgespec_models.hub.errors import HubError
from edgespec_models.hub.hub import Hub
from edgespec_models.shelf.catalogue import catalogue
from edgespec_models.shelf.pair_check import PairVerdict, check_headers

MOST_HEADS = 3  # of one repository
MOST_CHECKED = 5  # headers fetched for one proposal
MOST_LISTED = 50  # repositories in one list
LARGEST_SHARE = 0.3  # of the target's size: a larger draft costs more than its guesses save
Candidate = tuple[WantedFile, str]  # a draft that may fit, and why, in one clause
_BILLIONS = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)([bm])(?![a-z0-9])", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Proposal:
    """A candidate that was checked."""

    candidate: WantedFile
    why: str  # it may fit, in one clause
    verdict: PairVerdict | None  # None if it could not be read
    size: int  # bytes
    reason: str  # why it does not fit; "" if it does

    @property
    def fits(self) -> bool:
        return self.verdict is not None and self.verdict.usable


def propose(
    hub: Hub, target: Chosen, header: Header, *, installed: Sequence[str] = ()
) -> tuple[list[Proposal], int]:
    """Returns checked candidates, those that fit first, and the bytes fetched.

    installed: drafts on this machine, as owner/name:file. Raises HubError if the hub cannot be asked.
    """
    proposals, fetched, seen = [], 0, {target.first.repo}
    near = list(_heads_next_to(hub, target))
    for candidate in [*near, *_candidates(hub, target, header, installed)]:
        if candidate[0].repo in seen and candidate not in near:
            continue
        seen.add(candidate[0].repo)
        proposal, n_bytes = _check(hub, target, header, *candidate)
        fetched += n_bytes
        proposals.append(proposal)
        if len(proposals) >= MOST_CHECKED:
            break
    return sorted(proposals, key=_rank), fetched


def head_for(hub: Hub, target: Chosen, header: Header) -> Proposal | None:
    """Returns a head in the target's own repository that fits; None if there is none."""
    checked = (_check(hub, target, header, *candidate)[0] for candidate in _heads_next_to(hub, target))
    return next((proposal for proposal in checked if proposal.fits), None)


def _rank(proposal: Proposal) -> int:
    """Returns a number by which heads come first, then drafts of the target's own vocabulary."""
    fit = proposal.verdict.fit if proposal.verdict else "none"
    return ("head", "exact", "translated", "none").index(fit)


def _heads_next_to(hub: Hub, target: Chosen) -> Iterator[Candidate]:
    """Yields the heads in the target's own repository."""
    for name in heads_in(hub.repository(target.first.repo, target.first.commit))[:MOST_HEADS]:
        yield WantedFile(target.first.repo, name), "a head in the target's own repository"


def _candidates(hub: Hub, target: Chosen, header: Header, installed: Sequence[str]) -> Iterator[Candidate]:
    name = base_name(target.first.repo)
    family = family_of(header, target.first.repo)
    for entry in catalogue():
        if entry.draft and base_name(entry.target.repo) == name:
            why = f"the catalogue's draft for it (pair {entry.name})"
            yield WantedFile(entry.draft.repo, entry.draft.file), why
    for draft in installed:
        yield WantedFile(*draft.split(":", 1)), "it is already on this machine"
    for entry in catalogue():
        if entry.draft and family and family in base_name(entry.draft.repo):
            why = f"the catalogue drafts {base_name(entry.target.repo)} with it"
            yield WantedFile(entry.draft.repo, entry.draft.file), why
    if family and not hub.offline:
        yield from _relatives(hub, target.first.repo, family)


def _relatives(hub: Hub, repo: str, family: str) -> Iterator[Candidate]:
    """Yields smaller models of the family by the same owner, the smallest first."""
    owner, size = repo.partition("/")[0], billions(repo)
    with hub.converted(owner):
        api = HfApi(endpoint=hub.endpoint, token=hub.token)
        names = hub.again(
            lambda: [m.id for m in api.list_models(author=owner, search=family, limit=MOST_LISTED)]
        )
    smaller = []
    for name in names:
        own = billions(name)
        if own and size and own <= LARGEST_SHARE * size and name.lower().endswith("gguf"):
            smaller.append((own, name))
    for own, name in sorted(smaller):
        weights = f"{own:g} billion" if own >= 0.1 else f"{own * 1000:g} million"
        yield WantedFile(name, ""), f"the same family ({family}) by the same owner, with {weights} weights"


def _check(hub: Hub, target: Chosen, header: Header, candidate: WantedFile, why: str) -> tuple[Proposal, int]:
    fetched = size = 0
    try:
        chosen = choose(hub.repository(candidate.repo), candidate.which, draft=True)
        size = chosen.size
        own, fetched = hub.header(chosen.first)
    except (HubError, HeaderError) as error:
        return Proposal(candidate, why, None, size, str(error)), fetched
    if target.size and size > LARGEST_SHARE * target.size:
        return Proposal(candidate, why, None, size, "it is too large for this target to save time"), fetched
    verdict = check_headers(header, own)
    return Proposal(candidate, why, verdict, size, "" if verdict.usable else str(verdict)), fetched


def base_name(repo: str) -> str:
    """Returns a repository's name without owner and format: "qwen3-8b" for ggml-org/Qwen3-8B-GGUF."""
    name = repo.rpartition("/")[2].lower()
    name = re.sub(r"-(q\d\w*|gguf|f16|bf16)$", "", re.sub(r"-gguf$", "", name))
    return name.rpartition("_")[2]


def family_of(header: Header, repo: str) -> str:
    """Returns the family's name in lower case, by the metadata or else by the repository: "qwen3"."""
    name = header.text("general.basename").lower() or base_name(repo)
    found = _BILLIONS.search(name)
    return (name[: found.start()] if found else name).strip("-_. ")


def billions(name: str) -> float | None:
    """Returns the number of weights in a name, in billions: 0.6 for Qwen3-0.6B-GGUF."""
    found = _BILLIONS.search(name)
    return float(found[1]) / (1 if found[2].lower() == "b" else 1000) if found else None
