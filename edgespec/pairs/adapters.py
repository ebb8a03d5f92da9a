"""LoRA adapters: files that change what a target says, each with a scale."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from edgespec.errors import ModelFileError, PairMismatchError, SettingError
from edgespec_models.gguf.header import Header, read_file

MOST_ADAPTERS = 64
Scales = tuple[float, ...]  # of each adapter of a pair; 0 leaves it out


@dataclass(frozen=True, slots=True)
class Adapter:
    """An adapter in a GGUF file, and how much of it is added unless a request says otherwise."""

    path: str
    scale: float = 1.0

    def __post_init__(self) -> None:
        check_scale(self.scale)


def check_scale(scale: float) -> None:
    """Raises SettingError for what no adapter can be multiplied by."""
    if not math.isfinite(scale) or abs(scale) > 1e6:
        raise SettingError(f"an adapter's scale is {scale}: it must be a number from -1e6 to 1e6")


def scales_for(given: Scales | None, own: Scales) -> Scales:
    """Returns the scales of a request: its own, or the pair's. Raises SettingError for another number."""
    if given is None:
        return own
    if len(given) != len(own):
        raise SettingError(f"there are {len(given)} scales of adapters: the pair was loaded with {len(own)}")
    for scale in given:
        check_scale(scale)
    return given


def parse_adapters(texts: Sequence[str]) -> tuple[Adapter, ...]:
    """Reads FILE or FILE:SCALE, each. Raises SettingError."""
    found = []
    for text in texts:
        path, colon, scale = text.rpartition(":")
        try:
            found.append(Adapter(path, float(scale)) if colon else Adapter(text))
        except ValueError:  # a path with a colon in it
            found.append(Adapter(text))
    if len(found) > MOST_ADAPTERS:
        raise SettingError(f"--lora names {len(found)} files: at most {MOST_ADAPTERS} can be used at once")
    return tuple(found)


def check_adapters(adapters: Sequence[Adapter], target: Sequence[Header]) -> None:
    """Raises HeaderError or ModelFileError for what is no adapter, PairMismatchError for another model's.

    target: the headers of all its parts.
    """
    sizes = {tensor.name: tensor.shape for part in target for tensor in part.tensors}
    for adapter in adapters:
        name, header = Path(adapter.path).name, read_file(adapter.path)
        kind = header.text("general.type"), header.text("adapter.type")
        if kind != ("adapter", "lora"):
            raise ModelFileError(
                f"{name} is no LoRA adapter: name a GGUF file that was made as one with --lora"
            )
        if "adapter.alora.invocation_tokens" in header.metadata:
            raise ModelFileError(
                f"{name} is an activated LoRA, which changes only what follows its invocation: EdgeSpec "
                "does not run these, so name a plain one"
            )
        if header.architecture != target[0].architecture:
            raise PairMismatchError(
                f"{name} was made for a model of architecture {header.architecture}, and {target[0].name} is "
                f"{target[0].architecture}: name an adapter that was made for it"
            )
        for tensor in header.tensors:
            base, _, part = tensor.name.rpartition(".lora_")
            if part == "a" and base in sizes and tensor.shape[0] not in sizes[base]:
                raise PairMismatchError(
                    f"{name} was made for another model than {target[0].name}: its {tensor.name} has "
                    f"{tensor.shape[0]:,} columns, and {base} is {' x '.join(map(str, sizes[base]))}"
                )
