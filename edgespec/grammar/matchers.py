"""Grammars -> matchers, over one vocabulary, by llguidance (https://github.com/guidance-ai/llguidance).

llguidance says what may follow, and nothing more: its forcing of the usual tokenisation is switched off
(`no_forcing`), because a mask would then hide tokens that the target may well choose, and the text would no
longer have the target's distribution.

What a hostile grammar can cost is limited by llguidance's own counters: fuel for building its lexer, and
work for each mask. A grammar that runs out of them is refused, or ends its request; nobody waits for it. A
trial in a child process limits what they do not count (`trials.py`). What is refused is remembered for some
time: clients ask again, and a trial can take seconds.
"""

import logging
import math
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

import llguidance
import numpy as np
from numpy.typing import NDArray

from edgespec.errors import GivenUpError, GrammarError
from edgespec.grammar.grammar import NAMES, NOT_ENFORCED, Grammar, Triggers
from edgespec.grammar.lark_text import LOOSENED, lark_of
from edgespec.grammar.triggered import Triggered, Vocabulary
from edgespec.sampling.masks import Masks, Matcher

_log = logging.getLogger(__name__)
REMEMBERED = 16  # compiled grammars, and refused ones: clients send the same schema again and again
REFUSED_S = 300.0  # then one is tried again: it may have been refused because the machine was busy
VOCABULARIES = 4  # by the control tokens that are shown: one or two for a chat template
Shown = frozenset[int]
_Asked = tuple[Grammar, Shown]
# a matcher of which copies are made; what compiles another; the seconds that takes
_Compiled = tuple[Any, Callable[[], Any], float]
_Refusal = tuple[str, float]  # why, and when
NOTHING: Shown = frozenset()
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")
ALLOWANCE_S = 0.02  # what a mask may take again and again
PATIENCE_S = 0.4  # what masks may take beyond that, together: other streams wait for them
Clock = Callable[[], float]  # seconds
WORDY = 300  # characters of a complaint that are passed on
LISTING = re.compile(r"^\s*\d+ \| ")  # a line of the grammar as llguidance was given it


