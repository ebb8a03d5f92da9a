"""EdgeSpec: the same answer from a local model, sooner.

A small draft guesses the next tokens, the target checks them in one batched evaluation, and what was
wrong is removed from the KV cache. Importing this package loads neither llama.cpp nor anything heavy.

    import edgespec
    with edgespec.load() as pair:
        for round_ in pair.generate(pair.prompt_tokens("def main():"), edgespec.Request()):
            print(round_.text, end="")
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from edgespec.errors import EdgeSpecError

if TYPE_CHECKING:
    from edgespec.core.request import Request
    from edgespec.core.stats import Statistics, Tally
    from edgespec.core.values import Round
    from edgespec.engine.pair import Pair
    from edgespec.pairs.settings import PairSettings
    from edgespec.sampling.sampler import Sampling

__version__ = "0.1.0"
__all__ = [
    "EdgeSpecError",
    "Pair",
    "PairSettings",
    "Request",
    "Round",
    "Sampling",
    "Statistics",
    "Tally",
    "load",
]

_PLACES = {
    "Pair": "engine.pair",
    "PairSettings": "pairs.settings",
    "Request": "core.request",
    "Round": "core.values",
    "Sampling": "sampling.sampler",
    "Statistics": "core.stats",
    "Tally": "core.stats",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'edgespec' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"edgespec.{_PLACES[name]}"), name)


def load(
    target: str | os.PathLike[str] | None = None,
    draft: str | os.PathLike[str] | None = None,
    settings: PairSettings | None = None,
) -> Pair:
    """Loads a pair of GGUF files in this process; without a target, the embedded pair.

    llama.cpp can end the process on a damaged file; `edgespec run` isolates it, this call does not.
    """
    from edgespec.engine.pair import Pair

    if target is None:
        from edgespec_models.tiny import draft_path, target_path

        target, draft = target_path(), draft or draft_path()
    return Pair(target, draft, settings)
