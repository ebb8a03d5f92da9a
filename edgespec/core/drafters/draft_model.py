"""The draft model: a small model guesses token by token, each drawn from its own distribution."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate
from operator import mul
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from edgespec.core.drafters import HOPELESS, Drafting, certain
from edgespec.core.drafters.draft_temperature import DraftTemperature
from edgespec.core.media import end_of_media, text_of
from edgespec.core.pace.odds import BINS, FADE_SILENT, Odds, proportional
from edgespec.core.pace.tuning import TUNING
from edgespec.core.values import LONGEST_DRAFT, Ask, Draft, Judged, Reach
from edgespec.core.verify import Rule
from edgespec.errors import GrammarError, LogitsError, SettingError
from edgespec.sampling.sampler import Distribution, Sampler

FORESEEN = 32  # later guesses that a decision takes into account
SHORTEST = 64  # tokens of context below which a window of it is useless
EVERY = 4  # one in so many rounds is used to choose the temperature


class DraftModel:
    """Guesses with the draft's logits through the user's sampler (greedy if that is greedy).

    The draft context is synced to tokens + guesses, so after a rejection its next evaluation is of one
    token, after full acceptance of two (the last guess, not evaluated yet, and the bonus).
    Whether to continue is asked twice for each guess: before it is evaluated, by how often guesses at its
    position were accepted, and before it is drawn, by how often guesses of the same confidence were.
    """

    def __init__(
        self,
        sampler: Sampler,
        *,
        n_ctx: int,
        n_vocab: int | None = None,
        longest: int = LONGEST_DRAFT,
        odds: Odds | None = None,
        places: Odds | None = None,
        temperature: DraftTemperature | None = None,
        spelt: Callable[[int], Sequence[int]] | None = None,
        media: Literal["", "left out", "not crossed"] = "",
    ) -> None:
        """Sets the bounds of the draft.

        sampler: over the ids that target and draft share. n_ctx: tokens the draft context holds.
        n_vocab: ids the draft knows, unless it knows all. longest: most guesses it can make at once.
        odds: acceptance by confidence; places: by position in the draft.
        temperature: how much warmer or colder than the target it guesses.
        spelt: returns the tokens with which a draft with another vocabulary writes one of the target's.
        media: how it reads a text with pictures: without them or, a head, from the last one on.
        """
        self.temperature = temperature or DraftTemperature()
        self._asked_for = sampler
        self.sampler, self._factor = sampler, 1.0
        self._rounds = 0
        self._silent: tuple[float, Distribution, int] | None = None  # a guess that is not verified
        self.n_ctx = n_ctx
        self.n_vocab = n_vocab
        self.longest = longest
        self.odds = odds or proportional(0.2, 0.95)
        self.places = places or Odds((0.7,) * BINS)
        self._spelt, self._media = spelt, media

    def draft(self, tokens: NDArray[np.int32], limit: int, rule: Rule, otherwise: Reach = ()) -> Drafting:
        """Guesses at most `limit` tokens. otherwise: the reach of the alternative if it is refused."""
        read, skipped = tokens, 0
        if self._media == "left out":
            read = text_of(tokens)
        elif self._media:
            skipped = end_of_media(tokens)
        skipped = max(skipped, self._skipped(read.size))
        read = read[skipped:]
        limit = min(limit, self.n_ctx - read.size, self.longest)
        if limit <= 0 or self.n_vocab and read.item(read.argmax()) >= self.n_vocab:  # of the target's padding
            return Draft()
        self._adjust()
        sampler, odds = self.sampler, self.odds
        guesses: list[int] = []
        tail = guesses if self._spelt is None else []  # what the draft reads of them
        probs: list[Distribution] = []
        confidence: list[float] = []
        reach = 1.0  # probability that all guesses so far are accepted
        falls = (1.0, *accumulate(self.places.onward(min(limit, FORESEEN)), mul))
        expected = _onward(reach, falls, 0, FORESEEN)
        sources: list[str] = []
        while (n := len(guesses)) < limit:
            if n and sampler.masks and (only := self._forced(tokens, guesses)) is not None:
                if (yield Ask("draft", read, tuple(tail), 0, (reach, *expected), skipped=skipped)) is None:
                    break
                self._add(only, guesses, tail)
                probs.append(certain(only))
                confidence.append(1.0)
                sources.append("grammar")
                expected = _onward(reach, falls, n + 1, TUNING.ahead)
                continue
            row = yield Ask("draft", read, tuple(tail), 1, expected, () if n else otherwise, skipped=skipped)
            if row is None:
                break
            try:
                q = sampler(row[0], self._history(tokens, guesses) if sampler.looks_back else tokens)
            except (LogitsError, GrammarError, SettingError):  # it costs speed, not the answer
                break
            best, sure = q.likeliest()
            if sure == 1.0 and 0 <= (place := sampler.place(best)) < sampler.n_vocab:
                sure = lead(row[0, : sampler.n_vocab], place)  # greedy: the logits know more
            reach *= odds.of(sure)
            expected = _onward(reach, falls, n + 1, TUNING.ahead)
            onward = (reach, *expected)
            if (yield Ask("draft", read, tuple(tail), 0, onward, skipped=skipped)) is None:
                if not n:
                    self._silent = sure, q, rule.draw(q, tokens.size)
                break  # by q's shape, before x ~ q: exact
            self._add(rule.draw(q, tokens.size + n), guesses, tail)
            probs.append(q)
            confidence.append(sure)
            sources.append("model")
            if sampler.masks and guesses[-1] in sampler.masks.end_tokens:
                break  # after a token that is kept: exact
        return Draft(tuple(guesses), tuple(probs), tuple(sources), tuple(confidence))

    def _add(self, token: int, guesses: list[int], tail: list[int]) -> None:
        """Adds a guess, and the draft's own tokens for it to what the draft reads."""
        guesses.append(token)
        if self._spelt:
            tail += self._spelt(token)

    def _skipped(self, n: int) -> int:
        """Returns how many of n settled tokens to leave out first, for a draft with a shorter context.

        In steps of a quarter of its context, so that what it has read stays valid for a while.
        """
        step = self.n_ctx // 4
        over = n + min(LONGEST_DRAFT, step) - self.n_ctx
        return -(-over // step) * step if over > 0 and self.n_ctx >= SHORTEST else 0

    def _forced(self, tokens: NDArray[np.int32], guesses: list[int]) -> int | None:
        """Returns the token after the guesses if a grammar leaves no choice.

        After settled tokens the loop has settled them.
        """
        masks = self.sampler.masks
        assert masks
        try:
            found = masks.forced(self._history(tokens, guesses), 1)
        except GrammarError:  # the sampler finds the same, and the guess ends there
            return None
        return found[0] if found and not (self.n_vocab and found[0] >= self.n_vocab) else None

    def _adjust(self) -> None:
        """Follows the temperature that was chosen."""
        if self._factor != self.temperature.factor:
            self._factor, base = self.temperature.factor, self._asked_for
            warmer = replace(base.sampling, temperature=min(base.sampling.temperature * self._factor, 100.0))
            self.sampler = base.at(warmer)

    def _history(self, tokens: NDArray[np.int32], guesses: list[int]) -> NDArray[np.int32]:
        """Returns the history for penalties and grammar."""
        return np.append(tokens, np.array(guesses, np.int32))

    def learn(self, judged: Judged) -> None:
        """Counts which of its guesses were accepted, and now and then compares both distributions."""
        silent, self._silent = self._silent, None
        if silent:
            sure, q, token = silent
            p = judged.p[0].prob(token)
            accepted = p and min(1.0, p / q.prob(token))
            self.odds.note(sure, accepted, fade=FADE_SILENT)
            self.places.note_bin(0, accepted, fade=FADE_SILENT)
        if judged.draft.sources[:1] != ("model",):
            return
        self._rounds += 1
        if self._rounds % EVERY == 0:
            self.temperature.learn(judged.p[0], judged.draft.probs[0])
        for n, sure in enumerate(judged.draft.confidence[: judged.accepted + 1]):
            if judged.draft.sources[n] == "grammar":
                continue
            self.odds.note(sure, n < judged.accepted)
            self.places.note_bin(min(n, BINS - 1), n < judged.accepted)
        self.places.rest(len(judged.draft.tokens))  # else two that failed at first would never be tried again


def _onward(reach: float, falls: tuple[float, ...], n: int, most: int) -> Reach:
    """Returns the probability that each guess from position n on counts, at most so many, by positions alone.

    falls: that the first 0, 1, ... guesses are accepted.
    """
    n = min(n, len(falls) - 2)
    scale = reach / falls[n]
    likely = [counts for fall in falls[n + 1 : n + 1 + most] if (counts := scale * fall) >= HOPELESS]
    return tuple(likely) or (scale * falls[n + 1],)


def lead(row: NDArray[np.float32], best: int) -> float:
    """Returns how sure a greedy choice is: the largest probability's share of the largest two.

    The row is as it was in the end. `argmax` was just used: a numpy function that was not costs some 30
    microseconds between two evaluations.
    """
    highest = row.item(best)
    row[best] = -np.inf
    second = row.item(row.argmax())
    row[best] = highest
    return 1 / (1 + math.exp(min(second - highest, 0.0)))
