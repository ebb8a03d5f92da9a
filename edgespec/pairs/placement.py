"""Where a model's tensors lie that do not follow their layers: experts, and what the user names.

The names are those of llama.cpp's flags, and so are the patterns: regular expressions (ECMAScript's), found
anywhere in a tensor's name; the first rule that matches counts.
"""

import re
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from edgespec.errors import SettingError
from edgespec_models.gguf.header import Header

EXPERTS = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"  # LLM_FFN_EXPS_REGEX in llama.cpp's common.h
ALL_LAYERS = (-1,)
MAIN_MEMORY = "CPU"  # as llama.cpp names it
MOST_LAYERS = 10_000
_ONLY_PYTHON = re.compile(r"\(\?(?![:=!])|[*+?}]\+|\\[AZ]")  # std::regex does not know these
Rule = tuple[str, str]  # a pattern, and the device where what matches lies


@dataclass(frozen=True, slots=True)
class Placement:
    """Where tensors of one model lie beside their layers."""

    cpu_moe: tuple[int, ...] | None = None  # layers whose experts lie in main memory; None: as few as fit
    overrides: tuple[Rule, ...] = ()

    def __post_init__(self) -> None:
        """Raises SettingError for a pattern that llama.cpp does not understand."""
        for pattern, _ in self.overrides:
            try:
                with warnings.catch_warnings(action="ignore"):  # of what some later Python may read otherwise
                    re.compile(pattern)
            except re.error as error:
                raise _not_understood(pattern, str(error)) from None
            if found := _ONLY_PYTHON.search(pattern):
                raise _not_understood(pattern, f"llama.cpp does not know {found[0]}")

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rules that llama.cpp gets, the user's own first."""
        if not self.cpu_moe:
            return self.overrides
        layers = "" if self.cpu_moe == ALL_LAYERS else rf"blk\.({'|'.join(map(str, self.cpu_moe))})"
        return (*self.overrides, (layers + EXPERTS, MAIN_MEMORY))

    def kept_experts(self, headers: Sequence[Header]) -> str:
        """Says how many layers' experts lie in main memory; "" if none. headers: of all the model's parts."""
        layers = expert_layers(headers) if self.cpu_moe else ()
        kept = [layer for layer in layers if self.cpu_moe == ALL_LAYERS or layer in (self.cpu_moe or ())]
        return f"experts of {len(kept)} of {len(layers)} layers in main memory" if kept else ""

    def check(self, headers: Sequence[Header]) -> None:
        """Raises SettingError if a pattern matches no tensor of a model. headers: of all its parts."""
        names = [tensor.name for header in headers for tensor in header.tensors]
        for pattern, _ in self.overrides:
            if not any(re.search(pattern, name) for name in names):
                raise SettingError(
                    f"--override-tensor {pattern!r} matches no tensor of {headers[0].name}: its tensors have "
                    f"names like {names[len(names) // 2] if names else 'none'}"
                )


def expert_layers(headers: Sequence[Header]) -> tuple[int, ...]:
    """Returns the layers of a model that have experts, in order. headers: of all its parts."""
    of_experts = re.compile(rf"blk\.(\d+){EXPERTS}")
    names = (tensor.name for header in headers for tensor in header.tensors)
    return tuple(sorted({int(match[1]) for name in names if (match := of_experts.match(name))}))


def place_of(name: str, rules: Iterable[Rule]) -> str | None:
    """Returns where a tensor is put by the rules; None: where its layer is."""
    return next((device for pattern, device in rules if re.search(pattern, name)), None)


def placement(
    *, cpu_moe: bool, n_cpu_moe: int | None, overrides: Sequence[str], draft: bool = False
) -> Placement:
    """Returns what flags ask for. overrides: each PATTERN=PLACE[,PATTERN=PLACE...]. Raises SettingError."""
    of = "-draft" if draft else ""
    if cpu_moe and n_cpu_moe is not None:
        raise SettingError(f"--cpu-moe{of} and --n-cpu-moe{of} say how many experts: leave out one of them")
    if n_cpu_moe is not None and not 0 <= n_cpu_moe <= MOST_LAYERS:
        raise SettingError(f"--n-cpu-moe{of} is {n_cpu_moe}: it must be a whole number from 0 to 10,000")
    rules = [part for text in overrides for part in text.split(",")]
    if wrong := next((rule for rule in rules if not all(rule.rpartition("=")[::2])), None):
        raise SettingError(
            f"--override-tensor{of} {wrong!r} is not understood: write PATTERN=PLACE, as in exps=CPU"
        )
    parts = tuple((pattern, device) for pattern, _, device in (rule.rpartition("=") for rule in rules))
    layers = ALL_LAYERS if cpu_moe else None if n_cpu_moe is None else tuple(range(n_cpu_moe))
    return Placement(layers, parts)


def _not_understood(pattern: str, why: str) -> SettingError:
    return SettingError(f"--override-tensor {pattern!r} is no regular expression that llama.cpp reads: {why}")
