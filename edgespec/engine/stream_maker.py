"""Makes the streams of requests on a loaded pair: who guesses, what is sampled, what a text may hold."""

import logging
import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from edgespec.core.drafters import Drafter, Guesser, NoDrafter
from edgespec.core.drafters.competition import Competition
from edgespec.core.drafters.demanded import DemandedText
from edgespec.core.drafters.draft_model import DraftModel
from edgespec.core.drafters.free import free_guessers
from edgespec.core.drafters.history import LONG, History, TextPool
from edgespec.core.loop import Limits, Loop, generate
from edgespec.core.pace.controller import Controller
from edgespec.core.pace.pace import FixedLength, Pace
from edgespec.core.pace.record import Record
from edgespec.core.request import Request
from edgespec.core.stream import Stream
from edgespec.core.text import TextRelease
from edgespec.core.values import FREE, LONGEST_DRAFT
from edgespec.core.verify import Coupled, Independent, Rule, verify_block, verify_tokens
from edgespec.engine.experience import Experience, Knowledge
from edgespec.errors import GrammarError, SettingError
from edgespec.grammar.grammar import CONTROL
from edgespec.grammar.matchers import Matchers
from edgespec.llama.heads.guessing import DraftContext
from edgespec.llama.model import Model
from edgespec.llama.translated_context import TranslatedContext
from edgespec.sampling.masks import Masks
from edgespec.sampling.repetition import Breakers, Repetition
from edgespec.sampling.sampler import Sampler, Sampling
from edgespec.sampling.translated_sampler import TranslatedSampler
from edgespec_models.gguf.heads import Head, HeadKind, with_article

MOST_POOLS = 4  # of earlier texts, 48 MB each where they are full
HEADS: dict[str, tuple[HeadKind, ...]] = {
    "mtp": ("mtp", "assistant"),
    "eagle": ("eagle3",),
    "dflash": ("dflash",),
    "medusa": ("medusa",),
}  # as requests name them


