"""One loaded pair: models, contexts, and generation from a prompt to rounds."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgespec.chat import template as chat
from edgespec.chat.well_known import template_or_fallback
from edgespec.core.drafters import Drafter, Guesser, NoDrafter
from edgespec.core.drafters.competition import Competition
from edgespec.core.drafters.demanded import DemandedText
from edgespec.core.drafters.draft_model import DraftModel
from edgespec.core.drafters.free import free_guessers
from edgespec.core.loop import Limits, Loop, Scorer, generate
from edgespec.core.pace.controller import Controller, FixedLength, Pace
from edgespec.core.pace.costs import Costs, unmeasured
from edgespec.core.pace.record import Record
from edgespec.core.request import Request
from edgespec.core.stream import Stream
from edgespec.core.text import TextRelease
from edgespec.core.values import FREE, LONGEST_DRAFT, ModelName, Round
from edgespec.core.verify import Coupled, Independent, Rule, verify_block, verify_tokens
from edgespec.engine.ahead import Ahead
from edgespec.engine.alone import alone
from edgespec.engine.experience import Experience, load, save
from edgespec.engine.loading import OnProgress, load_what_fits
from edgespec.engine.measuring import SecondLook, believable, costs_path, measure_costs, time_again
from edgespec.engine.placing import Place
from edgespec.errors import EngineError, SettingError
from edgespec.grammar.matchers import CONTROL, Matchers
from edgespec.llama.context import Context
from edgespec.llama.devices import cards, place_of
from edgespec.llama.heads.guessing import DraftContext
from edgespec.llama.translated_context import TranslatedContext
from edgespec.pairs.check import check_pair, find_head
from edgespec.pairs.rope import beyond_trained
from edgespec.pairs.settings import PairSettings
from edgespec.sampling.masks import Masks
from edgespec.sampling.repetition import Breakers, Repetition
from edgespec.sampling.sampler import Sampler, Sampling
from edgespec.sampling.translated_sampler import TranslatedSampler
from edgespec.system.other_programs import Others
from edgespec_models.gguf.heads import HeadKind, with_article

HEADS: dict[str, tuple[HeadKind, ...]] = {
    "mtp": ("mtp", "assistant"),
    "eagle": ("eagle3",),
    "dflash": ("dflash",),
}  # as requests name them
MOST_ROWS = 63  # in one evaluation of several sequences: from 64 on, flash attention takes another kernel


class Pair:
    """A target and, if there is one, its draft. Use it in a `with`, or close it.

    `generate` makes one text at a time; `stream` prepares one for an `Engine` with several. Raises
    the errors of Model and Context, and PairMismatchError before any weights are loaded.
    """

    def __init__(
        self,
        target: str | os.PathLike[str],
        draft: str | os.PathLike[str] | None = None,
        settings: PairSettings | None = None,
        *,
        on_progress: OnProgress = lambda stage, progress: None,
    ) -> None:
        """on_progress: called with the current stage and the part of the whole that is done, 0 to 1."""
        settings = settings or PairSettings()
        self.head = find_head(target, draft) if draft is not None or settings.head else None
        self.translation = check_pair(target, draft) if draft is not None and self.head is None else None
        small = Path(draft) if draft is not None else None
        self.n_rows = LONGEST_DRAFT + 1 if settings.slots == 1 else MOST_ROWS
        place = Place(Path(target), None if self.head else small, settings, cards())
        known = place.known()
        if known == 0:  # else on the card, if it fits
            settings = replace(settings, draft_gpu_layers=0)
        with ExitStack() as opened:
            loaded, settings, self.gave_up = load_what_fits(
                opened, Path(target), small, self.head, self.translation, settings, self.n_rows, on_progress
            )
            if known is None:
                loaded, settings = place.choose(opened, loaded, settings, self.translation)
            self.settings = settings
            self.target, self.draft = loaded.target, loaded.draft
            self._target_context, self._draft_context = loaded.target_context, loaded.draft_context
            self.head = self.head if self._draft_context else None
            self._end_tokens = self.target.end_tokens  # asked of llama.cpp now, not before the first token
            self._opened = opened.pop_all()
        elsewhere = (settings.rpc, settings.tensor_split, settings.n_gpu_layers) if settings.rpc else ()
        self._known_in = costs_path(self._target_context, self._draft_context, elsewhere)
        self._known = load(self._known_in)
        self._costs_checked = False
        self._second_look: SecondLook | None = None
        self._ahead: Ahead | None = None
        self._guessers: dict[bool, list[Guesser]] = {}  # free ones, by whether a grammar masks the text
        self._breakers = Breakers(self._every_piece, self._usual)
        self.matchers = Matchers(self._pieces, self._end_tokens, self.target.n_vocab)

    def __enter__(self) -> Pair:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Saves what was learned of the pair, and frees models and caches."""
        if self.settings.remember:
            save(self._known_in, self._known)
        if self._ahead:
            self._ahead.close()
        self._opened.close()

    @property
    def draft_name(self) -> str | None:
        """What guesses beside the text itself: the draft's name, or the head in the target's file."""
        return self.draft.path.stem if self.draft else self.head.name if self.head else None

    @property
    def place(self) -> str:
        """Which graphics cards evaluate, in words; "" if the processor does all of it."""
        return place_of(self.target, self.draft)

    @property
    def n_ctx(self) -> int:
        """Limit of prompt and output together, in tokens."""
        return self._target_context.n_ctx

    @property
    def beyond_trained(self) -> str | None:
        """A warning if the context is longer than what the target can be expected to read."""
        rope = self.settings.rope
        return beyond_trained(self.target.path.name, self.n_ctx, self.target.n_ctx_train, rope)

    @property
    def cells(self) -> int:
        """Tokens that all sequences may hold together."""
        return self._target_context.settings.cells or self.n_ctx * self.slots

    @property
    def slots(self) -> int:
        """Sequences that the contexts hold."""
        return self.settings.slots

    def busy(self) -> tuple[float, float]:
        """Returns the seconds spent so far inside llama.cpp: (draft, target)."""
        draft = self._draft_context.seconds if self._draft_context else 0.0
        return draft, self._target_context.seconds

    @property
    def decodes(self) -> int:
        """Evaluations of the target so far."""
        return self._target_context.calls

    def costs(self) -> Costs:
        """Returns what evaluations cost here: stored figures if they hold, else measured in a second."""
        contexts = self._target_context, self._draft_context
        if not self._costs_checked:
            try:
                if self._known.costs is None or not believable(self._known.costs, *contexts):
                    self._known.costs = measure_costs(*contexts)
                else:
                    time_again(self._known.costs, *contexts)
            except EngineError:  # if it was the target, it fails again; else guessing may end, not loading
                self._known.costs = measure_costs(*contexts, draft_fails=True)
            self._costs_checked = True
            save(self._known_in, self._known)
        assert self._known.costs is not None
        return self._known.costs

    def look_again(self) -> bool:
        """Times one size again, while nobody waits; False if there is nothing left to time."""
        if self._second_look is None:
            self._second_look = SecondLook(self._target_context, self.costs(), Others(children=False).cores)
        try:
            return self._second_look.take()
        except EngineError:  # nobody waits for it
            return False

    @property
    def contexts(self) -> dict[ModelName, DraftContext]:
        """The contexts of the target and, if there is one, the draft."""
        contexts: dict[ModelName, DraftContext] = {"target": self._target_context}
        if self._draft_context:
            contexts["draft"] = self._draft_context
        return contexts

    @property
    def scorers(self) -> Mapping[ModelName, Scorer]:
        """Returns what evaluates: the contexts, with the draft reading ahead if that was measured to pay."""
        if self._ahead is None and isinstance(self._draft_context, Context) and self._known.costs:
            beside = self._known.costs.beside
            if beside and beside.pays(1.0):
                self._ahead = Ahead(
                    self._target_context,
                    self._draft_context,
                    beside,
                    n_ctx=self._draft_context.n_ctx,
                    n_vocab=min(self.target.n_vocab, self._draft_context.n_vocab),
                )
        if self._ahead:
            return {"target": self._ahead.target, "draft": self._ahead.draft}
        return self.contexts

    def forget(self) -> None:
        """Forgets all texts, so that a generation can be repeated evaluation for evaluation.

        Learned costs and acceptance stay.
        """
        for context in self.contexts.values():
            for seq in range(self.slots):
                context.clear(seq)
        self._guessers = {}

    def _pieces(self, shown: frozenset[int]) -> list[bytes]:
        """Returns the text of every token; tokens that are not text have theirs after CONTROL."""
        piece, every = self._spelling(shown), range(self.target.n_vocab)
        named = partial(self.target.piece, special=True)
        return [piece(i) or (CONTROL + name if (name := named(i)) else b"") for i in every]

    def prepare(self, request: Request) -> None:
        """Does what a vocabulary needs once for a request. From any thread. Raises GrammarError."""
        shown = self._tokens_of(request.shown)
        if request.grammar:
            self.matchers.compile(request.grammar, shown)
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
        return [self.target.piece(token, special=True) for token in range(self.target.n_vocab)]

    def _masks(self, request: Request, start: int) -> Masks | None:
        """Returns the masks of a text after a prompt of so many tokens, if a grammar is asked for."""
        if request.grammar is None:
            return None
        masks = self.matchers.masks(request.grammar, start, self._tokens_of(request.shown))
        bias = request.sampling.logit_bias
        masks.banned = frozenset(token for token, value in bias.items() if value == -math.inf)
        return masks

    def _repetition(self, sampling: Sampling) -> Repetition:
        """Returns the penalties of DRY, with the breakers as this vocabulary spells them."""
        if not sampling.repeats_dry:
            return Repetition(sampling)
        return Repetition(sampling, self._breakers.tails(sampling.dry_sequence_breakers), self.n_ctx)

    def _free(self, request: Request, known: Experience) -> list[Guesser]:
        """Returns the free guessers of a text: they share tables, and have the odds of its kind."""
        masked = request.grammar is not None  # text under a grammar has other tables
        if masked not in self._guessers:
            self._guessers[masked] = free_guessers(self.target.n_vocab)
        return [known.take_up(guesser.for_text()) for guesser in self._guessers[masked]]

    def prompt_tokens(self, text: str, *, special: bool = False) -> NDArray[np.int32]:
        """Returns the tokens of a text: (n,) int32. special: control tokens spelt out in it count as such."""
        return self.target.tokenize(text.encode("utf-8", "replace"), special=special)

    def chat_tokens(self, messages: Sequence[chat.Message], template: str | None = None) -> NDArray[np.int32]:
        """Returns the prompt of a conversation, by the template given, the model's own, or ChatML."""
        template = template or template_or_fallback(self.target.chat_template)
        bos = self.target.bos_text
        text = chat.render(template, messages, bos=bos, eos=self.target.eos_text)
        add_bos = not (bos and text.startswith(bos))  # most templates write the start token themselves
        return self.target.tokenize(text.encode("utf-8", "replace"), special=True, add_bos=add_bos)

    def generate(
        self,
        prompt: Sequence[int] | NDArray[np.int32],
        request: Request,
        *,
        cancelled: Callable[[], bool] = lambda: False,
        scorers: Mapping[ModelName, Scorer] | None = None,
    ) -> Iterator[Round]:
        """Generates after `prompt` (token ids); what it shares with the one before is not evaluated again.

        cancelled: asked before each step; the last round then reports it. scorers: what evaluates instead of
        `contexts`, such as a memory in front of them.
        Raises PromptTooLongError, SettingError, or an EngineError out of llama.cpp.
        """
        costs = self.costs() if request.fixed_length is None or self._costs_checked else unmeasured()
        return alone(self, prompt, request, cancelled=cancelled, costs=costs, scorers=scorers)

    def stream(self, prompt: Sequence[int] | NDArray[np.int32], request: Request) -> Stream:
        """Prepares a generation for an engine. Raises PromptTooLongError or SettingError."""
        text, pace = TextRelease(self.spelling(request.shown), request.stop), self._pace(request)
        return Stream(self._loop(prompt, request, text, pace), text, pace)

    def spelling(self, shown: tuple[str, ...]) -> Callable[[int], bytes]:
        """Returns a function for the bytes of a token; of the control tokens, only those `shown` have any."""
        return self._spelling(self._tokens_of(shown))

    def _spelling(self, shown: frozenset[int]) -> Callable[[int], bytes]:
        piece = self.target.piece
        return (lambda token: piece(token, special=token in shown)) if shown else piece

    def _tokens_of(self, shown: tuple[str, ...]) -> frozenset[int]:
        """Returns the tokens with these texts; texts that are no single token are shown anyway."""
        tokenize = self.target.tokenize
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
        sampler = Sampler(request.sampling, self.target.n_vocab, masks, self._repetition(request.sampling))
        guessers = self._free(request, known)
        if masks:
            guessers.append(known.take_up(DemandedText(masks, self._usual)))
        return generate(
            prompt,
            sampler=sampler,
            drafter=self._drafter(request, known, guessers, sampler, pace),
            rule=_rule(request),
            text=text,
            limits=Limits(request.max_tokens, self.n_ctx, self._end_tokens),
            scoring=request.scoring,
        )

    def _sampling(self, request: Request) -> Sampling:
        """Returns the sampling with all that depends on the pair."""
        sampling = request.sampling.in_context(self.n_ctx)
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
        tokens: list[int] = self.target.tokenize(text, special=False, add_bos=False).tolist()
        return tokens

    def _drafter(
        self, request: Request, known: Experience, guessers: list[Guesser], sampler: Sampler, pace: Pace
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
            n_vocab=known_ids if known_ids < self.target.n_vocab else None,
            longest=self.head.longest if self.head and self.head.longest else LONGEST_DRAFT,
            odds=known.model,
            places=known.places,
            temperature=known.temperature,
            spelt=self._translated.spelt if self._translated else None,
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
        shared = min(self.target.n_vocab, self._draft_context.n_vocab)  # the rest is padding
        return Sampler(_shared_bias(sampling, shared), shared, masks, repetition)

    def _check_drafter(self, request: Request) -> None:
        """Raises SettingError if the named drafter is not loaded."""
        if request.drafter == "model" and not self._draft_context:
            raise SettingError("the drafter is model, but no draft is loaded: name one with --draft")
        kinds = HEADS.get(request.drafter)
        if kinds and (self.head is None or self.head.kind not in kinds):
            raise SettingError(
                f"the drafter is {request.drafter}, but {self.target.path.name} was loaded without "
                f"{with_article(kinds[0])}: name its file with --draft, or leave --drafter out"
            )


def _shared_bias(sampling: Sampling, n_vocab: int) -> Sampling:
    bias = {token: value for token, value in sampling.logit_bias.items() if token < n_vocab}
    return replace(sampling, logit_bias=bias)


def _rule(request: Request) -> Rule:
    if request.seed is not None:
        return Coupled(request.seed, request.choice)
    judge = verify_block if request.rule == "block" else verify_tokens
    return Independent(np.random.default_rng(request.rng_seed), judge)
