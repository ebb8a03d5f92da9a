"""`edgespec plan`: pairs -> how fast they would run here."""

import argparse
import math
import sys
from functools import cache
from pathlib import Path

from edgespec.commands import loading
from edgespec.commands.flag_table import add_flags
from edgespec.commands.plan import report
from edgespec.commands.plan.bandwidth import seconds_a_byte
from edgespec.commands.plan.heads import PairHeads, local_pair, named_pair
from edgespec.commands.plan.pair_plan import Bandwidth, plan_pair
from edgespec.commands.plan.report import Planned
from edgespec.commands.status_line import QUIET_S, status_line
from edgespec.errors import EdgeSpecError, PlanError, SettingError
from edgespec.memory.free import free_memory
from edgespec.memory.header_fit import fit_of_heads
from edgespec.pairs.planned import PlannedSpeed, keep
from edgespec.pairs.projector import AUTO, projector_of
from edgespec.pairs.settings import PairSettings
from edgespec.pairs.store import installed_pairs
from edgespec.system.other_programs import Others
from edgespec_models.fit.fit import gib
from edgespec_models.shelf.catalogue import catalogue

DESCRIPTION = """Estimates the tokens per second of pairs on this machine, plain and with speculation. How
fast it reads weights is measured with a small temporary model; of the models only the file headers are read
(under 16 MB each, not kept). Without a PAIR, it plans the pairs of the catalogue that fit into memory."""
OTHER_ACCEPTANCES = (0.4, 0.6, 0.8)  # in the JSON, with the expected one
FLAGS = {
    "--target FILE": "a GGUF file instead of a PAIR",
    "--draft FILE": "the draft for --target, or a repository's",
    "--acceptance T": "acceptance rate, 0 to 1 (default: the pair's known rate, else an assumed one)",
    "--json": "print one JSON object, for programs",
    "--ctx N": "tokens of context to make room for",
}
OF_LOADING = ("--kv-type", "--gpu-layers", "--threads")


def add(command: argparse.ArgumentParser) -> None:
    """Adds all flags of `plan`."""
    which = "a pair of the catalogue, an installed pair, or a repository[:quant] with --draft"
    command.add_argument("pairs", nargs="*", metavar="PAIR", help=which)
    group = command.add_argument_group("model")
    shared = {flag: text for flag, text in loading.FLAGS.items() if flag.split()[0] in OF_LOADING}
    add_flags(group, FLAGS | shared)
    loading.add_machines(group)
    loading.add_placement(command)
    loading.add_rope(command)
    command.set_defaults(grow=None, pair=None, no_draft=False, drafter="auto", lora=[], override_kv=[])
    command.set_defaults(draft_kv_type="f16", flash_attention="auto", byte_identical=False)


def run(arguments: argparse.Namespace, *, bandwidth: Bandwidth = seconds_a_byte) -> int:
    """Plans each pair; returns 0 if at least one could be, else 1."""
    settings, names = _settings(arguments), _names(arguments)
    found: list[Planned] = []
    others, bandwidth = Others(), cache(bandwidth)
    with status_line(every_s=math.inf if arguments.json else QUIET_S) as show:
        for name in names:
            show(f"{name}: reading its headers, and measuring how fast this machine reads weights ...")
            try:
                found.append(_planned(_heads(name, arguments, settings), arguments, settings, bandwidth))
            except EdgeSpecError as error:
                found.append(Planned(name, trouble=str(error)))
            if not arguments.pairs and len(found) > 1 and not any(planned.plan for planned in found[-2:]):
                break  # it is the hub or the machine: the others would end alike, one after the other
    failed, busy = not any(planned.plan for planned in found), others.cores()
    if failed and not arguments.json:
        raise EdgeSpecError(found[0].trouble)
    if left_out := len(names) - len(found):
        print(f"edgespec: not planned, as the last two could not be: {left_out} more", file=sys.stderr)
    print(report.document(found, busy) if arguments.json else "\n".join(report.lines(found, busy)))
    return int(failed)


def _settings(arguments: argparse.Namespace) -> PairSettings:
    """Returns how the pairs would be loaded. Raises SettingError for what makes no sense."""
    if arguments.acceptance is not None and not 0 <= arguments.acceptance <= 1:
        raise SettingError(f"--acceptance is {arguments.acceptance}: it must be from 0 to 1")
    if arguments.target and arguments.pairs:
        raise SettingError("--target and a PAIR are both given: leave out one of them")
    if arguments.draft and not arguments.target and len(arguments.pairs) != 1:
        raise SettingError("--draft works with one pair: name it, or give --target")
    return loading.pair_settings(arguments)


def _names(arguments: argparse.Namespace) -> list[str]:
    if arguments.target:
        return [arguments.target]
    room = 0.9 * free_memory()[0]  # a tenth is left for caches
    fitting = [entry.name for entry in catalogue() if entry.size <= room]
    here = installed_pairs()
    names: list[str] = arguments.pairs or sorted(fitting, key=lambda name: name not in here)
    if not names:
        raise SettingError("no pair of the catalogue fits into the free memory: name one to plan it anyway")
    return names


def _heads(name: str, arguments: argparse.Namespace, settings: PairSettings) -> PairHeads:
    if not arguments.target:
        return named_pair(name, arguments.draft, settings)
    target, draft = Path(arguments.target), Path(arguments.draft) if arguments.draft else None
    return local_pair(target, draft, target.stem, projector_of(target, AUTO))


def _planned(
    heads: PairHeads, arguments: argparse.Namespace, settings: PairSettings, bandwidth: Bandwidth
) -> Planned:
    settings.placement.check(heads.target)
    settings.draft_placement.check(heads.draft or heads.target)
    fit = fit_of_heads(heads.target, heads.draft, settings, heads.projector)
    if fit is None:
        raise PlanError(f"{heads.name} cannot be planned: llama.cpp does not say what memory it takes")
    given = arguments.acceptance
    expected, assumed = heads.acceptance if given is None else (given, False)
    acceptances = (expected, *OTHER_ACCEPTANCES)
    plan = plan_pair(heads.target, heads.draft, settings, fit, acceptances=acceptances, bandwidth=bandwidth)
    if given is None and settings == PairSettings():
        speed = plan.speeds[0].tok_per_s if plan.speeds else None
        keep(heads.name, PlannedSpeed(plan.plain_tok_per_s, speed, expected, assumed))
    notes = [fit.where if fit.fits else "", fit.sentence("it") if fit.gave_up or not fit.fits else ""]
    if heads.projector:
        notes.append(f"its projector, with which it reads pictures, takes {gib(heads.projector.total)} more")
    return Planned(heads.name, plan, fit, assumed, notes=tuple(filter(None, (*notes, fit.attention))))
