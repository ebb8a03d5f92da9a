"""One loaded pair: models, contexts, and generation from a prompt to rounds."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal, get_args

import numpy as np
import psutil
from numpy.typing import NDArray

from edgespec import chat
from edgespec.context import Context, ContextSettings, KvType, kv_bytes
from edgespec.context_settings import whole
from edgespec.decode import Limits, Loop, Scorer, drive, generate
from edgespec.drafters import Drafter, Guesser, NoDrafter
from edgespec.drafters.competition import Competition
from edgespec.drafters.draft_model import DraftModel
from edgespec.drafters.recycling import TokenRecycling
from edgespec.drafters.suffix_lookup import SuffixLookup
from edgespec.errors import PairMismatchError, SettingError, TemplateError
from edgespec.events import ModelName, Round
from edgespec.experience import Experience, load, save
from edgespec.llama import Model
from edgespec.overlap import Ahead
from edgespec.pace import LONGEST, Controller, Costs, FixedLength, Pace, Record
from edgespec.pair_costs import costs_path, measure_costs, still_true
from edgespec.sampling import Sampler, Sampling
from edgespec.stream import Stream
from edgespec.text import TextRelease
from edgespec.verify import Coupled, Independent, Rule, verify_block, verify_tokens
from edgespec.vocab import mismatch

DrafterName = Literal["auto", "model", "lookup", "none"]
RuleName = Literal["block", "token"]
DEFAULT_N_CTX = 8192
MOST_ROWS = 63  # in one evaluation of several sequences: from 64 on, flash attention takes another kernel
MOST_SLOTS = 32


@dataclass(frozen=True, slots=True)
class PairSettings:
    """How a pair is loaded. None means: what suits model and machine.

    remember: what is learned of the pair is kept in the cache folder when it is closed.
    slots: requests that may be evaluated at once (1 where a model has recurrent state, whatever is said
    here); each may use n_ctx tokens. cache_tokens: that all of them
    may use together (None: n_ctx each); where they want more, the youngest waits.
    """

    n_ctx: int | None = None
    kv_type: KvType = "f16"
    draft_kv_type: KvType = "f16"
    flash_attention: bool | None = None
    threads: int | None = None
    n_gpu_layers: int = -1
    remember: bool = True
    slots: int = 1
    cache_tokens: int | None = None

    def __post_init__(self) -> None:
        """Raises SettingError for nonsense, before anything is loaded."""
        whole("the number of slots", self.slots, 1, MOST_SLOTS)
        for kv_type in (self.kv_type, self.draft_kv_type):
            ContextSettings(
                n_ctx=DEFAULT_N_CTX if self.n_ctx is None else self.n_ctx,
                kv_type=kv_type,
                flash_attention=self.flash_attention,
                threads=self.threads,
            )


@dataclass(frozen=True, slots=True)
class Request:
    """What is wanted of one generation.

    seed: the user's; selects coupled mode, in which the text depends on seed, choice, prompt and target
    alone. Without it tokens are drawn with `rng_seed` (None: anew every time) and judged by `rule`.
    drafter: who may guess; "auto" lets all compete. draft_length: None leaves it to the controller, which
    decides anew each round; a number is kept to.
    """

    sampling: Sampling = field(default_factory=Sampling)
    max_tokens: int = 512
    stop: Sequence[str] = ()
    seed: int | None = None
    choice: int = 0
    rule: RuleName = "block"
    rng_seed: int | None = None
    drafter: DrafterName = "auto"
    draft_length: int | None = None

    def __post_init__(self) -> None:
        """Raises SettingError for nonsense, before anything is loaded."""
        for name, value in (("seed", self.seed), ("choice", self.choice), ("rng_seed", self.rng_seed)):
            if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
                raise SettingError(f"the {name} is {value!r}: it must be a whole number")
        if self.rng_seed is not None and self.rng_seed < 0:
            raise SettingError(f"the rng_seed is {self.rng_seed}: it must be 0 or more")
        if self.drafter not in get_args(DrafterName):
            drafters = ", ".join(get_args(DrafterName))
            raise SettingError(f"the drafter is {self.drafter!r}: it must be one of {drafters}")
        if self.rule not in get_args(RuleName):
            raise SettingError(f"the acceptance rule is {self.rule!r}: it must be block or token")
        if self.draft_length is not None:
            FixedLength(self.draft_length)
        TextRelease(lambda _: b"", self.stop)


class Pair:
    """A target and, where there is one, its draft. Use it in a `with`, or close it.

    `generate` makes one text at a time; `stream` makes several ready for a scheduler. Raises the errors of
    Model and Context, and PairMismatchError before any weights are loaded.
    """

    def __init__(
        self,
        target: str | os.PathLike[str],
        draft: str | os.PathLike[str] | None = None,
        settings: PairSettings | None = None,
    ) -> None:
        self.settings = settings = settings or PairSettings()
        if draft is not None:
            check_pair(target, draft)
        with ExitStack() as opened:
            self.target = opened.enter_context(Model(target, n_gpu_layers=settings.n_gpu_layers))
            self.draft: Model | None = None
            if draft is not None:
                self.draft = opened.enter_context(Model(draft, n_gpu_layers=settings.n_gpu_layers))
            if any(model and model.has_recurrent_state for model in (self.target, self.draft)):
                # its state cannot be rolled back for several at once, and texts would differ
                self.settings = settings = replace(settings, slots=1)
            wanted = _context_settings(self.target, settings)
            self.n_rows = LONGEST + 1 if settings.slots == 1 else MOST_ROWS
            self._target_context = opened.enter_context(
                Context(self.target, replace(wanted, n_rows=self.n_rows))
            )
            self._draft_context: Context | None = None
            if self.draft:
                n_ctx = min(wanted.n_ctx, self.draft.n_ctx_train)
                cells = min(wanted.cells, n_ctx * settings.slots) if wanted.cells else None
                wanted = replace(wanted, n_ctx=n_ctx, cells=cells, kv_type=settings.draft_kv_type)
                self._draft_context = opened.enter_context(Context(self.draft, wanted))
            self._end_tokens = self.target.end_tokens  # asked of llama.cpp now, not before the first token
            self._opened = opened.pop_all()
        self._known_in = costs_path(self._target_context, self._draft_context)
        self._known = load(self._known_in)
        self._costs_checked = False
        self._ahead: Ahead | None = None
        self._lookup = SuffixLookup()
        self._recycling = TokenRecycling(self.target.n_vocab)

    def __enter__(self) -> Pair:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Keeps what was learned of the pair, and frees models and caches."""
        if self.settings.remember:
            save(self._known_in, self._known)
        if self._ahead:
            self._ahead.close()
        self._opened.close()

    @property
    def n_ctx(self) -> int:
        """Tokens that prompt and output may have together."""
        return self._target_context.n_ctx

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

    def costs(self) -> Costs:
        """Returns what evaluations cost here: as known, if still true, else measured in about a second."""
        contexts = self._target_context, self._draft_context
        if not self._costs_checked:
            self._costs_checked = True
            if self._known.costs is None or not still_true(self._known.costs, *contexts):
                self._known.costs = measure_costs(*contexts)
                save(self._known_in, self._known)
        assert self._known.costs is not None
        return self._known.costs

    @property
    def contexts(self) -> dict[ModelName, Context]:
        """The contexts of target and, where there is one, draft."""
        contexts: dict[ModelName, Context] = {"target": self._target_context}
        if self._draft_context:
            contexts["draft"] = self._draft_context
        return contexts

    def _scorers(self) -> Mapping[ModelName, Scorer]:
        """Returns who evaluates: the contexts, with the draft reading ahead where that was seen to pay."""
        if self._ahead is None and self.draft and self._draft_context and self._known.costs:
            beside = self._known.costs.beside
            if beside and beside.pays(1.0):
                self._ahead = Ahead(
                    self._target_context,
                    self._draft_context,
                    beside,
                    n_ctx=self._draft_context.n_ctx,
                    n_vocab=min(self.target.n_vocab, self.draft.n_vocab),
                )
        if self._ahead:
            return {"target": self._ahead.target, "draft": self._ahead.draft}
        return self.contexts

    def forget(self) -> None:
        """Forgets all texts, so that a generation can be repeated evaluation for evaluation.

        What was learned of costs and acceptance stays.
        """
        for context in self.contexts.values():
            for seq in range(self.slots):
                context.clear(seq)
        self._lookup = SuffixLookup()
        self._recycling = TokenRecycling(self.target.n_vocab)

    def prompt_tokens(self, text: str, *, special: bool = False) -> NDArray[np.int32]:
        """Returns the tokens of a text: (n,) int32. special: control tokens spelt out in it are meant."""
        return self.target.tokenize(text.encode("utf-8", "replace"), special=special)

    def chat_tokens(self, messages: Sequence[chat.Message], template: str | None = None) -> NDArray[np.int32]:
        """Returns the prompt of a conversation, by the model's chat template or the one given."""
        template = template or self.target.chat_template
        if not template:
            raise TemplateError(
                f"{self.target.path.name} has no chat template: --raw continues the text as it is"
            )
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
        """Generates behind `prompt` (token ids); what it shares with the one before is not evaluated again.

        scorers: who evaluates in place of `contexts`, as a memory in front of them does.
        Raises PromptTooLongError, SettingError, or an EngineError out of llama.cpp.
        """
        experience = self._known.at(_kind(request))
        text = TextRelease(self.target.piece, request.stop)
        loop = self._loop(prompt, request, text, self._lookup, self._recycling)
        pace = self._pace(request, experience)
        rounds = drive(loop, scorers or self._scorers(), pace, cancelled=cancelled)
        return _to_the_end(rounds, text)

    def stream(self, prompt: Sequence[int] | NDArray[np.int32], request: Request) -> Stream:
        """Makes a generation ready that others may run beside. Raises PromptTooLongError or SettingError."""
        text = TextRelease(self.target.piece, request.stop)
        loop = self._loop(prompt, request, text, SuffixLookup(), copy.copy(self._recycling))  # one table
        fixed = 0 if request.drafter == "none" else request.draft_length
        return Stream(loop, text, request.max_tokens, fixed, partial(self._record, _kind(request)))

    def _record(self, kind: str, streams: int) -> Record:
        """Returns what requests of a kind have shown among about so many: each power of two has its own."""
        among = 1 << (streams - 1).bit_length()
        return self._known.at(kind if among == 1 else f"{kind}, among {among}").record

    def _loop(
        self,
        prompt: Sequence[int] | NDArray[np.int32],
        request: Request,
        text: TextRelease,
        lookup: SuffixLookup,
        recycling: TokenRecycling,
    ) -> Loop:
        known = self._known.at(_kind(request))
        lookup.odds, recycling.odds = known.lookup, known.recycling
        return generate(
            prompt,
            sampler=Sampler(request.sampling, self.target.n_vocab),
            drafter=self._drafter(request, known, lookup, recycling),
            rule=_rule(request),
            text=text,
            limits=Limits(request.max_tokens, self.n_ctx, self._end_tokens),
        )

    def _pace(self, request: Request, experience: Experience) -> Pace:
        if request.drafter == "none":
            return FixedLength(0)
        if request.draft_length is not None:
            return FixedLength(request.draft_length)
        return Controller(self.costs(), experience.record, max_tokens=request.max_tokens)

    def _drafter(
        self, request: Request, known: Experience, lookup: SuffixLookup, recycling: TokenRecycling
    ) -> Drafter:
        if request.drafter == "none" or request.draft_length == 0:
            return NoDrafter()
        if request.drafter == "model" and not self.draft:
            raise SettingError(
                "drafting by a model was asked for and no draft is loaded: name one with --draft"
            )
        if request.drafter == "lookup":
            return Competition([lookup])
        guessers: list[Guesser] = [] if request.drafter == "model" else [lookup, recycling]
        if not self.draft or not self._draft_context:
            return Competition(guessers)
        shared = min(self.target.n_vocab, self.draft.n_vocab)  # the rest is padding
        model = DraftModel(
            Sampler(_shared_bias(request.sampling, shared), shared),
            n_ctx=self._draft_context.n_ctx,
            n_vocab=self.draft.n_vocab,
            odds=known.model,
            places=known.places,
            temperature=known.temperature,
        )
        return Competition(guessers, model)


