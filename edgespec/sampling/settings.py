"""How the next token is chosen, as a value: every setting with its meaning and its bounds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from edgespec.errors import SettingError

MOST_BIAS = 1e9  # far past any logit, and safe to add to one in float32
MOST_BREAKERS = 64
ANY = 2**31 - 1  # as a limit: none
IN_FILE = "general.sampling."  # what a model's file recommends
LETTERS = {
    "e": "penalties",
    "d": "dry",
    "s": "top_n_sigma",
    "k": "top_k",
    "y": "typ_p",
    "p": "top_p",
    "m": "min_p",
    "x": "xtc",
    "t": "temperature",
}  # the stages in their usual order, by the letters that llama.cpp has for them
ORDER = tuple(LETTERS.values())
OTHER_NAMES = {  # with - for _ as well
    "nucleus": "top_p",
    "typical_p": "typ_p",
    "typical": "typ_p",
    "typ": "typ_p",
    "temp": "temperature",
}
NO_STAGES = {"infill"}  # of llama.cpp's, for filling in: ignored


@dataclass(frozen=True, slots=True)
class Number:
    """A row of the table of settings: flags, fields of requests, `/set` and the pages come from it.

    default: a whole number if only those are allowed. stage: of `samplers`; `off` is what this number is
    where the stage does nothing. in_file: its name in a model file's metadata, behind `IN_FILE`.
    also: another name of its field in llama-server.
    """

    default: float
    low: float
    high: float
    help: str = ""
    stage: str = ""
    off: float | None = None
    in_file: str = ""
    also: str = ""

    @property
    def kind(self) -> type[int] | type[float]:
        return type(self.default)

    @property
    def allowed(self) -> str:
        """Says what is allowed."""
        whole = self.kind is int
        low, high = (f"{limit:,}" if whole else f"{limit:g}" for limit in (self.low, self.high))
        kind = "a whole number" if whole else "a number"
        return f"{kind} of {low} or more" if self.high >= ANY else f"{kind} from {low} to {high}"

    def holds(self, value: object) -> bool:
        """True where a value is allowed."""
        kinds = (int,) if self.kind is int else (int, float)
        return isinstance(value, kinds) and not isinstance(value, bool) and self.low <= value <= self.high

    def check(self, name: str, value: object) -> None:
        """Raises SettingError for a value that is not allowed."""
        if not self.holds(value):
            raise SettingError(f"{name} is {value!r}: it must be {self.allowed}")


TOKEN = Number(0, 0, ANY)


def _row(
    default: float, low: float, high: float, help: str,
    *, stage: str = "", off: float | None = None, in_file: str = "", also: str = "",
) -> Any:  # fmt: skip
    number = Number(default, low, high, help, stage=stage, off=off, in_file=in_file, also=also)
    return field(default=default, metadata={"number": number})


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen, with llama.cpp's names and meanings. 0 or 1 switches a stage off.

    Raises SettingError for values that make no sense.
    """

    # fmt: off
    temperature: float = _row(0.8, 0, 100, "0 always picks the likeliest token",
        stage="temperature", off=1.0, in_file="temp")
    top_k: int = _row(0, 0, ANY, "keep the N likeliest tokens", stage="top_k", off=0, in_file="top_k")
    top_p: float = _row(0.95, 0, 1, "keep the likeliest tokens that together have probability X",
        stage="top_p", off=1.0, in_file="top_p")
    min_p: float = _row(0.05, 0, 1, "keep tokens at least X times as likely as the likeliest",
        stage="min_p", off=0.0, in_file="min_p")
    typical_p: float = _row(1.0, 0, 1, "keep the most typical tokens that together have probability X",
        stage="typ_p", off=1.0, also="typ_p")
    top_n_sigma: float = _row(0.0, 0, 1000, "keep tokens within X standard deviations of the largest logit",
        stage="top_n_sigma", off=0.0)
    repeat_penalty: float = _row(1.0, 0.01, 100, "make recent tokens less likely by the factor X",
        stage="penalties", off=1.0, in_file="penalty_repeat")
    frequency_penalty: float = _row(0.0, -100, 100,
        "subtract X from a logit for each recent occurrence of its token", stage="penalties", off=0.0)
    presence_penalty: float = _row(0.0, -100, 100, "subtract X from the logit of every recent token",
        stage="penalties", off=0.0)
    penalty_last_n: int = _row(64, -1, ANY, "how many tokens are recent (-1: all)",
        in_file="penalty_last_n", also="repeat_last_n")
    xtc_probability: float = _row(0.0, 0, 1, "probability of leaving out the likeliest tokens",
        stage="xtc", off=0.0)
    xtc_threshold: float = _row(0.1, 0, 1,
        "leave out tokens likelier than this, except the least likely of them")
    dynatemp_range: float = _row(0.0, 0, 100, "let the temperature vary with the entropy, by up to this much",
        stage="temperature", off=0.0)
    dynatemp_exponent: float = _row(1.0, 0, 100, "exponent of that dependence")
    dry_multiplier: float = _row(0.0, 0, 1000, "penalty on tokens that continue a repetition",
        stage="dry", off=0.0)
    dry_base: float = _row(1.75, 0, 100, "how fast the penalty grows with the length of the repetition")
    dry_allowed_length: int = _row(2, 0, ANY, "longest repetition without a penalty")
    dry_penalty_last_n: int = _row(64, -1, ANY, "tokens to search for repetitions (-1: all)")
    # fmt: on
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    samplers: tuple[str, ...] = ORDER  # the stages in their order; one that is not named is left out

    def __post_init__(self) -> None:
        for name, number in NUMBERS.items():
            number.check(name, getattr(self, name))
        for token, bias in self.logit_bias.items():
            TOKEN.check("a token of logit_bias", token)
            if not isinstance(bias, (int, float)) or not (abs(bias) <= MOST_BIAS or bias == -math.inf):
                limits = f"from -{MOST_BIAS:g} to {MOST_BIAS:g}, or -inf"
                raise SettingError(f"logit_bias of token {token} is {bias!r}: it must be {limits}")
        breakers = self.dry_sequence_breakers
        if not isinstance(breakers, tuple) or not all(isinstance(b, str) and b for b in breakers):
            raise SettingError(f"dry_sequence_breakers is {breakers!r}: give texts of at least one character")
        if len(breakers) > MOST_BREAKERS:
            raise SettingError(f"there are {len(breakers)} dry_sequence_breakers: at most {MOST_BREAKERS}")
        if unknown := [name for name in self.samplers if name not in ORDER]:
            raise SettingError(f"samplers names {unknown[0]!r}: there are {', '.join(ORDER)}")

    def in_context(self, n_ctx: int) -> Sampling:
        """Returns the same with -1 replaced by the length of the context."""
        return replace(self, penalty_last_n=n_ctx) if self.penalty_last_n < 0 else self

    def in_usual_order(self) -> Sampling | None:
        """Returns the same with all stages in llama.cpp's own order, the missing ones switched off.

        None if they come in another one.
        """
        if self.samplers == ORDER:
            return self
        if tuple(name for name in ORDER if name in self.samplers) != self.samplers:
            return None
        missing = set(ORDER) - set(self.samplers)
        off: dict[str, Any] = {name: one.off for name, one in NUMBERS.items() if one.stage in missing}
        return replace(self, samplers=ORDER, **off)

    def stages_on(self) -> set[str]:
        """Returns the stages that a number of theirs does not switch off."""
        of = {name: one for name, one in NUMBERS.items() if one.stage in self.samplers}
        return {one.stage for name, one in of.items() if getattr(self, name) != one.off}

    @property
    def repeats_dry(self) -> bool:
        """True if tokens that continue a repetition become less likely."""
        on = self.dry_multiplier > 0 and self.dry_base >= 1 and self.dry_penalty_last_n != 0
        return on and "dry" in self.samplers

    @property
    def excludes_top(self) -> bool:
        """True if the likeliest tokens may be left out (XTC)."""
        return self.xtc_probability > 0 and self.xtc_threshold <= 0.5 and "xtc" in self.samplers

    @property
    def penalises(self) -> bool:
        """True if the tokens so far change what comes next."""
        wanted = self.repeat_penalty != 1 or self.frequency_penalty != 0 or self.presence_penalty != 0
        return wanted and self.penalty_last_n != 0 and "penalties" in self.samplers


