"""Scores of tokens -> `logprobs`, in the formats of OpenAI and llama-server.

Text is held back while it may become a stop string, and its tokens' scores with it: a token is reported
together with its first character, and not at all if that is never shown.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from edgespec.core.values import Candidate, Round, TokenScore

NEVER = -9999.0  # OpenAI's number for a token that cannot come; JSON has no infinity


@dataclass(frozen=True, slots=True)
class Scored:
    """A token of shown text. offset: where it begins, in characters of the answer."""

    score: TokenScore
    offset: int


@dataclass(slots=True)
class ScoreRelease:
    """Releases scores together with the text that they belong to."""

    _waiting: deque[Scored] = field(default_factory=deque)
    _characters: int = 0  # characters of the tokens so far
    _shown: int = 0  # of the text

    def feed(self, round_: Round, pieces: Sequence[str]) -> tuple[Scored, ...]:
        """Takes a round and its tokens' texts; returns what belongs to the text shown by now."""
        for score, piece in zip(round_.scores, pieces, strict=True):
            self._waiting.append(Scored(score, self._characters))
            self._characters += len(piece)
        self._shown += len(round_.text)
        released = []
        while self._waiting and self._waiting[0].offset < self._shown:
            released.append(self._waiting.popleft())
        return tuple(released)


def for_chat(scored: Sequence[Scored], *, sampled: bool) -> dict[str, Any]:
    """Returns the `logprobs` of a chat choice. sampled: probabilities, in llama-server's words."""
    return {"content": [_entry(one.score, sampled) for one in scored], "refusal": None}


def for_text(scored: Sequence[Scored], *, sampled: bool) -> dict[str, Any]:
    """Returns the `logprobs` of a text choice: OpenAI's lists, and llama-server's `content` with them."""
    chosen = [one.score.chosen for one in scored]
    return {
        "tokens": [_text(candidate) for candidate in chosen],
        "token_logprobs": [_log(candidate) for candidate in chosen],
        "top_logprobs": [{_text(c): _log(c) for c in one.score.top} for one in scored],
        "text_offset": [one.offset for one in scored],
        "content": [_entry(one.score, sampled) for one in scored],
    }


def _entry(score: TokenScore, sampled: bool) -> dict[str, Any]:
    likeliest = [_candidate(candidate, sampled) for candidate in score.top]
    return {**_candidate(score.chosen, sampled), "top_probs" if sampled else "top_logprobs": likeliest}


def _candidate(candidate: Candidate, sampled: bool) -> dict[str, Any]:
    value = {"prob": math.exp(candidate.logprob)} if sampled else {"logprob": _log(candidate)}
    return {
        "id": candidate.token,
        "token": _text(candidate),
        "bytes": list(candidate.spelt),
        **value,
    }


def _text(candidate: Candidate) -> str:
    return candidate.spelt.decode("utf-8", "replace")


def _log(candidate: Candidate) -> float:
    return max(candidate.logprob, NEVER)