class Matchers:
    """Compiles grammars for one vocabulary. Thread-safe."""

    def __init__(
        self,
        pieces: Callable[[Shown], Sequence[bytes]],
        end_tokens: frozenset[int],
        n_vocab: int,
        *,
        clock: Clock = time.monotonic,
        own_time: Clock = time.thread_time,
    ) -> None:
        """pieces: returns the bytes of every token: CONTROL and its name for a control token not shown.

        own_time: seconds of this thread alone, whatever else the machine does.
        """
        self._pieces, self._end_tokens, self._n_vocab, self._clock = pieces, end_tokens, n_vocab, clock
        self._own_time = own_time
        self.lark = lark_of  # how a grammar is read; `Trials.lark` does so in a child
        self._lock, self._reading = threading.Lock(), threading.Lock()
        self._vocabularies: OrderedDict[Shown, Any] = OrderedDict()
        self._texts: OrderedDict[Shown, Vocabulary] = OrderedDict()
        self._compiled: OrderedDict[_Asked, _Compiled] = OrderedDict()
        self._making: dict[_Asked, Future[_Compiled]] = {}
        self._refused: OrderedDict[_Asked, _Refusal] = OrderedDict()

    def compile(self, grammar: Grammar, shown: Shown = NOTHING) -> None:
        """Compiles a grammar, and prepares the vocabulary if it is the first (half a second for a large one).

        shown: control tokens that are text here. Raises GrammarError with what is wrong, and GivenUpError.
        """
        self._matcher(grammar, shown)

    def masks(self, grammar: Grammar, start: int, shown: Shown = NOTHING) -> Masks:
        """Returns the masks of a text that begins after `start` tokens. Raises GrammarError."""
        compiled, compile_again, takes_s = self._matcher(grammar, shown)

        def again() -> Any:  # copies share a lexer, which gives up on all texts once it did on one
            with self._lock:
                self._compiled.pop((grammar, shown - self._end_tokens), None)
            if takes_s > PATIENCE_S:
                raise GrammarError(f"the {NAMES[grammar.kind]} takes too long to be compiled again")
            return compile_again()

        whole = LLGuidance(compiled.deep_copy(), self._n_vocab, NAMES[grammar.kind], again, self._own_time)
        matcher: Matcher = self._triggered(grammar.triggers, whole, shown) if grammar.triggers else whole
        return Masks(matcher, n_vocab=self._n_vocab, start=start, end_tokens=self._end_tokens)

    def _triggered(self, triggers: Triggers, whole: "LLGuidance", shown: Shown) -> Triggered:
        """Returns a matcher of texts that are free until a tag."""
        usable = shown - self._end_tokens
        tokens, texts = self._vocabulary(usable), self._texts[usable]
        begun: dict[bytes, LLGuidance | None] = {}  # of each text that was asked for

        def begun_with(text: bytes) -> LLGuidance | None:
            if text not in begun:
                try:
                    begun[text] = whole.begun_with(tokens.greedy_tokenize(text.decode()))
                except UnicodeDecodeError:  # behind the tag, a token has a part of a character
                    begun[text] = None
            return None if (found := begun[text]) is None else found.copy()

        def again() -> None:
            whole.begin_anew()
            begun.clear()

        return Triggered(triggers, texts, begun_with, again)

    def knows(self, grammar: Grammar, shown: Shown = NOTHING) -> bool:
        """True if a grammar has been compiled, or refused, and that is remembered."""
        key = grammar, shown - self._end_tokens
        return key in self._compiled or self._refusal(key) is not None

    def _refusal(self, key: _Asked) -> str | None:
        """Returns why a grammar was refused, if that is not long ago."""
        why, at = self._refused.get(key, ("", -math.inf))
        return why if self._clock() - at < REFUSED_S else None

    def _matcher(self, grammar: Grammar, shown: Shown) -> _Compiled:
        """Returns the matcher of a grammar, known or new. Callers do not wait for each other."""
        key = grammar, shown - self._end_tokens
        with self._lock:
            if key in self._compiled:
                self._compiled.move_to_end(key)
                return self._compiled[key]
            if (why := self._refusal(key)) is not None:
                raise GrammarError(why)
            making = self._making.get(key)
            if mine := making is None:
                making = self._making[key] = Future()
        assert making is not None
        if not mine:
            try:
                return making.result()
            except GivenUpError:  # by somebody else
                return self._matcher(grammar, shown)
        try:
            made = self._build(*key)
        except BaseException as error:
            with self._lock:
                del self._making[key]
                if isinstance(error, GrammarError):
                    self._refused.pop(key, None)
                    _remember(self._refused, key, (str(error), self._clock()), REMEMBERED)
            making.set_exception(error)
            raise
        with self._lock:
            del self._making[key]
            _remember(self._compiled, key, made, REMEMBERED)
        making.set_result(made)
        return made

    def _build(self, grammar: Grammar, shown: Shown) -> _Compiled:
        name, lark = NAMES[grammar.kind], self.lark(grammar)
        again = partial(matcher_for, self._vocabulary(shown), lark)
        began = self._own_time()
        matcher = again()
        takes_s = self._own_time() - began
        for line in lark.splitlines():
            if line.startswith(LOOSENED):
                why = line.removeprefix(LOOSENED)
                _log.warning("Some arguments of these tools are not constrained: %s", why)
        if matcher.is_error():
            why = _why(matcher.get_error())
            unfit = ("Unimplemented keys", "Unknown format", "regex parse error")
            if grammar.kind == "json_schema" and why.startswith(unfit):
                why += f", {NOT_ENFORCED}"
            raise GrammarError(f"the {name} cannot be used: {why}")
        first = LLGuidance(matcher.deep_copy(), self._n_vocab, name, again, self._own_time)
        if not first.mask().any():
            raise GrammarError(f"the {name} cannot be used: no text fits it")
        return matcher, again, takes_s

    def _vocabulary(self, shown: Shown) -> Any:
        with self._reading:
            known = self._vocabularies.get(shown)
            if known is None:
                pieces = self._pieces(shown)
                known = tokenizer_of(pieces, self._end_tokens)
                _remember(self._vocabularies, shown, known, VOCABULARIES)
                _remember(self._texts, shown, Vocabulary(pieces), VOCABULARIES)
            return known


def _remember(known: OrderedDict[_Key, _Value], key: _Key, value: _Value, most: int) -> None:
    known[key] = value
    while len(known) > most:
        known.popitem(last=False)


class _Tokens:
    """A vocabulary in llguidance's format. Nothing is ever tokenised: nothing is forced."""

    bos_token_id = None
    special_token_ids: Sequence[int] = ()

    def __init__(self, tokens: Sequence[bytes], eos_token_id: int) -> None:
        self.tokens, self.eos_token_id = list(tokens), eos_token_id

    def __call__(self, text: bytes) -> list[int]:
        return []