class StreamMaker:
    """Makes streams, and keeps what they share: tables of guessers, compiled grammars, breakers."""

    def __init__(
        self, target: Model, n_ctx: int, draft: DraftContext | None, head: Head | None, known: Knowledge
    ) -> None:
        """n_ctx: limit of prompt and output together, in tokens. known: what is learned of the pair."""
        self._target, self._n_ctx, self._head = target, n_ctx, head
        self._draft_context, self._known = draft, known
        self._end_tokens = target.end_tokens  # asked of llama.cpp now, not before the first token
        self._guessers: dict[bool, list[Guesser]] = {}  # free ones, by whether a grammar masks the text
        self._pools: OrderedDict[str, TextPool] = OrderedDict()  # by owner
        self._breakers = Breakers(self._every_piece, self._usual)
        self.matchers = Matchers(self._pieces, self._end_tokens, target.n_vocab)

    def forget(self) -> None:
        """Forgets what free guessers have seen, earlier texts included."""
        self._guessers = {}
        self._pools.clear()

    def stream(self, prompt: Sequence[int] | NDArray[np.int32], request: Request) -> Stream:
        """Prepares a generation for an engine. Raises PromptTooLongError or SettingError."""
        text, pace = TextRelease(self.spelling(request.shown), request.stop), self._pace(request)
        return Stream(self._loop(prompt, request, text, pace), text, pace)

    def _pieces(self, shown: frozenset[int]) -> list[bytes]:
        """Returns the text of every token; tokens that are not text have theirs after CONTROL."""
        piece, every = self._spelling(shown), range(self._target.n_vocab)
        named = partial(self._target.piece, special=True)
        return [piece(i) or (CONTROL + name if (name := named(i)) else b"") for i in every]

    def prepare(self, request: Request) -> None:
        """Does what a vocabulary needs once for a request. From any thread. Raises GrammarError."""
        shown = self._tokens_of(request.shown)
        if request.grammar:
            try:
                self.matchers.compile(request.grammar, shown)
            except GrammarError as error:
                if request.governed:
                    raise
                logging.getLogger(__name__).warning("Calls of these tools are not constrained: %s", error)
        self._repetition(request.sampling)

    def is_prepared(self, request: Request) -> bool:
        """True if `prepare` would do nothing, or refuse at once."""
        sampling, grammar = request.sampling, request.grammar
        known = not sampling.repeats_dry or self._breakers.knows(sampling.dry_sequence_breakers)
        return known and (grammar is None or self.matchers.knows(grammar, self._tokens_of(request.shown)))

    def control_pieces(self) -> list[bytes]:
        """Returns the control tokens' names, as a grammar may name them."""
        return [piece for piece in self._pieces(frozenset()) if piece.startswith(CONTROL)]

    def _every_piece(self) -> list[bytes]:
        """Returns the text of every token, control tokens included."""
        return [self._target.piece(token, special=True) for token in range(self._target.n_vocab)]

    def _masks(self, request: Request, start: int) -> Masks | None:
        """Returns the masks of a text after a prompt of so many tokens, if a grammar is asked for."""
        if request.grammar is None:
            return None
        try:
            masks = self.matchers.masks(request.grammar, start, self._tokens_of(request.shown))
        except GrammarError:
            if request.governed:
                raise
            return None  # a client's tools are answered all the same
        bias = request.sampling.logit_bias
        masks.banned = frozenset(token for token, value in bias.items() if value == -math.inf)
        return masks

    def _repetition(self, sampling: Sampling) -> Repetition:
        """Returns the penalties of DRY, with the breakers as this vocabulary spells them."""
        if not sampling.repeats_dry:
            return Repetition(sampling)
        return Repetition(sampling, self._breakers.tails(sampling.dry_sequence_breakers), self._n_ctx)

    def _free(self, request: Request, known: Experience) -> list[Guesser]:
        """Returns the free guessers of a text: they share tables, and have the odds of its kind."""
        masked = request.governed  # text under a grammar has other tables
        if masked not in self._guessers:
            self._guessers[masked] = free_guessers(self._target.n_vocab, self.piece)
        texts = [
            guesser.of(self._pool(request.owner)) if isinstance(guesser, History) else guesser.for_text()
            for guesser in self._guessers[masked]
        ]
        return [known.take_up(guesser) for guesser in texts]

    def _pool(self, owner: str) -> TextPool:
        """Returns the earlier texts of somebody; those unused for longest are forgotten."""
        pool = self._pools.pop(owner, None) or TextPool()
        self._pools[owner] = pool
        while len(self._pools) > MOST_POOLS:
            self._pools.popitem(last=False)
        return pool

    def remember(self, prompt: Sequence[int], answer: Sequence[int]) -> None:
        """Has a text make guesses where no API keys separate users; passes over one of another vocabulary."""
        tokens = np.array([*prompt[-LONG:], *answer], np.int64)
        if tokens.max(initial=-1) < self._target.n_vocab:
            self._pool("").add(tokens.astype(np.int32), len(answer), answer)

    def spelling(self, shown: tuple[str, ...]) -> Callable[[int], bytes]:
        """Returns a function for the bytes of a token; of the control tokens, only those `shown` have any."""
        return self._spelling(self._tokens_of(shown))

    def piece(self, token: int) -> bytes:
        """Returns the bytes of a token, of control tokens as well."""
        return self._target.piece(token, special=True)

    def _spelling(self, shown: frozenset[int]) -> Callable[[int], bytes]:
        piece = self._target.piece
        return (lambda token: piece(token, special=token in shown)) if shown else piece

    def _tokens_of(self, shown: tuple[str, ...]) -> frozenset[int]:
        """Returns the tokens with these texts; texts that are no single token are shown anyway."""
        tokenize = self._target.tokenize
        found = (tokenize(text.encode("utf-8", "replace"), special=True, add_bos=False) for text in shown)
        return frozenset(tokens.item(0) for tokens in found if tokens.size == 1)

    def _record(self, kind: str, streams: int) -> Record:
        """Returns the record of a kind of request at about so many streams: each power of two has its own."""
        among = 1 << (streams - 1).bit_length()
        return self._known.at(kind if among == 1 else f"{kind}, among {among}").record

    def _loop(
        self,
        prompt: Sequence[int] | NDArray[np.int32],
        request: Request,
        text: TextRelease,
        pace: Pace,
    ) -> Loop:
        known = self._known.at(request.kind)
        request = replace(request, sampling=self._sampling(request))
        masks = self._masks(request, len(prompt))
        sampler = Sampler(request.sampling, self._target.n_vocab, masks, self._repetition(request.sampling))
        guessers = self._free(request, known)
        if masks:
            guessers.append(known.take_up(DemandedText(masks, self._usual)))
        return generate(
            prompt,
            sampler=sampler,
            drafter=self._drafter(
                request, known, guessers, sampler, pace, media=int(np.min(prompt, initial=0)) < 0
            ),
            rule=rule_of(request),
            text=text,
            limits=Limits(request.max_tokens, self._n_ctx, self._end_tokens),
            scoring=request.scoring,
        )

    def _sampling(self, request: Request) -> Sampling:
        """Returns the sampling with all that depends on the pair."""
        sampling = request.sampling.in_context(self._n_ctx)
        if not request.ignore_eos:
            return sampling
        never = dict.fromkeys(self._end_tokens, -math.inf)
        return replace(sampling, logit_bias={**sampling.logit_bias, **never})

    def _pace(self, request: Request) -> Pace:
        if request.fixed_length is not None:
            return FixedLength(request.fixed_length)
        return Controller(partial(self._record, request.kind), max_tokens=request.max_tokens)

    def _usual(self, text: bytes) -> list[int]:
        """Returns the tokens that a text is usually written with."""
        tokens: list[int] = self._target.tokenize(text, special=False, add_bos=False).tolist()
        return tokens

    def _drafter(
        self,
        request: Request,
        known: Experience,
        guessers: list[Guesser],
        sampler: Sampler,
        pace: Pace,
        *,
        media: bool,
    ) -> Drafter:
        if request.drafter == "none" or request.draft_length == 0:
            return NoDrafter()
        masks = sampler.masks
        self._check_drafter(request)
        if request.drafter in FREE:
            only = [one for one in guessers if one.name == request.drafter]
            return Competition(only, masks=masks, looks=pace.looks)
        guessers = guessers if request.drafter == "auto" else []
        if not self._draft_context:
            return Competition(guessers, masks=masks, looks=pace.looks)
        known_ids = self._draft_context.n_vocab
        model = DraftModel(
            self.draft_sampler(request.sampling, masks, sampler.repetition),
            n_ctx=self._draft_context.n_ctx,
            n_vocab=known_ids if known_ids < self._target.n_vocab else None,
            longest=self._head.longest if self._head and self._head.longest else LONGEST_DRAFT,
            odds=known.model,
            places=known.places,
            temperature=known.temperature,
            spelt=self._translated.spelt if self._translated else None,
            media="" if not media else "not crossed" if self._head else "left out",
        )
        return Competition(guessers, model, masks, looks=pace.looks, drafts=pace.drafts)

    @property
    def _translated(self) -> TranslatedContext | None:
        return self._draft_context if isinstance(self._draft_context, TranslatedContext) else None

    def draft_sampler(
        self, sampling: Sampling, masks: Masks | None = None, repetition: Repetition | None = None
    ) -> Sampler:
        """Returns what turns the draft's rows into distributions over the target's tokens."""
        assert self._draft_context
        if self._translated:
            return TranslatedSampler(self._translated.shared, sampling, masks, repetition)
        shared = min(self._target.n_vocab, self._draft_context.n_vocab)  # the rest is padding
        return Sampler(_shared_bias(sampling, shared), shared, masks, repetition)

    def _check_drafter(self, request: Request) -> None:
        """Raises SettingError if the named drafter is not loaded."""
        if request.drafter == "model" and not self._draft_context:
            raise SettingError("the drafter is model, but no draft is loaded: name one with --draft")
        kinds = HEADS.get(request.drafter)
        if kinds and (self._head is None or self._head.kind not in kinds):
            raise SettingError(
                f"the drafter is {request.drafter}, but {self._target.path.name} was loaded without "
                f"{with_article(kinds[0])}: name its file with --draft, or leave --drafter out"
            )


def _shared_bias(sampling: Sampling, n_vocab: int) -> Sampling:
    bias = {token: value for token, value in sampling.logit_bias.items() if token < n_vocab}
    return replace(sampling, logit_bias=bias)


def rule_of(request: Request) -> Rule:
    """Returns the rule by which a request's guesses are judged."""
    if request.seed is not None:
        return Coupled(request.seed, request.choice)
    judge = verify_block if request.rule == "block" else verify_tokens
    return Independent(np.random.default_rng(request.rng_seed), judge)
