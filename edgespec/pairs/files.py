"""Which files a command runs on, and how they are loaded, by flags and environment.

Without a file: an installed pair, a grown one, or the embedded one.
"""

import argparse
import sys
from dataclasses import fields
from pathlib import Path

from edgespec.chat.well_known import well_known
from edgespec.core.values import FREE
from edgespec.errors import SettingError
from edgespec.pairs.adapters import parse_adapters
from edgespec.pairs.check import find_head
from edgespec.pairs.grown import grown_pair
from edgespec.pairs.metadata_override import parse_overrides
from edgespec.pairs.placement import Placement, placement
from edgespec.pairs.projector import AUTO, NONE
from edgespec.pairs.rope import AS_THE_FILE_SAYS, Rope
from edgespec.pairs.settings import FLASH_ATTENTION, PairSettings
from edgespec.pairs.store import installed_pair, note_use
from edgespec.system import config
from edgespec.system.machines import addresses
from edgespec.system.named_file import read_text
from edgespec_models import tiny
from edgespec_models.gguf.header import split_names

LONGEST_TEMPLATE = 2**20  # characters; what is longer is some other file


def pair_files(arguments: argparse.Namespace) -> tuple[Path, Path | None]:
    """Returns target and draft as flags and environment name them.

    If they name none: the pair that was pulled or imported last, else the embedded one. Notes the use
    of an installed pair.
    """
    wants_draft = _wants_draft(arguments)
    for flag, value in (("--target", arguments.target), ("--draft", arguments.draft)):
        if value == "":
            raise SettingError(f"{flag} names no file: give a path, or leave it out")
    target = arguments.target or config.default_target()
    draft = arguments.draft or (config.default_draft() if wants_draft else None)
    if arguments.pair is not None and (arguments.target or arguments.draft):
        raise SettingError(
            f"pair {arguments.pair} has a target and a draft of its own: leave out --target and --draft"
        )
    if arguments.grow:
        if arguments.target or arguments.draft:
            raise SettingError("--grow works on the embedded pair: leave out --target and --draft")
        if arguments.pair is not None:
            raise SettingError(f"--grow works on the embedded pair: leave out pair {arguments.pair}")
        target_file, draft_file = _grown(arguments.grow)
        return target_file, draft_file if wants_draft else None
    if target and arguments.pair is None:
        return _first_part(target), _first_part(draft) if draft else None
    if arguments.draft:
        raise SettingError(f"--draft {arguments.draft} has no target: name one with --target")
    pair = installed_pair(arguments.pair)
    if pair:
        note_use(pair.name)
        guesses_by = pair.draft.path if pair.draft and wants_draft else None
        if arguments.drafter == "mtp" and find_head(pair.target.path, None):
            guesses_by = None  # the head in the target's file is meant, not the pair's draft
        return pair.target.path, guesses_by
    return tiny.target_path(), tiny.draft_path() if wants_draft else None


def _first_part(name: str) -> Path:
    """Returns the file that a model is loaded by: the first part of a split one, whichever is named."""
    path = Path(name)
    first = path.with_name(split_names(path.name)[0]) if path.name else path
    return first if first.exists() else path


def _wants_draft(arguments: argparse.Namespace) -> bool:
    return not arguments.no_draft and arguments.drafter not in ("none", *FREE)


def pair_name(arguments: argparse.Namespace) -> str | None:
    """Returns the name of the installed pair that `pair_files` takes; None if it takes another."""
    if arguments.grow or (arguments.pair is None and (arguments.target or config.default_target())):
        return None
    pair = installed_pair(arguments.pair)
    return pair.name if pair else None


