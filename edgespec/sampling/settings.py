"""How the next token is chosen, as a value: every setting with its meaning and its bounds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from edgespec.errors import SettingError

MOST_BIAS = 1e9  # far past any logit, and safe to add to one in float32
MOST_BREAKERS = 64
ORDER = (
    "penalties",
    "dry",
    "top_n_sigma",
    "top_k",
    "typ_p",
    "top_p",
    "min_p",
    "xtc",
    "temperature",
)
OTHER_NAMES = {
    "top-k": "top_k",
    "top-p": "top_p",
    "nucleus": "top_p",
    "typical-p": "typ_p",
    "typical": "typ_p",
    "typ-p": "typ_p",
    "typ": "typ_p",
    "min-p": "min_p",
    "temp": "temperature",
    "top-n-sigma": "top_n_sigma",
    "typical_p": "typ_p",
}
OFF: Mapping[str, Mapping[str, Any]] = {
    "penalties": {"repeat_penalty": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0},
    "dry": {"dry_multiplier": 0.0},
    "top_n_sigma": {"top_n_sigma": 0.0},
    "top_k": {"top_k": 0},
    "typ_p": {"typical_p": 1.0},
    "top_p": {"top_p": 1.0},
    "min_p": {"min_p": 0.0},
    "xtc": {"xtc_probability": 0.0},
    "temperature": {"temperature": 1.0, "dynatemp_range": 0.0},
}
NO_STAGES = {"infill"}  # of llama.cpp's, for filling in: ignored
LETTERS = dict(zip("edskypmxt", ORDER, strict=True))


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen, with llama.cpp's names and meanings. 0 or 1 switches a stage off.

    Raises SettingError for values that make no sense.
    """

    temperature: float = 0.8
    top_k: int = 0
    top_p: float = 0.95
    min_p: float = 0.05
    typical_p: float = 1.0
    top_n_sigma: float = 0.0
    repeat_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    penalty_last_n: int = 64  # -1 is the whole context
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = 64
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    samplers: tuple[str, ...] = ORDER  # the stages in their order; one that is not named is left out

    def __post_init__(self) -> None:
        _within("temperature", self.temperature, 0, 100)
        _within("top_k", self.top_k, 0, 2**31 - 1, whole=True)
        _within("top_p", self.top_p, 0, 1)
        _within("min_p", self.min_p, 0, 1)
        _within("typical_p", self.typical_p, 0, 1)
        _within("top_n_sigma", self.top_n_sigma, 0, 1000)
        _within("repeat_penalty", self.repeat_penalty, 0.01, 100)
        _within("frequency_penalty", self.frequency_penalty, -100, 100)
        _within("presence_penalty", self.presence_penalty, -100, 100)
        _within("penalty_last_n", self.penalty_last_n, -1, 2**31 - 1, whole=True)
        for token, bias in self.logit_bias.items():
            _within("a token of logit_bias", token, 0, 2**31 - 1, whole=True)
            if not isinstance(bias, (int, float)) or not (abs(bias) <= MOST_BIAS or bias == -math.inf):
                limits = f"from -{MOST_BIAS:g} to {MOST_BIAS:g}, or -inf"
                raise SettingError(f"logit_bias of token {token} is {bias!r}: it must be {limits}")
        self._check_rarer()

    def _check_rarer(self) -> None:
        _within("xtc_probability", self.xtc_probability, 0, 1)
        _within("xtc_threshold", self.xtc_threshold, 0, 1)
        _within("dynatemp_range", self.dynatemp_range, 0, 100)
        _within("dynatemp_exponent", self.dynatemp_exponent, 0, 100)
        _within("dry_multiplier", self.dry_multiplier, 0, 1000)
        _within("dry_base", self.dry_base, 0, 100)
        _within("dry_allowed_length", self.dry_allowed_length, 0, 2**31 - 1, whole=True)
        _within("dry_penalty_last_n", self.dry_penalty_last_n, -1, 2**31 - 1, whole=True)
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
        off: dict[str, Any] = {}
        for name in set(ORDER) - set(self.samplers):
            off |= OFF[name]
        return replace(self, samplers=ORDER, **off)

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


NUMBERS = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "top_n_sigma",
    "repeat_penalty",
    "frequency_penalty",
    "presence_penalty",
    "penalty_last_n",
    "xtc_probability",
    "xtc_threshold",
    "dynatemp_range",
    "dynatemp_exponent",
    "dry_multiplier",
    "dry_base",
    "dry_allowed_length",
    "dry_penalty_last_n",
)


def _within(name: str, value: float, low: float, high: float, *, whole: bool = False) -> None:
    number = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
    if not number or not low <= value <= high:
        kind = "a whole number" if whole else "a number"
        raise SettingError(f"{name} is {value!r}: it must be {kind} from {low:g} to {high:g}")


_METADATA = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_k": "top_k",
    "general.sampling.top_p": "top_p",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_last_n": "penalty_last_n",
    "general.sampling.penalty_repeat": "repeat_penalty",
}


def sampling_for(metadata: Mapping[str, str], **wanted: object) -> Sampling:
    """Returns the user's settings over the GGUF's `general.sampling.*` over the defaults.

    metadata: the GGUF's values as text. wanted: fields of Sampling; None means unset.
    A value in the file that makes no sense is ignored; one from the user raises SettingError.
    """
    kinds = {f.name: type(f.default) for f in fields(Sampling) if isinstance(f.default, (int, float))}
    chosen = Sampling()
    for key, name in _METADATA.items():
        try:
            value: Any = kinds[name](float(metadata[key]))
            chosen = replace(chosen, **{name: value})
        except (KeyError, ValueError, OverflowError, SettingError):
            continue
    said: dict[str, Any] = {name: value for name, value in wanted.items() if value is not None}
    return replace(chosen, **said)


def sampler_order(given: str | Sequence[str]) -> tuple[str, ...]:
    """Returns the stages in llama.cpp's `samplers`: a list of names, names with ; or single letters.

    Raises SettingError for an unknown name.
    """
    if isinstance(given, str):
        given = list(given) if set(given) <= set(LETTERS) else given.split(";")
    names = [LETTERS.get(name, OTHER_NAMES.get(name, name)) for name in given if name not in NO_STAGES]
    return Sampling(samplers=tuple(dict.fromkeys(names))).samplers
