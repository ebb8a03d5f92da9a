"""EdgeSpec: the same answer from a local model, sooner.

A small draft guesses the next tokens, the target checks them in one batched evaluation, and what was
wrong is removed from the KV cache. Importing this package loads neither llama.cpp nor anything heavy.

    import edgespec
    with edgespec.load() as pair:
        for round_ in edgespec.stream(pair, "def main():"):
            print(round_.text, end="")

Names imported from here are stable; the rooms below may change.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from edgespec.errors import EdgeSpecError

if TYPE_CHECKING:
    from edgespec.client.answer import AnswerOptions, Ended, StreamedRound
    from edgespec.client.client import Client
    from edgespec.core.request import Request
    from edgespec.core.stats import Statistics
    from edgespec.core.values import Round
    from edgespec.engine.generation import Answer, Generation, generate
    from edgespec.engine.pair import Pair
    from edgespec.grammar.grammar import Grammar
    from edgespec.local.attach import attach
    from edgespec.pairs.settings import PairSettings
    from edgespec.sampling.sampler import Sampling

__version__ = "0.1.0"
__all__ = [
    "Answer",
    "AnswerOptions",
    "Client",
    "EdgeSpecError",
    "Ended",
    "Generation",
    "Grammar",
    "Pair",
    "PairSettings",
    "Request",
    "Round",
    "Sampling",
    "Statistics",
    "StreamedRound",
    "attach",
    "generate",
    "load",
    "stream",
]

_PLACES = {
    "Answer": "engine.generation",
    "AnswerOptions": "client.answer",
    "Client": "client.client",
    "Ended": "client.answer",
    "Generation": "engine.generation",
    "Grammar": "grammar.grammar",
    "Pair": "engine.pair",
    "PairSettings": "pairs.settings",
    "Request": "core.request",
    "Round": "core.values",
    "Sampling": "sampling.sampler",
    "Statistics": "core.stats",
    "StreamedRound": "client.answer",
    "attach": "local.attach",
    "generate": "engine.generation",
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

    llama.cpp can abort the process on a damaged file; `edgespec run` isolates it, this call does not.
    """
    from edgespec.engine.pair import Pair

    if target is None:
        from edgespec_models.tiny import draft_path, target_path

        target, draft = target_path(), draft or draft_path()
    return Pair(target, draft, settings)


def stream(
    pair: Pair, prompt: str | Sequence[Mapping[str, Any]], request: Request | None = None
) -> Generation:
    """Answers round by round: iterate over it; its `answer` has what came so far, `cancel` ends it."""
    from edgespec.engine.generation import Generation

    return Generation(pair, prompt, request)
