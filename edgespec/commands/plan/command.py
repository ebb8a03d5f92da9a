"""`edgespec plan`: pairs -> how fast they would run here."""

import argparse
import sys
from typing import get_args

from edgespec.commands import flags
from edgespec.commands.plan import report
from edgespec.commands.plan.header_fit import fit_of_heads
from edgespec.commands.plan.heads import fitting_entries, is_here, local_pair, named_pair
from edgespec.commands.plan.pair_plan import PairPlan, plan_pair
from edgespec.commands.plan.report import Planned
from edgespec.commands.status_line import StatusLine
from edgespec.errors import EdgeSpecError, HubLostError, SettingError
from edgespec.memory.free import free_memory
from edgespec.pairs.files import machines, placement_of, rope, tensor_split
from edgespec.pairs.planned import PlannedSpeed, keep
from edgespec.pairs.rope import beyond_trained
from edgespec.pairs.settings import KvType, PairSettings
from edgespec.system.isolate import INTERRUPTED
from edgespec_models.fit.fit import gib

DESCRIPTION = """Estimates how fast pairs would run on this machine: tokens per second, plain and with
speculation. The cost of an evaluation depends on shapes and number formats, not on the weights. So EdgeSpec
times models of random weights in the real engine, one for each number format, in temporary files, and keeps
the results for this machine. Of the models themselves it reads only the file headers (under 16 MB each, not
kept). Without a PAIR, it plans the pairs of the catalogue that fit into memory."""
OTHER_ACCEPTANCES = (0.4, 0.6, 0.8)  # reported to programs beside the expected one


GIVES_UP = 2  # pairs that could not be planned, and none before them that could


def add(command: argparse.ArgumentParser) -> None:
    """Adds all flags of `plan`."""
    command.add_argument(
        "pairs",
        nargs="*",
        metavar="PAIR",
        help="a pair of the catalogue, an installed pair, or a repository[:quant] with --draft",
    )
    command.add_argument("--target", metavar="FILE", help="a GGUF file instead of a PAIR")
    command.add_argument("--draft", metavar="FILE|REPO", help="the draft for --target or for a repository")
    command.add_argument(
        "--acceptance",
        type=float,
        metavar="A",
        help="acceptance rate, 0 to 1 (default: the pair's known rate, else an assumed one)",
    )
    command.add_argument("--again", action="store_true", help="measure again, even if results are kept")
    command.add_argument("--json", action="store_true", help="print one JSON object, for programs")
    group = command.add_argument_group("model")
    group.add_argument("--ctx", type=int, metavar="N", help="tokens of context to make room for")
    group.add_argument(
        "--kv-type", choices=get_args(KvType), default="f16", help="format of the target's KV cache"
    )
    group.add_argument(
        "--gpu-layers", type=int, default=-1, metavar="N", help="layers on the GPU (default: as many as fit)"
    )
    group.add_argument(
        "--threads", type=int, metavar="N", help="threads (default: one for each physical performance core)"
    )
    flags.add_machines(group)
    flags.add_placement(command)
    flags.add_rope(command)


def run(arguments: argparse.Namespace) -> int:
    """Plans each pair; returns 0 if at least one could be, else 1."""
    StatusLine.begin()
    settings = _settings(arguments)
    names = _names(arguments)
    found: list[Planned] = []
    left_out = 0
    for name in names:
        if any(planned.no_hub for planned in found) and not is_here(name):
            left_out += 1  # it would end alike, one after the other
            continue
        try:
            found.append(_planned(name, arguments, settings))
        except KeyboardInterrupt:
            StatusLine().clear()
            print("edgespec: stopped", file=sys.stderr)
            return INTERRUPTED
        StatusLine().clear()
        if len(found) == GIVES_UP and not any(planned.plan for planned in found):
            break  # it is the machine: the others will not do better
    if not any(planned.plan for planned in found) and not arguments.json:
        raise EdgeSpecError(found[0].trouble)
    if left_out:
        print(f"edgespec: not planned, as their files are on the hub: {left_out} more", file=sys.stderr)
    print(report.document(found) if arguments.json else "\n".join(report.lines(found)))
    return int(not any(planned.plan for planned in found))


def _settings(arguments: argparse.Namespace) -> PairSettings:
    """Returns how the pairs would be loaded. Raises SettingError for what makes no sense."""
    accepted = arguments.acceptance
    if accepted is not None and not 0 <= accepted <= 1:
        raise SettingError(f"--acceptance is {accepted}: it must be from 0 to 1")
    if arguments.target and arguments.pairs:
        raise SettingError("--target and a PAIR are both given: leave out one of them")
    if arguments.draft and not arguments.target and len(arguments.pairs) != 1:
        raise SettingError("--draft works with one pair: name it, or give --target")
    return PairSettings(
        n_ctx=arguments.ctx,
        kv_type=arguments.kv_type,
        threads=arguments.threads,
        n_gpu_layers=arguments.gpu_layers,
        rpc=machines(arguments),
        tensor_split=tensor_split(arguments),
        placement=placement_of(arguments),
        draft_placement=placement_of(arguments, "_draft"),
        rope=rope(arguments),
    )


def _names(arguments: argparse.Namespace) -> list[str]:
    if arguments.target:
        return [arguments.target]
    names: list[str] = arguments.pairs or [entry.name for entry in fitting_entries(free_memory()[0])]
    if not names:
        raise SettingError("no pair of the catalogue fits into the free memory: name one to plan it anyway")
    return names


def _planned(name: str, arguments: argparse.Namespace, settings: PairSettings) -> Planned:
    line = StatusLine(lines=not arguments.json)
    line.show(f"{name}: reading headers ...")
    try:
        if arguments.target:
            heads = local_pair(arguments.target, arguments.draft)
        else:
            heads = named_pair(name, arguments.draft, settings)

        def stage(text: str) -> None:
            line.show(f"{heads.name}: {text} ...")

        for placed, model in ((settings.placement, heads.target), (settings.draft_placement, heads.draft)):
            placed.check(model or heads.target)
        expected = heads.acceptance if arguments.acceptance is None else arguments.acceptance
        fit = fit_of_heads(heads.target, heads.draft, settings, heads.projector)
        found = plan_pair(
            heads.target,
            heads.draft,
            settings,
            fit=fit,
            acceptances=(expected, *OTHER_ACCEPTANCES),
            on_stage=stage,
            anew=arguments.again,
        )
        assumed = heads.assumed and arguments.acceptance is None
        if arguments.acceptance is None and settings == PairSettings():
            _keep(heads.name, found, assumed)
        trained = heads.target[0].of_architecture("context_length")
        warnings = [beyond_trained(heads.name, settings.n_ctx or 0, trained, settings.rope) or ""]
        if heads.projector:
            more = gib(heads.projector.total)
            warnings.append(f"{heads.name}: its projector, with which it reads pictures, takes {more} more")
        warning = "; ".join(filter(None, warnings))
        return Planned(heads.name, found, fit, assumed, warning=warning)
    except EdgeSpecError as error:
        return Planned(name, None, None, True, str(error), no_hub=isinstance(error, HubLostError))


def _keep(name: str, plan: PairPlan, assumed: bool) -> None:
    """Saves the estimate of a pair by its name, for lists of pairs."""
    speed = plan.speeds[0] if plan.speeds else None
    keep(
        name,
        PlannedSpeed(
            plain_tok_per_s=plan.plain_tok_per_s,
            tok_per_s=speed.tok_per_s if speed else None,
            acceptance=speed.acceptance if speed else None,
            assumed=assumed,
            disturbed=plan.disturbed,
        ),
    )
