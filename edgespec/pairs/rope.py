"""How a model's positions are rotated (RoPE), where that is to differ from what its file says.

The names are those of llama.cpp's parameters and, with dashes, of its flags.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Literal, get_args

from edgespec.errors import SettingError
from edgespec_models.gguf.header import Header

Scaling = Literal["none", "linear", "yarn"]
_RANGES = {  # llama.cpp divides by these, or takes their logarithm
    "rope_freq_scale": (1e-6, 1e6),
    "rope_freq_base": (1.01, 1e15),
    "yarn_ext_factor": (0.0, 100.0),
    "yarn_attn_factor": (0.001, 1000.0),
    "yarn_beta_slow": (0.001, 100_000.0),
    "yarn_beta_fast": (0.001, 100_000.0),
    "yarn_orig_ctx": (1, 2**31 - 1),
}
AS_THE_FILE_SAYS = {  # values of llama.cpp's parameters, and flags, that mean this
    "rope_freq_base": 0, "rope_freq_scale": 0, "yarn_orig_ctx": 0, "yarn_ext_factor": -1,
    "yarn_attn_factor": -1, "yarn_beta_slow": -1, "yarn_beta_fast": -1,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Rope:
    """How positions are rotated. None is what the model's file says."""

    rope_scaling: Scaling | None = None
    rope_freq_base: float | None = None
    rope_freq_scale: float | None = None  # positions are multiplied by it: 0.25 reads four times as far
    yarn_orig_ctx: int | None = None  # what the model was trained for before it was extended
    yarn_ext_factor: float | None = None
    yarn_attn_factor: float | None = None
    yarn_beta_slow: float | None = None
    yarn_beta_fast: float | None = None

    def __post_init__(self) -> None:
        """Raises SettingError for values that llama.cpp would compute nonsense from."""
        if self.rope_scaling not in (None, *get_args(Scaling)):
            raise SettingError(f"--rope-scaling is {self.rope_scaling!r}: it must be none, linear or yarn")
        for name, (low, high) in _RANGES.items():
            value, whole = getattr(self, name), isinstance(low, int)
            if value is None:
                continue
            usable = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
            if not usable or not low <= value <= high:  # NaN is in no range
                kind = "a whole number" if whole else "a number"
                raise SettingError(
                    f"{_flag(name)} is {value}: it must be {kind} from {low:g} to {high:,.15g}"
                )
        if self.rope_scaling == "none" and self.rope_freq_scale not in (None, 1):
            raise SettingError("--rope-scaling none leaves positions as they are: leave out the scale, or it")
        slow, fast = self.yarn_beta_slow, self.yarn_beta_fast
        if slow is not None and fast is not None and slow >= fast:
            raise SettingError(
                f"--yarn-beta-slow is {slow:g}: it must be less than --yarn-beta-fast, {fast:g}"
            )

    def given(self) -> dict[str, str | float]:
        """Returns the values that are set, by their names."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not None}

    def flags(self) -> list[str]:
        """Returns the flags for EdgeSpec or llama-server that ask for the same."""
        return [word for name, value in self.given().items() for word in (_flag(name), str(value))]

    def reach(self, trained: int) -> int:
        """Returns how many tokens a model can be expected to read that was trained for `trained`."""
        if not self.rope_freq_scale:
            return trained
        return max(trained, math.floor((self.yarn_orig_ctx or trained) / self.rope_freq_scale + 0.5))

    def of_draft(self, target: Header, draft: Header) -> Rope:
        """Returns the same for a draft with its target's positions; another's stay as its file says."""
        return self if self.given() and _positions(target) == _positions(draft) else Rope()


def beyond_trained(name: str, n_ctx: int, trained: int | None, rope: Rope) -> str | None:
    """Returns a warning if a context is longer than what its model can be expected to read; else None."""
    if not trained or n_ctx <= (reach := rope.reach(trained)):
        return None
    scaled = f", with these positions for {reach:,}" if reach > trained else ""
    advice = "" if scaled else f"; --rope-scaling yarn --rope-scale {math.ceil(n_ctx / trained)} may help"
    return (
        f"the context is {n_ctx:,} tokens and {name} was trained for {trained:,}{scaled}: beyond these, "
        f"answers may get worse{advice}"
    )


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _positions(header: Header) -> tuple[object, object]:
    base = header.metadata.get(f"{header.architecture}.rope.freq_base")
    return header.of_architecture("context_length"), base