def tokenizer_of(pieces: Sequence[bytes], end_tokens: frozenset[int]) -> llguidance.LLTokenizer:
    """Returns a vocabulary in llguidance's format. pieces: as `Matchers` takes them."""
    tokens = _Tokens(pieces, min(end_tokens, default=0))
    ends = sorted(end_tokens) or None
    return llguidance.LLTokenizer(llguidance.TokenizerWrapper(tokens), eos_token=ends)


def check(grammar: Grammar) -> None:
    """Raises GrammarError for a grammar that no vocabulary could follow, before a model is loaded."""
    if why := llguidance.LLMatcher.validate_grammar(lark_of(grammar), limits=_limits()):
        raise GrammarError(f"the {NAMES[grammar.kind]} cannot be used: {_why(why)}")


def matcher_for(vocabulary: llguidance.LLTokenizer, lark: str) -> llguidance.LLMatcher:
    """Compiles a grammar; the matcher reports what is wrong with it (`is_error`)."""
    return llguidance.LLMatcher(vocabulary, lark, log_level=0, limits=_limits())


class LLGuidance:
    """A matcher of llguidance's: `masks.Matcher`."""

    def __init__(self, matcher: Any, n_vocab: int, name: str, again: Callable[[], Any], clock: Clock) -> None:
        """again: returns another such matcher, which shares nothing with this one, or raises GrammarError."""
        self._matcher, self._name, self._again, self._own_time = matcher, name, again, clock
        self._words = np.zeros((n_vocab + 31) // 32, np.uint32)
        self._spent = 0.0  # seconds past the allowance

    @property
    def broken(self) -> bool:
        return bool(self._matcher.is_error())

    @property
    def ended(self) -> bool:
        """True if nothing may follow."""
        return bool(self._matcher.is_stopped())

    def copy(self) -> "LLGuidance":
        """Returns a matcher at the same place."""
        n_vocab = 32 * self._words.size
        return LLGuidance(self._matcher.deep_copy(), n_vocab, self._name, self._again, self._own_time)

    def begun_with(self, tokens: Sequence[int]) -> "LLGuidance | None":
        """Returns a copy that has consumed tokens; None if the grammar forbids them."""
        found = self.copy()
        return found if all(found.takes(token) for token in tokens) else None

    def begin_anew(self) -> None:
        began = self._own_time()
        self._matcher = self._again()
        self._spent = self._own_time() - began

    def mask(self) -> NDArray[np.uint32]:
        began = self._own_time()
        self._matcher.unsafe_compute_mask_ptr(self._words.ctypes.data, self._words.nbytes)
        self._check()
        self._spent += self._own_time() - began - ALLOWANCE_S
        self._spent = max(self._spent, 0.0)
        if self._spent > PATIENCE_S:
            raise GrammarError(
                f"the {self._name} is too slow to follow: it says the same text in too many ways, or has too "
                "many parts that may be left out; make it simpler"
            )
        return self._words

    def takes(self, token: int) -> bool:
        if not self._matcher.validate_tokens([token]):
            self._check()
            return False
        taken = bool(self._matcher.consume_token(token))
        self._check()
        return taken

    def take_back(self, n: int) -> None:
        self._matcher.rollback(n)
        self._check()

    def only_text(self) -> bytes:
        found: bytes = self._matcher.compute_ff_bytes()
        return found

    def _check(self) -> None:
        if self._matcher.is_error():
            why = _why(self._matcher.get_error())
            if why.startswith("NoExtension"):
                raise GrammarError(f"the {self._name} reached a point where nothing fits it any more")
            raise GrammarError(f"the {self._name} became too complex while it was followed: {why}")


def _limits() -> Any:
    return llguidance.LLParserLimits(
        initial_lexer_fuel=1_000_000,  # about 20 ms
        step_lexer_fuel=200_000,  # about 14 ms
        step_max_items=50_000,  # about 3 ms
        max_lexer_states=50_000,  # about 100 MB at most
        max_grammar_size=500_000,
        verbose_errors=False,
    )


def _why(complaint: str) -> str:
    """Returns llguidance's complaint in one line, without the grammar and the state that follow it."""
    lines = []
    for line in complaint.splitlines():
        if LISTING.match(line) or line.strip() == "<state>":
            break
        lines.append(line.replace("<non-verbose/>", "").strip())
    text = re.sub(r"^at \d+\(\d+\): (failed to compile JSON schema: )?", "", " ".join(filter(None, lines)))
    return (text if len(text) <= WORDY else text[:WORDY] + "...") or "it gives no reason"