NUMBERS: Mapping[str, Number] = {
    one.name: one.metadata["number"] for one in fields(Sampling) if "number" in one.metadata
}


def sampling_for(metadata: Mapping[str, str], **wanted: object) -> Sampling:
    """Returns the user's settings over the GGUF's `general.sampling.*` over the defaults.

    metadata: the GGUF's values as text. wanted: fields of Sampling; None means unset.
    A value in the file that makes no sense is ignored; one from the user raises SettingError.
    """
    chosen = Sampling()
    for name, number in NUMBERS.items():
        try:
            value: Any = number.kind(float(metadata[IN_FILE + number.in_file]))
            chosen = replace(chosen, **{name: value})
        except (KeyError, ValueError, OverflowError, SettingError):
            continue
    given: dict[str, Any] = {name: value for name, value in wanted.items() if value is not None}
    return replace(chosen, **given)


def logit_bias_of(texts: Iterable[str]) -> dict[int, float]:
    """Returns the biases that `--logit-bias` names ("42=-1.5"), unchecked. Raises SettingError."""
    found = {}
    for text in texts:
        token, _, bias = text.partition("=")
        try:
            found[int(token)] = float(bias)
        except ValueError:
            raise SettingError(
                f"--logit-bias {text!r} is not understood: write TOKEN=BIAS, as in 42=-1.5"
            ) from None
    return found


def sampler_order(given: str | Sequence[str]) -> tuple[str, ...]:
    """Returns the stages in llama.cpp's `samplers`: a list of names, names with ; or single letters.

    Raises SettingError for an unknown name.
    """
    if isinstance(given, str):
        given = list(given) if set(given) <= set(LETTERS) else given.split(";")
    spelt = [name.replace("-", "_") for name in given if name not in NO_STAGES]
    names = [LETTERS.get(name, OTHER_NAMES.get(name, name)) for name in spelt]
    return Sampling(samplers=tuple(dict.fromkeys(names))).samplers