def _kind(request: Request) -> str:
    """Returns what requests have in common whose guesses fare alike."""
    mode = "coupled" if request.seed is not None else "drawn"
    fixed = "" if request.draft_length is None else ", fixed length"
    return f"{mode} at temperature {request.sampling.temperature:.1f}{fixed}"


def _to_the_end(rounds: Iterator[Round], text: TextRelease) -> Iterator[Round]:
    """Yields the rounds and, after a cancellation, a last one with the text that was held back."""
    finish = None
    for round_ in rounds:
        finish = round_.finish
        yield round_
    if finish is None:
        yield Round((), text.flush(), 0, 0, (), "cancelled")


def check_pair(target: str | os.PathLike[str], draft: str | os.PathLike[str]) -> None:
    """Reads both vocabularies, no weights; raises PairMismatchError where the draft is of no use."""
    with Model(target, vocab_only=True) as big, Model(draft, vocab_only=True) as small:
        reason = mismatch(big.vocabulary, small.vocabulary)
    if reason:
        raise PairMismatchError(
            f"{small.path.name} cannot draft for {big.path.name}: {reason}; "
            "choose a draft of the same model family, or run with --no-draft"
        )


def _shared_bias(sampling: Sampling, n_vocab: int) -> Sampling:
    bias = {token: value for token, value in sampling.logit_bias.items() if token < n_vocab}
    return replace(sampling, logit_bias=bias)


