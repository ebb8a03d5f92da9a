"""Compare the whole catalogue with the hub: python -m recipes.catalogue_check [NAME...]

Needs a network; downloads only headers, under 16 MB of each file. For every pair: are the repositories and
files there, are size, licence and gate as listed, do the headers agree on memory kind, context and experts,
and does the draft fit the target? Exit code 1 if anything differs. What could be checked is
listed, so that `unverified` in pairs.toml can be shortened by hand.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from edgespec_models.gguf.facts import facts_of, why_not_usable
from edgespec_models.gguf.header import Header, HeaderError
from edgespec_models.hub.choose_file import choose
from edgespec_models.hub.errors import HubError
from edgespec_models.hub.hub import Hub
from edgespec_models.shelf.catalogue import CatalogueEntry, CatalogueModel, catalogue, read_catalogue
from edgespec_models.shelf.pair_check import check_headers
from edgespec_models.shelf.sizes import size_text

SIZE_TOLERANCE = 0.02  # sizes are written with two or three digits


@dataclass(slots=True)
class Findings:
    """The result of comparing one pair with the hub."""

    name: str
    wrong: list[str] = field(default_factory=list)  # sentences
    verified: list[str] = field(default_factory=list)  # "target.file", ...: no longer `unverified`
    fetched: int = 0  # bytes


def check_entry(hub: Hub, entry: CatalogueEntry) -> Findings:
    """Compares one pair with the hub; errors are among the findings."""
    findings = Findings(entry.name)
    target = _check_model(hub, "target", entry.target, findings)
    draft = _check_model(hub, "draft", entry.draft, findings) if entry.draft else None
    if target is not None:
        context = facts_of(target).n_ctx_train
        if context != entry.context:
            findings.wrong.append(f"the target's context is {context:,}, not {entry.context:,}")
    if target is not None and draft is not None:
        verdict = check_headers(target, draft)
        if not verdict.usable:
            findings.wrong.append(f"the draft does not fit: {verdict}")
    return findings


def _check_model(hub: Hub, role: str, model: CatalogueModel, findings: Findings) -> Header | None:
    """Compares one model; returns its header if it could be read."""
    wrong = findings.wrong
    try:
        repository = hub.repository(model.repo, None if model.revision == "main" else model.revision)
        chosen = choose(repository, model.file, draft=role == "draft")
        found = {"repo", "file", "gated"}
        if repository.gated != model.gated:
            wrong.append(f"{role}: {model.repo} is {'' if repository.gated else 'not '}gated")
        if repository.licence and repository.licence != model.licence:
            wrong.append(f"{role}: the licence of {model.repo} is {repository.licence}, not {model.licence}")
        if abs(chosen.size - model.size) > SIZE_TOLERANCE * model.size:
            wrong.append(f"{role}: {chosen.first} has {size_text(chosen.size)}, not {size_text(model.size)}")
        else:
            found.add("size_gb")
        findings.verified += [f"{role}.{name}" for name in sorted(found & model.unverified)]
        header, fetched = hub.header(chosen.first)
    except (HubError, HeaderError) as error:
        wrong.append(f"{role}: {error}")
        return None
    findings.fetched += fetched
    reason = why_not_usable(header)
    facts = facts_of(header)
    if reason:
        wrong.append(f"{role}: {reason}")
    if facts.memory != model.memory:
        wrong.append(f"{role}: the memory of {chosen.first} is {facts.memory}, not {model.memory}")
    if bool(facts.n_experts) != model.experts:
        wrong.append(f"{role}: {chosen.first} has {facts.n_experts} experts")
    return header


def main(argv: Sequence[str] | None = None, *, hub: Hub | None = None) -> int:
    """Checks the named pairs, or all; returns 1 if one differs. hub: by default HF_ENDPOINT's."""
    parser = argparse.ArgumentParser(
        prog="python -m recipes.catalogue_check",
        description="Compares the catalogue with the hub: files, sizes, licences, headers, pairs.",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="pairs to check (default: all)")
    parser.add_argument("--catalogue", metavar="FILE", type=Path, help="another pairs.toml (default: ours)")
    arguments = parser.parse_args(argv)
    entries = read_catalogue(arguments.catalogue) if arguments.catalogue else catalogue()
    unknown = set(arguments.names) - {entry.name for entry in entries}
    if unknown:
        parser.error(f"the catalogue has no pair {min(unknown)!r}")
    hub = hub or Hub()
    n_wrong = 0
    for entry in entries:
        if arguments.names and entry.name not in arguments.names:
            continue
        findings = check_entry(hub, entry)
        n_wrong += bool(findings.wrong)
        print(f"{entry.name}: {'differs' if findings.wrong else 'as written'} "
              f"({size_text(findings.fetched)} of headers fetched)")  # fmt: skip
        for sentence in findings.wrong:
            print(f"  {sentence}")
        if findings.verified:
            print(f"  looked up, no longer unverified: {', '.join(findings.verified)}")
    return 1 if n_wrong else 0


if __name__ == "__main__":
    sys.exit(main())
