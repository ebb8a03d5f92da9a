"""The prompts that a pair is tried on, as its tokens."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgespec.commands.prompts import built_in, tokenize
from edgespec.engine.pair import Pair
from edgespec.errors import SettingError


@dataclass(frozen=True, slots=True)
class TokenizedPrompt:
    """A text to continue."""

    kind: str  # of task: code, chat, ...
    tokens: NDArray[np.int32]  # (n,)


def fitting_prompts(pair: Pair, n_tokens: int) -> list[TokenizedPrompt]:
    """Returns the built-in prompts that leave room for `n_tokens` in the context; SettingError if none do."""
    tokens = tokenize(pair, built_in())
    found = [
        TokenizedPrompt(prompt.kind, tokens[prompt.name])
        for prompt in built_in()
        if tokens[prompt.name].size + n_tokens + 1 < pair.n_ctx
    ]
    if not found:
        raise SettingError(f"the context of {pair.n_ctx:,} tokens has no room for a text: raise --ctx")
    return found
