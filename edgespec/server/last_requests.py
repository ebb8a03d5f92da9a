"""The last prompts of each client: where their tokens were, and why others were evaluated again.

They are kept in memory alone, and shown only to who sent them: a reason quotes what differs.
"""

import time
from collections import deque
from typing import Any

from edgespec.server.choice_results import ChoiceResults

MOST = 10  # of each owner
OWNERS = 64  # keys may be changed while the server runs


class LastRequests:
    """The last requests of each owner, the newest last."""

    def __init__(self) -> None:
        self._of: dict[str, deque[dict[str, Any]]] = {}

    def note(self, owner: str, model: str, choice: ChoiceResults) -> None:
        """Adds a request that has ended."""
        mine = self._of.pop(owner, None) or deque(maxlen=MOST)
        mine.append(
            {
                "ended": int(time.time()),
                "model": model,
                "prompt_tokens": choice.prompt_tokens,
                "evaluated": choice.known_tokens - choice.cached_tokens,
                "generated": choice.n_tokens,
                **choice.reuse(),
            }
        )
        self._of[owner] = mine
        if len(self._of) > OWNERS:
            del self._of[next(iter(self._of))]

    def of(self, owner: str) -> list[dict[str, Any]]:
        """Returns an owner's."""
        return list(self._of.get(owner, ()))
