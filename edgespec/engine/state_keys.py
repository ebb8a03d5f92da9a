"""What the saved states of a pair's contexts depend on, so that none is used where it would be wrong."""

import hashlib
import json
import os
import platform
from collections.abc import Mapping
from pathlib import Path

from edgespec.core.values import ModelName
from edgespec.llama.context import Context
from edgespec.llama.heads.guessing import AnyHead, DraftContext
from edgespec.system.builds import library_folder
from edgespec_models.gguf.header import split_names


def state_keys(contexts: Mapping[ModelName, DraftContext]) -> dict[ModelName, bytes]:
    """Returns a key for each context: of its model, how that is evaluated, and this build of llama.cpp.

    A head's state depends on its target too, and that of a draft with another vocabulary on both texts.
    """
    target = _facts_of(contexts["target"])
    facts = {name: [name, *_facts_of(context)] for name, context in contexts.items()}
    if not isinstance(contexts.get("draft", contexts["target"]), Context):
        facts["draft"] += target
    build = [platform.machine(), *_files(sorted(library_folder().glob("*")))]
    return {name: hashlib.sha256(json.dumps([build, all_]).encode()).digest() for name, all_ in facts.items()}


def _facts_of(context: DraftContext) -> list[object]:
    """Returns what a context's states depend on."""
    model, how = context.model, context.settings
    kind = context.kind if isinstance(context, AnyHead) else ""
    return [
        kind, *_files([model.path.with_name(name) for name in split_names(model.path.name)]),
        *_files([path for path, _ in model.adapters]),
        context.adapters if isinstance(context, Context) else (),
        sorted(model.layers.items()), model.rules, model.overridden,
        how.kv_type, how.flash_attention, how.identical, how.rope.flags(),
        how.cells or how.n_ctx * how.n_seq,  # that chooses among the position factors of some models
    ]  # fmt: skip


def _files(paths: list[Path]) -> list[object]:
    states = [(path, os.stat(path)) for path in paths]
    return [(str(path.resolve()), state.st_size, state.st_mtime_ns) for path, state in states]
