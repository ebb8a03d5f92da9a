"""The flags that other engines' parsers take, read from their sources.

    python tests/engine_flags.py VLLM SGLANG

VLLM, SGLANG: folders with unpacked wheels (`pip download --no-deps`, then unzip). Their argument classes need
torch, so the sources are read; engine_flags.json has the result, with versions.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from pathlib import Path
from typing import Any

COMMANDS = "FROM LICENSE TEMPLATE SYSTEM ADAPTER DRAFT RENDERER PARSER PARAMETER MESSAGE REQUIRES"
PARAMETERS = "num_ctx repeat_last_n repeat_penalty temperature seed stop num_predict "
PARAMETERS += "draft_num_predict top_k top_p min_p"
KEPT = Path(__file__).with_suffix(".json")
Found = dict[str, Any]


def vllm(folder: Path) -> Found:
    """Returns flags of `vllm serve`, and the fields and methods of --speculative-config."""
    flags = re.findall(r'"(--[a-z][a-z0-9-]+)"', (folder / "vllm/engine/arg_utils.py").read_text())
    tree = ast.parse((folder / "vllm/config/speculative.py").read_text())
    config = next(
        node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "SpeculativeConfig"
    )
    literals = {
        node.targets[0].id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    return {
        "version": _version(folder, "vllm"),
        "flags": sorted(set(flags)),
        "fields": sorted(
            node.target.id
            for node in config.body
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
        ),
        "methods": sorted(_texts(literals["SpeculativeMethod"], literals)),
        "draft_sample_methods": sorted(_texts(literals["DraftSampleMethod"], literals)),
    }


def _texts(node: ast.expr, literals: dict[str, ast.expr]) -> set[str]:
    """Returns the texts of a Literal, and of those that it names."""
    found = set()
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            found.add(part.value)
        elif isinstance(part, ast.Name) and part.id in literals and literals[part.id] is not node:
            found |= _texts(literals[part.id], literals)
    return found


def sglang(folder: Path) -> Found:
    """Returns flags of `sglang.launch_server`, which are the fields of its groups of arguments."""
    flags: set[str] = set()
    for file in sorted((folder / "sglang/srt/arg_groups/fields").glob("*.py")):
        text = file.read_text()
        flags |= set(re.findall(r'"(--[a-z][a-z0-9-]+)"', text))
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                flags.add("--" + node.target.id.replace("_", "-"))
    algorithms = re.search(
        r"Speculative algorithm\. Builtins: ([A-Z0-9, ]+)\.", (file.parent / "spec.py").read_text()
    )
    assert algorithms
    return {
        "version": _version(folder, "sglang"),
        "flags": sorted(flags),
        "algorithms": algorithms[1].split(", "),
    }


def _version(folder: Path, name: str) -> str:
    return next(folder.glob(f"{name}-*.dist-info")).name.split("-")[1].removesuffix(".dist")


if __name__ == "__main__":
    ours = {
        "vllm": vllm(Path(sys.argv[1])),
        "sglang": sglang(Path(sys.argv[2])),
        # parser/parser.go and docs/modelfile.mdx of ollama/ollama, read by hand
        "ollama": {
            "commands": COMMANDS.split(),
            "parameters": PARAMETERS.split(),
        },
    }
    KEPT.write_text(json.dumps(ours, indent=1) + "\n")