def _rule(request: Request) -> Rule:
    if request.seed is not None:
        return Coupled(request.seed, request.choice)
    judge = verify_block if request.rule == "block" else verify_tokens
    return Independent(np.random.default_rng(request.rng_seed), judge)


def _context_settings(model: Model, settings: PairSettings) -> ContextSettings:
    n_ctx = settings.n_ctx
    if n_ctx is None:  # what the model knows, a usual length at most, and half of the free memory
        n_ctx = min(model.n_ctx_train, DEFAULT_N_CTX)
        while (
            n_ctx > 512
            and kv_bytes(model, n_ctx * settings.slots, settings.kv_type)
            > psutil.virtual_memory().available / 2
        ):
            n_ctx //= 2
    cells = None
    if settings.cache_tokens is not None:
        whole("the number of tokens in the cache", settings.cache_tokens, settings.n_ctx or 2, 2**31 - 1)
        n_ctx = min(n_ctx, settings.cache_tokens)
        cells = min(settings.cache_tokens, n_ctx * settings.slots)
    return ContextSettings(
        n_ctx=n_ctx,
        n_seq=settings.slots,
        n_rows=settings.slots,
        cells=cells,
        kv_type=settings.kv_type,
        flash_attention=settings.flash_attention,
        threads=settings.threads,
    )
