"""The speculative loop.

The last token is kept outside the target's KV cache; one evaluation of [last, x_1..x_k] gives the k+1
rows that judge the k guesses and provide the token after them. The loop is a generator: it asks (`Ask`),
is answered with logits, and yields a `Round` for every evaluation of the target. It does not know what
evaluates or how long drafts may be; the engine does, which runs one loop for each stream.

The first evaluation is the prompt alone, so that the first token does not wait for a draft. If a grammar
leaves only one token, no evaluation is asked for it; it is read with what follows.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from edgespec.core.drafters import Drafter
from edgespec.core.media import is_cell
from edgespec.core.request import Scoring
from edgespec.core.scores import of_distribution, of_logits
from edgespec.core.text import TextRelease
from edgespec.core.values import LONGEST_DRAFT, NO_DRAFT, Ask, Draft, FinishReason, Judged, Round, TokenScore
from edgespec.core.verify import Rule, Verdict
from edgespec.errors import EdgeSpecError, GrammarError, PromptTooLongError, SettingError
from edgespec.sampling.masks import Masks
from edgespec.sampling.sampler import Distribution, Sampler

Rows = NDArray[np.float32]
Loop = Generator[Ask | Round, Rows | None, None]


@dataclass(frozen=True, slots=True)
class Limits:
    """Where generation ends: after `max_tokens`, where prompt + output fill `n_ctx`, or at an end token."""

    max_tokens: int | None  # None: as many as fit
    n_ctx: int
    end_tokens: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        most = self.max_tokens
        if most is not None and (not isinstance(most, int) or most < 1):
            raise SettingError(f"the number of tokens wanted is {most!r}: it must be 1 or more")


def generate(
    prompt: Sequence[int] | NDArray[np.int32],
    *,
    drafter: Drafter,
    sampler: Sampler,
    rule: Rule,
    text: TextRelease,
    limits: Limits,
    scoring: Scoring | None = None,
) -> Loop:
    """Generates after `prompt`; ends with a Round that has a finish reason.

    scoring: also report how likely each token was.
    Raises PromptTooLongError, SettingError for a prompt without tokens or with unknown ones, or GrammarError.
    """
    tokens, n = _checked(prompt, limits, sampler.n_vocab), len(prompt)
    end = min(n + (limits.max_tokens or limits.n_ctx), limits.n_ctx)
    settling = None if scoring else sampler.masks  # a token that is scored needs a row
    lead = _settled(settling, tokens, n, (), end - 1)  # reported with the first round
    n += len(lead)
    forced, first = 0, True  # forced: the last of tokens[:n] that were settled without the target
    finish: FinishReason | None = None
    while finish is None:
        draft = NO_DRAFT
        if not first and end - n > 1:
            draft = yield from drafter.draft(tokens[:n], min(end - n - 1, LONGEST_DRAFT), rule)
        k = len(draft.tokens)
        rows = yield Ask("target", tokens[:n], draft.tokens, k + 1, draft.reach, forced=forced)
        assert rows is not None
        draft = draft.cut(len(rows) - 1)
        p, seen = _target_distributions(sampler, rows, tokens, n, draft)
        verdict = _verdict(rule, draft, p, seen, n)
        looked_at = tuple(map(p, range(max([verdict.accepted, *seen]) + 1)))
        fresh = (*draft.tokens[: verdict.accepted], verdict.token)
        after = _settled(settling, tokens, n, fresh, end)
        gained = (*lead, *fresh, *after)
        released, kept, finish = _release(gained, text, limits.end_tokens, end - n + len(lead))
        stayed = max(0, kept - len(lead))
        n += stayed
        if finish is None and sampler.masks and sampler.masks.ended(tokens[:n]):
            released, finish = released + text.flush(), "stop"
        yield Round(
            gained[:kept], released, len(draft.tokens), verdict.accepted,
            _sources(lead, draft, verdict, after)[:kept], finish, stopped_by=text.stopped_by,
            scores=_scores(scoring, rows[:, : sampler.n_vocab], p, fresh[:kept]) if scoring else (),
        )  # fmt: skip
        behind = rows[verdict.accepted + 1 :, : sampler.n_vocab]
        drafter.learn(Judged(tokens[:n], stayed, draft, verdict.accepted, looked_at, behind))
        lead, forced, first = (), len(after), False


def _settled(
    masks: Masks | None, tokens: NDArray[np.int32], n: int, fresh: Sequence[int], end: int
) -> tuple[int, ...]:
    """Writes `fresh` after tokens[:n], then what a grammar leaves no choice about, and returns that."""
    tokens[n : n + len(fresh)] = fresh
    if masks is None:
        return ()
    n += len(fresh)
    try:
        forced = tuple(masks.forced(tokens[:n], end - n))
    except GrammarError:  # the next round's, if the text goes on
        if not fresh:
            raise
        return ()
    tokens[n : n + len(forced)] = forced
    return forced


def _sources(lead: Sequence[int], draft: Draft, verdict: Verdict, after: Sequence[int]) -> tuple[str, ...]:
    """Returns the source of each token of a round."""
    by = (*draft.sources[: verdict.accepted], "target")
    return ("grammar",) * len(lead) + by + ("grammar",) * len(after)


def _checked(prompt: Sequence[int] | NDArray[np.int32], limits: Limits, n_vocab: int) -> NDArray[np.int32]:
    """Returns the prompt with room behind it: for the text, and for guesses past its end."""
    if len(prompt) == 0:
        raise SettingError("the prompt has no tokens: say something for the model to continue")
    if len(prompt) >= limits.n_ctx:
        raise PromptTooLongError(len(prompt), limits.n_ctx)
    low, high = int(np.min(prompt)), int(np.max(prompt))
    if high >= n_vocab:
        low = high
    elif low < 0:
        low = next((token for token in map(int, prompt) if token < 0 and not is_cell(token)), 0)
    if low < 0 or high >= n_vocab:
        raise SettingError(f"token {low} of the prompt does not exist: the target has {n_vocab:,} tokens")
    if prompt[-1] < 0:
        raise SettingError("the prompt ends with a picture or sound: write something after it")
    tokens = np.zeros(limits.n_ctx + LONGEST_DRAFT + 1, np.int32)
    tokens[: len(prompt)] = prompt
    return tokens


def _target_distributions(
    sampler: Sampler, rows: Rows, tokens: NDArray[np.int32], n: int, draft: Draft
) -> tuple[Callable[[int], Distribution], dict[int, Distribution]]:
    """Returns i -> p at draft position i, computed when first asked for; and the store of those computed.

    The guesses are written after the settled tokens, so that each position's history is a view.
    """
    seen: dict[int, Distribution] = {}
    tokens[n : n + len(draft.tokens)] = draft.tokens

    def p(i: int) -> Distribution:
        if i not in seen:
            seen[i] = sampler(rows[i], tokens[: n + i])
        return seen[i]

    return p, seen


def _verdict(
    rule: Rule, draft: Draft, p: Callable[[int], Distribution], seen: Mapping[int, Distribution], n: int
) -> Verdict:
    """Returns the verdict. An error behind guesses that stay is the next round's, if it goes on."""
    try:
        return rule.verify(draft, p, n)
    except EdgeSpecError:
        if not seen:
            raise
        return Verdict(len(seen) - 1, draft.tokens[len(seen) - 1])


