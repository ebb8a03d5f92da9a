"""Models as Ollama's lists describe them: by their files' headers."""

import hashlib
import math
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from edgespec.chat.families.known import family_of
from edgespec.errors import EdgeSpecError
from edgespec.pairs.projector import NONE, projector_of, reads_of
from edgespec.server.dialects.ollama.answers import tagged
from edgespec.server.refusal import Refusal
from edgespec_models.gguf.facts import facts_of
from edgespec_models.gguf.header import Header, HeaderError, read_file

GAPS = ("tokenizer.ggml.fim_pre_token_id", "tokenizer.ggml.prefix_token_id")  # of a model that fills gaps


def listed(name: str, path: Path, size: int) -> dict[str, Any]:
    """Returns a model as /api/tags lists it."""
    name, changed = tagged(name), _changed(path)
    # programs compare digests to see whether a model has changed
    digest = hashlib.sha256(f"{name} {path} {changed}".encode()).hexdigest()
    return {
        "name": name,
        "model": name,
        "modified_at": changed,
        "size": size,
        "digest": digest,
        "details": _details(path, changed),
    }


def shown(path: Path, template: str | None, mmproj: str = NONE) -> dict[str, Any]:
    """Returns what /api/show says of a file. template: in place of its own; mmproj: as settings have it."""
    header = _header(path)
    if header is None:
        raise Refusal(404, f"{path.name} cannot be read: `edgespec doctor` says more", code="model_not_found")
    template = template or header.text("tokenizer.chat_template")
    capable = ["completion", "tools"]
    family = family_of(template)
    capable += ["thinking"] if family.thoughts or family.whole else []
    capable += ["insert"] if any(header.number(key) is not None for key in GAPS) else []
    capable += _reads(path, mmproj)
    known = {key: value for key, value in header.metadata.items() if _is_shown(key, value)}
    return {
        "license": header.text("general.license"),
        "modelfile": f"FROM {path.name}\n",
        "parameters": "",
        "template": template,
        "details": _details(path, _changed(path)),
        "model_info": {**known, "general.parameter_count": _n_weights(header)},
        "capabilities": capable,
        "modified_at": _changed(path),
    }


def _reads(path: Path, mmproj: str) -> list[str]:
    """Returns Ollama's words for what a model reads by its projector, if it has one."""
    try:
        projector = projector_of(path, mmproj)
    except EdgeSpecError:
        return []
    header = _header(projector) if projector else None
    kinds = reads_of(header) if header else ()
    return [word for kind, word in (("pictures", "vision"), ("sounds", "audio")) if kind in kinds]


def _header(path: Path) -> Header | None:
    """Returns a file's header; None if it cannot be read."""
    try:
        return read_file(path)
    except HeaderError:
        return None


def _is_shown(key: str, value: object) -> bool:
    """True for what JSON can say in a few words."""
    short = isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value))
    return short and key != "tokenizer.chat_template"


@lru_cache(maxsize=128)
def _details(path: Path, changed: str) -> dict[str, Any]:
    """Returns what lists of models say of a file. changed: when it was, since a list is asked for often."""
    header = _header(path)
    facts = facts_of(header) if header else None
    family, label = (facts.architecture, facts.size_label) if facts else ("", "")
    return {
        "parent_model": "",
        "format": "gguf",
        "family": family,
        "families": [family],
        "parameter_size": label or (_rounded(_n_weights(header)) if header else ""),
        "quantization_level": facts.quantisation if facts else "",
    }


def _n_weights(header: Header) -> int:
    return sum(math.prod(tensor.shape) for tensor in header.tensors)


def _rounded(n: int) -> str:
    """Returns a number of weights as Ollama writes it: 7.6B, 135M."""
    return f"{n / 1e9:.1f}B" if n >= 1e9 else f"{n / 1e6:.0f}M"


def _changed(path: Path) -> str:
    """Returns when a file was changed, as Ollama writes times; that of a file that is gone is long ago."""
    try:
        changed = path.stat().st_mtime
    except OSError:
        changed = 0.0
    return datetime.fromtimestamp(changed, UTC).isoformat()
