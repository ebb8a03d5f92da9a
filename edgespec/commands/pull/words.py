"""The texts of `edgespec pull`: the catalogue, what it found, which drafts it proposes."""

from collections.abc import Iterable, Sequence

from edgespec.commands.table import table
from edgespec.pairs.planned import planned
from edgespec.system.terminal import one_line
from edgespec_models.gguf.facts import facts_of
from edgespec_models.gguf.header import Header
from edgespec_models.hub.choose_file import Chosen
from edgespec_models.hub.propose import Proposal
from edgespec_models.hub.pull import PullPlan
from edgespec_models.shelf.catalogue import CatalogueEntry
from edgespec_models.shelf.sizes import size_text


def speed_line(name: str, draft: str | None) -> str:
    """Returns how fast a pair would run, as far as `edgespec plan` has estimated it here."""
    if draft is None and (known := planned(name)):
        return f"speed   {known.sentence()}"
    command = f"edgespec plan {name}" + (f" --draft {draft}" if draft else "")
    return f"speed   `{command}` says how fast it would run here"


def catalogue_lines(entries: Iterable[CatalogueEntry], installed: frozenset[str]) -> list[str]:
    """Returns the catalogue as a table, with what is known and what is not."""
    rows = [("pair", "machine", "for", "download", "gain", "")]
    for entry in entries:
        mark = "installed" if entry.name in installed else ""
        gain = entry.gain or ("-" if entry.draft else "no draft")
        rows.append((entry.name, entry.machine, entry.use, size_text(entry.size), gain, mark))
    return [
        *table(rows),
        "",
        "`edgespec pull PAIR` checks a pair before it downloads it; `edgespec show PAIR` says more about it.",
        "gain: as others measured it, where a figure is known; `edgespec plan` estimates it for this machine",
        "before a download, and `edgespec bench` measures it. Names and sizes are checked by every pull,",
        "before it downloads (`--check` does no more than that).",
    ]


def plan_lines(plan: PullPlan) -> list[str]:
    """Returns what was found before the download."""
    lines = [f"target  {_model(plan.target, plan.headers[0])}"]
    if plan.draft:
        lines.append(f"draft   {_model(plan.draft, plan.headers[1])}")
    if plan.projector:
        lines.append(f"reads   {plan.projector.first} ({size_text(plan.projector.size)}): its projector")
    whole = plan.to_fetch + plan.at_hand
    if plan.header_bytes:
        read = f"{size_text(plan.header_bytes)} of {size_text(whole)} were read for this check"
    else:
        read = "read from the files on this machine"
    lines.append(f"check   {plan.verdict or 'the file can be used; no draft'} ({read})")
    if plan.to_fetch:
        have = f", {size_text(plan.at_hand)} are here already" if plan.at_hand else ""
        lines.append(f"fetch   {size_text(plan.to_fetch)} to {plan.folder}{have}")
    else:
        lines.append("fetch   nothing: everything is already here")
    return lines


def _model(chosen: Chosen, header: Header) -> str:
    facts = facts_of(header)
    parts = f", {len(chosen.parts)} parts" if len(chosen.parts) > 1 else ""
    context = f", context {facts.n_ctx_train:,}" if facts.n_ctx_train else ""
    size_label = one_line(facts.size_label, 20)
    kind = " ".join(word for word in (facts.architecture, size_label, facts.quantisation) if word)
    return f"{chosen.first} ({size_text(chosen.size)}{parts}): {kind}, {facts.memory_text}{context}"


def proposal_lines(target: str, proposals: Sequence[Proposal], fetched: int) -> list[str]:
    """Returns the drafts that fit, with the command for each, and those that do not, with the reason."""
    lines = []
    fitting = [proposal for proposal in proposals if proposal.fits]
    for i, proposal in enumerate(fitting, 1):
        lines.append(f"{i}. {proposal.candidate} ({size_text(proposal.size)}): {proposal.why}")
    for proposal in proposals:
        if not proposal.fits:
            lines.append(f"-  {proposal.candidate} does not fit: {proposal.reason}")
    if not proposals:
        lines.append(f"no draft is known for {target}")
    if fetched:
        lines.append(f"({size_text(fetched)} of headers were read for this)")
    return lines