def _scores(
    scoring: Scoring, rows: Rows, p: Callable[[int], Distribution], fresh: Sequence[int]
) -> tuple[TokenScore, ...]:
    """Returns how likely each of the tokens was in its place."""
    if scoring.sampled:
        return tuple(of_distribution(p(i), token, scoring.top) for i, token in enumerate(fresh))
    return tuple(of_logits(rows[i], token, scoring.top) for i, token in enumerate(fresh))


def _release(
    fresh: Sequence[int], text: TextRelease, end_tokens: frozenset[int], room: int
) -> tuple[str, int, FinishReason | None]:
    """Returns the text that may be shown, how many of `fresh` stay, and why generation ends, if it does."""
    released = ""
    for kept, token in enumerate(fresh):
        if token in end_tokens:
            return released + text.flush(), kept, "stop"
        released += text.feed(token)
        if text.stopped:
            return released, kept + 1, "stop"
        if kept + 1 == room:
            return released + text.flush(), kept + 1, "length"
    return released, len(fresh), None


class Want(NamedTuple):
    """What one sequence wants of a context: hold tokens + tail, and give the last `rows` logit rows.

    filling: tokens evaluated behind them, if the context has room, with rows that nobody sees; the sequence
    may hold them afterwards, as it may hold rejected guesses.
    """

    tokens: NDArray[np.int32]
    tail: tuple[int, ...] = ()
    rows: int = 1
    seq: int = 0
    before: int = 0  # settled tokens left out before `tokens`
    filling: int = 0


class Scorer(Protocol):
    """A model's context as the engine sees it; `llama.Context` is one, tests have others."""

    @property
    def evaluated(self) -> int:
        """Returns how many tokens it has evaluated so far."""

    def missing(self, want: Want) -> int:
        """Returns how many tokens `score` would evaluate for this."""

    def score(self, wants: Sequence[Want]) -> list[Rows]:
        """Returns for each want float32 (rows, n_vocab), valid until the next call."""


NO_ROWS: Rows = np.empty((0, 0), np.float32)
