"""How a pair is loaded: the flags, and the settings that they make."""

import argparse
from dataclasses import fields
from typing import get_args

from edgespec.commands.flag_table import THREADS, add_for_engine
from edgespec.errors import SettingError
from edgespec.pairs.adapters import parse_adapters
from edgespec.pairs.files import pair_name, wants_draft
from edgespec.pairs.metadata_override import parse_overrides
from edgespec.pairs.placement import Placement, placement
from edgespec.pairs.projector import AUTO, NONE
from edgespec.pairs.rope import AS_THE_FILE_SAYS, Rope, Scaling
from edgespec.pairs.settings import FLASH_ATTENTION, KvType, PairSettings
from edgespec.pairs.store import installed_pair
from edgespec.system.machines import addresses

ROPE = {
    f"--rope-scaling {'|'.join(get_args(Scaling))}|": "how positions are scaled (default: what the file "
    "says; linear if only a scale is given)",
    "--rope-scale X": "read X times as far as the model was trained for",
    "--rope-freq-base X": "base of the frequencies (default: what the file says)",
    "--rope-freq-scale X": "the same as --rope-scale 1/X",
    "--yarn-orig-ctx N": "YaRN: what the model was trained for (default: what the file says)",
    "--yarn-ext-factor X": "YaRN: how much of high frequencies stays as it is; 0 scales all alike",
    "--yarn-attn-factor X": "YaRN: factor on the attention's magnitude",
    "--yarn-beta-slow X": "YaRN: rotations over the trained length below which all is scaled (1)",
    "--yarn-beta-fast X": "YaRN: rotations over the trained length above which nothing is (32)",
}
KV_TYPES = "|".join(get_args(KvType))
FLAGS = {
    f"--kv-type {KV_TYPES} f16": "format of the target's KV cache; below f16 the answer may change",
    f"--draft-kv-type {KV_TYPES} f16": "format of the draft's KV cache; affects speed only",
    "--flash-attention --flash-attn -fa on|off|auto auto": "flash attention (default: where it is faster "
    "on this machine; processors are mostly faster without)",
    "--byte-identical": "greedy and seeded texts are the same to the byte, whatever guesses and however many "
    "threads evaluate; a token alone costs as much as two",
    "--gpu-layers N -1": "layers on the GPU (default: as many as fit)",
    "--override-kv KEY=TYPE:VALUE *": "metadata of the target that llama.cpp reads instead of the file's, as "
    "in qwen3moe.expert_used_count=int:4; repeatable",
    "--lora FILE[:SCALE] *": "GGUF file of a LoRA adapter for the target; repeatable",
    **THREADS,
}


def add(command: argparse.ArgumentParser, group: argparse._ArgumentGroup) -> None:
    """Adds all of them. group: for those that have none of their own."""
    add_for_engine(group, FLAGS)
    add_placement(command)
    add_machines(group)
    add_rope(command)


def add_rope(command: argparse.ArgumentParser) -> None:
    """Adds how positions are scaled, under llama.cpp's names."""
    add_for_engine(command.add_argument_group("contexts longer than a model was trained for"), ROPE)


def add_keep_texts(command: argparse._ActionsContainer) -> None:
    """Adds whether prompts and answers are kept for `edgespec distill`."""
    text = "keep up to this much of your prompts and answers on this machine, for `edgespec distill`"
    add_for_engine(command, {"--keep-texts MB 0": f"{text} (0: nothing)"})


def add_placement(command: argparse.ArgumentParser) -> None:
    """Adds where tensors lie that do not follow their layers, under llama.cpp's names."""
    group = command.add_argument_group("models larger than the graphics card")
    for of, model in (("", "target"), ("-draft", "draft")):
        usual = "" if of else " (default: as few as needed)"
        table = {
            f"--cpu-moe{of}": f"keep all experts of the {model} in main memory",
            f"--n-cpu-moe{of} N": f"keep the experts of the {model}'s first N layers in main memory{usual}",
            f"--override-tensor{of}{'' if of else ' -ot'} PATTERN=PLACE *": f"put the {model}'s tensors "
            "whose names match a regular expression on a device, or on CPU, main memory; repeatable",
        }
        add_for_engine(group, table)


def add_machines(group: argparse._ArgumentGroup) -> None:
    """Adds the other machines that layers may go to."""
    table = {
        "--rpc HOST:PORT,...": "put layers of the target on these machines, which run `edgespec rpc` or "
        "llama.cpp's rpc-server",
        "--rpc-public": "allow machines outside private networks; anyone on the way can read and change the "
        "traffic",
        "--tensor-split N,N,...": "share of the layers for each --rpc machine, then each graphics card "
        "(default: by free memory)",
    }
    add_for_engine(group, table)


def pair_settings(arguments: argparse.Namespace) -> PairSettings:
    """Returns how the flags ask for a pair to be loaded. Raises SettingError."""
    return PairSettings(
        head=wants_draft(arguments),
        n_ctx=arguments.ctx,
        kv_type=arguments.kv_type,
        draft_kv_type=arguments.draft_kv_type,
        flash_attention=FLASH_ATTENTION[arguments.flash_attention],
        threads=arguments.threads,
        byte_identical=arguments.byte_identical,
        n_gpu_layers=0 if arguments.byte_identical and arguments.gpu_layers < 0 else arguments.gpu_layers,
        placement=_placement(arguments),
        draft_placement=_placement(arguments, "_draft"),
        adapters=parse_adapters(arguments.lora),
        metadata=parse_overrides(arguments.override_kv),
        rpc=machines(arguments),
        tensor_split=tensor_split(arguments),
        rope=rope(arguments),
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


def _placement(arguments: argparse.Namespace, of: str = "") -> Placement:
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
