"""The values that flow between loop, drafters, engine and readers. Values only: nothing here acts.

A round of speculation (Leviathan et al., ICML 2023, arXiv 2211.17192): a drafter makes a `Draft`, the
loop asks the target for the rows that judge it (`Ask`), a rule turns them into a verdict, and the
emitted tokens leave as a `Round`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

from edgespec.sampling.settings import Number

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from edgespec.errors import EdgeSpecError
    from edgespec.sampling.sampler import Distribution

ModelName = Literal["target", "draft"]
HeadName = Literal["mtp", "eagle", "dflash", "medusa"]
# each has a file in `core/drafters`
FreeName = Literal["lookup", "history", "recycling", "lookahead"]
# who guesses, as requests, flags, settings and pages name it; "auto": all that are there compete
DrafterName = Literal["auto", "model", HeadName, FreeName, "none"]
FREE: tuple[FreeName, ...] = get_args(FreeName)  # these need neither a draft nor a head
DRAFTERS: tuple[DrafterName, ...] = get_args(DrafterName)
# tokens, for settings, flags and endpoint alike; batches past 63 rows may use other kernels
LONGEST_DRAFT = 48
DRAFT_LENGTHS = Number(0, 0, LONGEST_DRAFT)
FinishReason = Literal["stop", "length", "cancelled"]
# where tokens are that need not be evaluated again; "checkpoint": in a slot that goes back to one
Origin = Literal["slot", "memory", "disk", "checkpoint"]
Reach = tuple[float, ...]  # for each token of a guess, the probability that it and all before it are accepted


class Ask(NamedTuple):  # quicker to make than a dataclass: there are two for each guess
    """A request for logits: "what follows these tokens, on this model?"

    The answer is a float32 array of shape (rows, n_vocab), valid until the next ask to the same model,
    or None if the engine refuses (only asks to the draft may be refused). An ask of no rows to the
    draft evaluates nothing: it asks whether one more guess may be drawn, to be verified with the others.

    reach: what the asking drafter expects. Of an ask to the target: how likely each token of the tail
    counts; empty where the tail was drawn and may not be cut. Of an ask to the draft: how likely the next
    guess counts, and those that may follow it.
    otherwise: the reach of the alternative guess if this ask is refused.
    skipped: settled tokens left out before `tokens`, because the draft cannot hold them.
    forced: how many of `tokens` a grammar settled by itself, so that the target has not seen them yet.
    """

    model: ModelName
    tokens: NDArray[np.int32]  # (n,) settled tokens
    tail: tuple[int, ...]  # drafted tokens after them, not settled yet; for a draft, in its own vocabulary
    rows: int  # logits wanted for the last `rows` positions of tokens + tail
    reach: Reach = ()
    otherwise: Reach = ()
    skipped: int = 0
    forced: int = 0


@dataclass(frozen=True, slots=True)
class Draft:
    """A guess: tokens, and for each the distribution that it was really drawn from."""

    tokens: tuple[int, ...] = ()
    probs: tuple[Distribution, ...] = ()  # point masses for a deterministic guess: lookup, recycling, greedy
    sources: tuple[str, ...] = ()  # who guessed each token
    confidence: tuple[float, ...] = ()  # how sure the drafter was of each, in (0, 1], on its own scale
    reach: Reach = ()  # see `Ask`; only for a guess that is deterministic as a whole, so that it may be cut

    def cut(self, length: int) -> Draft:
        """Returns the first `length` tokens. Exact only where `length` does not depend on drawn tokens."""
        if length >= len(self.tokens):
            return self
        return Draft(
            self.tokens[:length],
            self.probs[:length],
            self.sources[:length],
            self.confidence[:length],
            self.reach[:length],
        )


NO_DRAFT = Draft()


@dataclass(frozen=True, slots=True)
class Judged:
    """The result of a verification, for drafters to learn from.

    tokens: prompt and output so far, the last `fresh` of them from this round. draft: what was judged.
    p: the target's distributions at the draft's positions, as far as they were looked at: at least up to
    the first token that did not stay. behind: the target's rows after that one, while
    this is being learned from.
    """

    tokens: NDArray[np.int32]  # (n,)
    fresh: int
    draft: Draft
    accepted: int
    p: tuple[Distribution, ...]
    behind: NDArray[np.float32] | tuple[()] = ()  # (n, n_vocab)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A token, and the natural logarithm of its probability. spelt: its bytes, if wanted."""

    token: int
    logprob: float
    spelt: bytes = b""


@dataclass(frozen=True, slots=True)
class TokenScore:
    """How likely an emitted token was, and the likeliest alternatives, the likeliest first."""

    chosen: Candidate
    top: tuple[Candidate, ...] = ()


class Round(NamedTuple):  # goes to another process at each token; a dataclass would be pickled more slowly
    """What one evaluation of the target brought."""

    tokens: tuple[int, ...]  # those that stay: without the end token, and cut at a stop string
    text: str  # what may be shown by now; it may lag behind the tokens
    drafted: int  # tokens verified
    accepted: int  # of them, those that stayed
    # who produced each of `tokens`: a drafter's name, "target" (recovered or bonus token), or "grammar"
    # (no other token was allowed, or the text that a grammar demands was guessed)
    sources: tuple[str, ...]
    finish: FinishReason | None = None  # in the last round
    gain: float = 1.0  # expected speed-up over plain decoding when its draft was chosen; 1: plain
    scores: tuple[TokenScore, ...] = ()  # one for each token, if requested
    stopped_by: str = ""  # the stop string met
    notice: str = ""  # from when on nobody guesses who could: why, in a sentence


@dataclass(frozen=True, slots=True)
class BreakEven:
    """How good guesses have to be on a pair, by its measured costs. Costs are in evaluations of one token."""

    two: float  # an evaluation of two tokens
    guess: float  # making one guess; 0 if nothing drafts
    least: float  # share of guesses that have to be right for any draft to pay; 1: none can
    least_free: float  # the same, for guesses that cost nothing


class Broken(NamedTuple):
    """Why tokens of a prompt are evaluated again, though an earlier text had them.

    cause: who can change it. "room": they were held, and are no longer; "template": the text differs where
    the earlier one's answer began, which a template renders otherwise in a history; else "client".
    """

    again: int  # tokens, estimated
    at: int  # tokens before the first that differs
    was: str  # the text that differs, of the earlier one and of this one; "" if none does
    now: str
    cause: Literal["client", "template", "room"]
    ahead: int = 0  # characters before it
    message: int | None = None  # the number of the message in which it is, from 1 on


class Started(NamedTuple):
    """A request left the queue. cached_tokens: of its prompt, those that need not be evaluated again.

    timings: what else the engine knows of it by then, under its name in the `timings` of an answer.
    """

    id: str
    prompt_tokens: int
    cached_tokens: int
    timings: Mapping[str, float]
    origin: Origin = "slot"  # where these were
    broken: Broken | None = None


class PromptProgress(NamedTuple):
    """A piece of a long prompt has been read. known_tokens: of the prompt, those that the target has now.

    A request that lost its cells reads again, and reports it.
    """

    id: str
    known_tokens: int


class Emitted(NamedTuple):
    """A round of one request; the last has a finish reason. pieces: the text of each token, if asked for."""

    id: str
    round: Round
    pieces: tuple[str, ...] = ()
    seconds: float = 0.0  # that the round took, if its request runs in a lane


@dataclass(frozen=True, slots=True)
class Failed:
    """A request ended without a last round, and why."""

    id: str
    error: EdgeSpecError


EngineEvent = Started | PromptProgress | Emitted | Failed  # of one request, in one step of the engine
