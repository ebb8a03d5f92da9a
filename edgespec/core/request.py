"""The settings of one generation."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from edgespec.core.text import TextRelease
from edgespec.core.values import DRAFT_LENGTHS, DRAFTERS, DrafterName
from edgespec.errors import SettingError
from edgespec.grammar.grammar import Grammar
from edgespec.sampling.settings import Number, Sampling

RuleName = Literal["block", "token"]


@dataclass(frozen=True, slots=True)
class Scoring:
    """Which log probabilities are wanted."""

    top: int = 0  # how many of the likeliest tokens to report with the emitted one
    sampled: bool = False  # of the distribution after sampling, instead of the raw logits

    def __post_init__(self) -> None:
        Number(0, 0, 100).check("the number of likeliest tokens", self.top)


@dataclass(frozen=True, slots=True)
class Request:
    """The settings of one generation."""

    sampling: Sampling = field(default_factory=Sampling)
    max_tokens: int | None = 512  # None: as many as fit
    stop: Sequence[str] = ()  # texts that end it
    # Selects coupled mode: the text depends on seed, choice, prompt and target alone, not on the draft.
    seed: int | None = None
    choice: int = 0  # several texts of one seed
    rule: RuleName = "block"  # how drawn guesses are verified, without a seed
    rng_seed: int | None = None  # of the draws, without a seed; None: another each time
    drafter: DrafterName = "auto"  # who may guess; "auto": all compete
    draft_length: int | None = None  # tokens; None: chosen anew each round
    scoring: Scoring | None = None  # log probabilities of the tokens, if wanted
    shown: tuple[str, ...] = ()  # texts of control tokens that belong to the answer
    grammar: Grammar | None = None  # the form of the text
    ignore_eos: bool = False  # the model may not end it
    fresh: bool = False  # reuse only what a fresh evaluation of the prompt would have computed bit for bit
    adapters: tuple[float, ...] | None = None  # the scale of each LoRA adapter; None: as the pair was loaded
    slot: int | None = None  # the one that it would like to have
    owner: str = ""  # whose earlier texts may be guessed from: acceptance shows what they hold
    lane: str = ""  # requests of several lanes run in turn, a few rounds each; "" runs with all others

    def __post_init__(self) -> None:
        """Raises SettingError for nonsense, before anything is loaded."""
        for name, value in (("seed", self.seed), ("choice", self.choice), ("rng_seed", self.rng_seed)):
            if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
                raise SettingError(f"the {name} is {value!r}: it must be a whole number")
        if self.rng_seed is not None and self.rng_seed < 0:
            raise SettingError(f"the rng_seed is {self.rng_seed}: it must be 0 or more")
        if self.drafter not in DRAFTERS:
            raise SettingError(f"the drafter is {self.drafter!r}: it must be one of {', '.join(DRAFTERS)}")
        if self.rule not in get_args(RuleName):
            raise SettingError(f"the acceptance rule is {self.rule!r}: it must be block or token")
        if self.draft_length is not None:
            DRAFT_LENGTHS.check("the draft length", self.draft_length)
        TextRelease(lambda _: b"", self.stop)

    @property
    def fixed_length(self) -> int | None:
        """The fixed draft length, 0 for plain decoding; None leaves it to the controller."""
        return 0 if self.drafter == "none" else self.draft_length

    @property
    def governed(self) -> bool:
        """True if a grammar governs the whole text, and not only calls in it."""
        return self.grammar is not None and self.grammar.triggers is None

    @property
    def kind(self) -> str:
        """A key that requests share whose guesses fare alike."""
        mode = "coupled" if self.seed is not None else "drawn"
        fixed = "" if self.draft_length is None else ", fixed length"
        masked = ", by a grammar" if self.governed else ""
        return f"{mode} at temperature {self.sampling.temperature:.1f}{fixed}{masked}"
