"""The flags of `edgespec serve` that load a pair as another command's flags say."""

import argparse
from pathlib import Path

LOADING = (  # flags, besides those of positions, that say how a pair is loaded
    "kv_type",
    "draft_kv_type",
    "flash_attention",
    "byte_identical",
    "gpu_layers",
    "threads",
    "keep_texts",
    "mmproj",
    "rpc",
    "tensor_split",
    "n_cpu_moe",
    "n_cpu_moe_draft",
    "override_tensor",
    "override_tensor_draft",
    "lora",
    "override_kv",
    "no_draft",
    "rpc_public",
    "cpu_moe",
    "cpu_moe_draft",
    "chat_template",
    "chat_template_file",
)
USUAL = {
    "kv_type": "f16",
    "draft_kv_type": "f16",
    "flash_attention": "auto",
    "gpu_layers": -1,
    "keep_texts": 0,
    "mmproj": "auto",
}


def engine_flags(arguments: argparse.Namespace) -> tuple[str, ...]:
    """Returns the flags for a new engine to load its pair."""
    values, flags = vars(arguments), list[str]()
    for name in (*LOADING, *(name for name in values if name.startswith(("rope_", "yarn_")))):
        flag, value = "--" + name.replace("_", "-"), values.get(name)
        if value is True:
            flags.append(flag)
        elif isinstance(value, list | tuple):
            flags += [word for rule in value for word in (flag, rule)]
        elif value is not None and value is not False and value != USUAL.get(name):
            flags += [flag, str(Path(value).resolve() if name == "chat_template_file" else value)]
    return tuple(flags)
