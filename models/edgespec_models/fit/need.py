"""A model's memory, part by part and device by device, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Literal, NamedTuple

RAM = "RAM"  # the device that every machine has


@dataclass(frozen=True, slots=True)
class Parts:
    """Bytes of one model on one device."""

    weights: int = 0
    cache: int = 0  # keys and values
    state: int = 0  # recurrent state, with its snapshots
    output: int = 0  # logits rows
    compute: int = 0  # buffers that an evaluation works in

    @property
    def total(self) -> int:
        return sum(getattr(self, part.name) for part in fields(self))

    def __add__(self, other: Parts) -> Parts:
        return Parts(*(getattr(self, part.name) + getattr(other, part.name) for part in fields(self)))


class FlashAttention(NamedTuple):
    """Whether a context has ggml's flash attention, and why."""

    on: bool | None  # None: a graphics card decides
    why: str

    def __str__(self) -> str:
        state = {True: "on, ", False: "off, ", None: ""}[self.on]
        return f"{state}{self.why}"


@dataclass(frozen=True, slots=True)
class Need:
    """What one model takes with one context. source: who computed it."""

    devices: Mapping[str, Parts]
    n_layers: int  # that can be put on a graphics card, the output layer included
    source: Literal["llama.cpp", "formula"] = "llama.cpp"
    attention: FlashAttention | None = field(default=None, compare=False)  # None: unknown

    @property
    def total(self) -> int:
        return sum(parts.total for parts in self.devices.values())

    @property
    def parts(self) -> Parts:
        """All devices together."""
        return sum(self.devices.values(), Parts())

    def on(self, device: str) -> int:
        """Returns the bytes on one device."""
        return self.devices.get(device, Parts()).total


@dataclass(frozen=True, slots=True)
class Device:
    """A place for models: the machine's memory, or a graphics card's. Bytes."""

    name: str
    free: int
    total: int
    description: str = ""
    shares_ram: bool = False  # its memory is the machine's own (Apple silicon, integrated graphics)