def pair_settings(
    arguments: argparse.Namespace,
    *,
    slots: int = 1,
    cache_tokens: int | None = None,
    cache_ram: int | None = None,
    cache_disk: int = 0,
    keep_texts: int = 0,
    remember: bool = True,
) -> PairSettings:
    """Returns how the flags ask for a pair to be loaded. Raises SettingError."""
    return PairSettings(
        head=_wants_draft(arguments),
        n_ctx=arguments.ctx,
        kv_type=arguments.kv_type,
        draft_kv_type=arguments.draft_kv_type,
        flash_attention=FLASH_ATTENTION[arguments.flash_attention],
        threads=arguments.threads,
        byte_identical=arguments.byte_identical,
        n_gpu_layers=0 if arguments.byte_identical and arguments.gpu_layers < 0 else arguments.gpu_layers,
        placement=placement_of(arguments),
        draft_placement=placement_of(arguments, "_draft"),
        adapters=parse_adapters(arguments.lora),
        metadata=parse_overrides(arguments.override_kv),
        rpc=machines(arguments),
        tensor_split=tensor_split(arguments),
        remember=remember,
        slots=slots,
        cache_tokens=cache_tokens,
        cache_ram=cache_ram,
        cache_disk=cache_disk,
        rope=rope(arguments),
        keep_texts=keep_texts,
        mmproj=_projector(arguments),
    )


def _projector(arguments: argparse.Namespace) -> str:
    """Returns the projector that the flags name, or the one that came with an installed pair."""
    asked: str = getattr(arguments, "mmproj", NONE)
    name = pair_name(arguments) if asked == AUTO else None
    pair = installed_pair(name) if name else None
    return str(pair.projector.path) if pair and pair.projector else asked


def rope(arguments: argparse.Namespace) -> Rope:
    """Returns how positions are to be rotated. Raises SettingError."""
    values = {field.name: getattr(arguments, field.name) for field in fields(Rope)}
    values = {name: None if value == AS_THE_FILE_SAYS.get(name) else value for name, value in values.items()}
    if (factor := arguments.rope_scale) is not None:
        if arguments.rope_freq_scale is not None:
            raise SettingError("--rope-scale and --rope-freq-scale say the same: leave out one of them")
        if not 1e-6 <= factor <= 1e6:
            raise SettingError(f"--rope-scale is {factor:g}: it must be a number from 1e-06 to 1,000,000")
        values["rope_freq_scale"] = 1 / factor
    return Rope(**values)


def machines(arguments: argparse.Namespace) -> tuple[str, ...]:
    """Returns the other machines that layers may go to. Raises SettingError."""
    if arguments.rpc is None:
        if arguments.rpc_public:
            raise SettingError("--rpc-public needs --rpc: name the machines there, or leave it out")
        return ()
    return addresses(arguments.rpc, public=arguments.rpc_public)


def placement_of(arguments: argparse.Namespace, of: str = "") -> Placement:
    """Returns which tensors lie apart from layers. of: "_draft" for the draft's. Raises SettingError."""
    return placement(
        cpu_moe=getattr(arguments, f"cpu_moe{of}"),
        n_cpu_moe=getattr(arguments, f"n_cpu_moe{of}"),
        overrides=getattr(arguments, f"override_tensor{of}"),
        draft=bool(of),
    )


def tensor_split(arguments: argparse.Namespace) -> tuple[float, ...]:
    """Returns the share of the layers for each device, () if unset. Raises SettingError."""
    if arguments.tensor_split is None:
        return ()
    try:
        return tuple(float(part) for part in arguments.tensor_split.split(","))
    except ValueError:
        raise SettingError(
            f"--tensor-split {arguments.tensor_split!r} is not understood: write a number for each device, "
            "as in 3,1"
        ) from None


def chat_template(arguments: argparse.Namespace) -> str | None:
    """Returns the chat template that the flags name; None if they name none. Raises SettingError."""
    if arguments.chat_template is not None:
        return well_known(arguments.chat_template)
    if arguments.chat_template_file is None:
        return None
    flag, path = "--chat-template-file", arguments.chat_template_file
    template = read_text(flag, path, most=LONGEST_TEMPLATE)
    if not template.strip():
        raise SettingError(f"{flag} {path} is empty: name another file, or leave it out")
    return template


def _grown(spec: str) -> tuple[Path, Path]:
    def show(done: int, total: int) -> None:
        if sys.stderr.isatty():
            sys.stderr.write(f"\rgrowing the embedded pair to {spec}: {done / max(total, 1):4.0%}")
            sys.stderr.write("\n" if done >= total else "")

    return grown_pair(spec, show)
