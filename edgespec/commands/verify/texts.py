"""Texts with a draft and without, and batches against single tokens: what must be the same."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice

import numpy as np

from edgespec.commands.verify.budget import MOST_TOKENS, Deadline, TokenizedPrompt
from edgespec.commands.verify.equality import BatchShape, Difference, batch_shapes, difference, output
from edgespec.core.request import Request
from edgespec.core.values import DrafterName
from edgespec.engine.pair import Pair
from edgespec.measure.prompts import built_in
from edgespec.sampling.sampler import Sampling

GREEDY = Sampling(temperature=0)
SEEDED = Sampling(temperature=0.8, top_p=0.95, min_p=0.0)
HELD = (64, 560)  # tokens before the batches: from 512 on llama.cpp may split attention over threads
BATCHED = 34  # tokens evaluated in batches and one at a time
SIZES = (5, 2, 9, 3, 4, 13, 8, 6, 7, 17, 33)  # rows of a batch, the commonest first


@dataclass(frozen=True, slots=True)
class Way:
    """Who drafts, and how long; None is a request's default."""

    drafter: DrafterName
    length: int | None = None

    def of(self, request: Request) -> Request:
        """Returns the request with this way of drafting."""
        request = replace(request, drafter=self.drafter)
        return request if self.length is None else replace(request, draft_length=self.length)

    def __str__(self) -> str:
        return self.drafter if self.length is None else f"{self.drafter} {self.length}"


PLAIN = Way("none")


def ways(pair: Pair) -> tuple[Way, ...]:
    """Returns the ways of drafting that texts are compared with: the default one, and fixed lengths."""
    lookup = (Way("auto"), Way("lookup", 4), Way("auto", 8), Way("lookup", 1), Way("lookup", 12))
    model = (Way("model", 4), Way("auto"), Way("model", 1), Way("auto", 8), Way("model", 12))
    return (*model, Way("lookup", 4)) if "draft" in pair.contexts else lookup


@dataclass(frozen=True, slots=True)
class Comparison:
    """One text with a draft, compared with the same without. prompt: which one, counted from 0."""

    prompt: int
    kind: str
    way: Way
    seed: int | None
    n_tokens: int
    drafted: int
    accepted: int
    difference: Difference | None


def compare_texts(
    pair: Pair,
    prompts: Sequence[TokenizedPrompt],
    watch: Deadline,
    *,
    sampling: Sampling,
    n_tokens: int,
    each: int,
) -> Iterator[Comparison]:
    """Compares the text after each prompt without a draft with that of `each` ways of drafting, in turn.

    Begins no prompt that would take longer than there is time. Sampling at a temperature is coupled, each
    prompt with a seed of its own.
    """
    room = max(prompt.tokens.size for prompt in prompts) + MOST_TOKENS + 64  # for what is replayed
    settings = pair.contexts["target"].settings
    settings = replace(settings, n_ctx=min(settings.n_ctx, room))
    turns, longest, speed = cycle(ways(pair)), 0.0, watch.speed
    what = "greedy texts" if sampling.temperature == 0 else "seeded texts"
    expected = (1 + each) * speed.read * prompts[0].tokens.size + (1 + 3 * each) * speed.token * n_tokens
    for i, prompt in enumerate(prompts):
        started = watch.clock()
        if watch.over(longest) if i else watch.hopeless(expected):
            return
        watch.on_progress(what, i, len(prompts))
        request = Request(sampling, n_tokens, seed=None if sampling.temperature == 0 else i)
        plain = output(pair, prompt.tokens, PLAIN.of(request), cancelled=watch.hopeless)
        for way in islice(turns, each):
            run = output(pair, prompt.tokens, way.of(request), cancelled=watch.hopeless)
            if watch.hopeless():
                return
            found = difference(pair.target, settings, plain, run)
            counts = len(run.tokens), run.drafted, run.accepted
            yield Comparison(i, prompt.kind, way, request.seed, *counts, found)
        longest = max(longest, watch.clock() - started)
    watch.on_progress(what, len(prompts), len(prompts))


def check_batches(pair: Pair, watch: Deadline) -> Iterator[BatchShape]:
    """Compares batches of several sizes with single tokens, after a short text and a long one."""
    text = pair.prompt_tokens("\n\n".join(sample.text for sample in built_in()))
    speed = watch.speed
    n = BATCHED if watch.left > 8 * BATCHED * speed.token else BATCHED // 2
    settings = pair.contexts["target"].settings
    for held in HELD:
        tokens = np.resize(text, held + n)
        needed = held * speed.read + 2 * n * speed.token
        if tokens.size > pair.n_ctx or watch.over(needed):
            return
        narrow = replace(settings, n_ctx=min(settings.n_ctx, tokens.size + 1))
        shapes = batch_shapes(pair.target, narrow, tokens, held, SIZES, over=watch.over)
        for done, shape in enumerate(shapes):
            watch.on_progress(f"batches after {held} tokens", done + 1, len(SIZES))
            yield shape
