"""How much is checked: the prompts that fit, how long checks may take, and what that allows here."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from edgespec.commands.verify.equality import REACH
from edgespec.core.loop import Want
from edgespec.engine.pair import Pair
from edgespec.errors import SettingError
from edgespec.measure.prompts import built_in, fitting

LEAST_TOKENS, MOST_TOKENS = 8, 48  # of a text
Progress = Callable[[str, int, int], None]  # what is done, how much of it, of how much


@dataclass(frozen=True, slots=True)
class TargetSpeed:
    """What the target takes, and how far its logits are apart."""

    read: float  # seconds a token of a prompt
    token: float  # seconds for one token alone
    spread: float  # standard deviation of a row of logits (of tokens that could be drawn at all)


@dataclass(frozen=True, slots=True)
class Deadline:
    """Time left for a check, what it has to be compared with, and who follows."""

    clock: Callable[[], float]  # seconds, monotonic
    end: float = math.inf  # on that clock; nothing is begun that would take longer
    last: float = math.inf  # nothing at all is begun that would take longer
    cancelled: Callable[[], bool] = lambda: False  # asked often
    speed: TargetSpeed = TargetSpeed(0.0, 0.0, 1.0)
    on_progress: Progress = lambda what, done, total: None

    @property
    def left(self) -> float:
        return self.end - self.clock()

    def over(self, needed: float = 0.0) -> bool:
        """True if `needed` seconds are no longer left, or the user has stopped it."""
        return self.cancelled() or self.left < needed

    def hopeless(self, needed: float = 0.0) -> bool:
        """True if `needed` seconds are not left even if nothing else is done any more."""
        return self.cancelled() or self.last - self.clock() < needed

    def share(self, part: float) -> Deadline:
        """Returns a watch for `part` of the time that is left."""
        return replace(self, end=self.clock() + part * self.left) if self.end < math.inf else self


def measured(pair: Pair, prompt: TokenizedPrompt, clock: Callable[[], float]) -> TargetSpeed:
    """Reads a prompt and four tokens after it."""
    pair.forget()
    context, tokens = pair.contexts["target"], prompt.tokens
    times = [clock()]
    for _ in range(5):
        row = context.score([Want(tokens)])[0][0]
        times.append(clock())
        tokens = np.append(tokens, np.int32(row.argmax()))
    spread = float(row[row >= row.max() - REACH].std())
    return TargetSpeed((times[1] - times[0]) / prompt.tokens.size, (times[-1] - times[1]) / 4, spread)


def text_plan(speed: TargetSpeed, prompts: Sequence[TokenizedPrompt], seconds: float) -> tuple[int, int]:
    """Returns how long texts may be, and with how many ways of drafting each prompt is compared.

    Such that four prompts, each of another kind, take the seconds. A text with a draft counts three
    times the plain one, which a poor draft on one thread may well cost.
    """
    if math.isinf(seconds):
        return MOST_TOKENS, 2
    reading = speed.read * float(np.mean([prompt.tokens.size for prompt in prompts]))
    for each in (2, 1):
        tokens = (seconds / 4 - (1 + each) * reading) / (1 + 3 * each) / speed.token
        if tokens >= MOST_TOKENS / 2:
            break
    return int(min(MOST_TOKENS, max(LEAST_TOKENS, tokens))), each


@dataclass(frozen=True, slots=True)
class TokenizedPrompt:
    """A text to continue."""

    kind: str  # of task: code, chat, ...
    tokens: NDArray[np.int32]  # (n,)


def fitting_prompts(pair: Pair, n_tokens: int) -> list[TokenizedPrompt]:
    """Returns the built-in prompts that leave room for `n_tokens` in the context; SettingError if none do."""
    found, tokens = fitting(pair, built_in(), n_tokens + 2)
    if not found:
        raise SettingError(f"the context of {pair.n_ctx:,} tokens has no room for a text: raise --ctx")
    return [TokenizedPrompt(prompt.kind, tokens[prompt.name]) for prompt in found]
