"""Where the parts of a pair lie: one way to do it, and whether the memory is enough for it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from edgespec_models.fit.need import RAM, Device, Need

ModelName = Literal["target", "draft"]
RAM_MARGIN = 256 << 20  # bytes that stay free: the program itself, and the machine's other work
CARD_MARGIN = 512 << 20  # on a graphics card: its driver's own, and the screen's
ALL = -1  # layers


class Asks(Protocol):
    """Says what one model takes."""

    def __call__(
        self,
        model: ModelName,
        *,
        n_gpu_layers: int,
        n_ctx: int,
        kv_type: str | None,
        cpu_moe: tuple[int, ...] | None,
    ) -> Need:
        """kv_type: None is the requested one. n_gpu_layers: -1 is all. cpu_moe: the target's layers whose
        experts stay in RAM; None: as requested."""


@dataclass(frozen=True, slots=True)
class Allotment:
    """Layers, context, and what both models take with them."""

    n_ctx: int
    n_gpu_layers: int  # of the target; -1: all
    draft_gpu_layers: int
    needs: Mapping[ModelName, Need]
    cpu_moe: tuple[int, ...] | None = (
        None  # the target's layers whose experts stay in RAM; None: as requested
    )

    @property
    def total(self) -> int:
        return sum(need.total for need in self.needs.values())

    def on(self, device: str) -> int:
        """Returns the bytes on one device."""
        return sum(need.on(device) for need in self.needs.values())


@dataclass(slots=True)
class Search:
    """Asks, and remembers what does not change in between."""

    asks: Asks
    devices: Sequence[Device]
    has_draft: bool
    expert_layers: Sequence[int] = ()  # layers whose experts may stay in RAM
    budgets: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for device in self.devices:
            self.budgets[device.name] = device.free - margin(device)

    def choice(
        self,
        n_ctx: int,
        layers: int,
        draft_layers: int,
        *,
        kv_type: str | None = None,
        draft: bool = True,
        cpu_moe: tuple[int, ...] | None = None,
    ) -> Allotment:
        needs: dict[ModelName, Need] = {
            "target": self.asks("target", n_gpu_layers=layers, n_ctx=n_ctx, kv_type=kv_type, cpu_moe=cpu_moe)
        }
        if self.has_draft and draft:
            needs["draft"] = self.asks(
                "draft", n_gpu_layers=draft_layers, n_ctx=n_ctx, kv_type=None, cpu_moe=None
            )
        return Allotment(n_ctx, layers, draft_layers, needs, cpu_moe)

    def fits(self, choice: Allotment) -> bool:
        shared = sum(choice.on(device.name) for device in self.devices if device.shares_ram)
        return all(
            choice.on(name) + (shared if name == RAM else 0) <= budget
            for name, budget in self.budgets.items()
        )

    @property
    def has_card(self) -> bool:
        return any(device.name != RAM for device in self.devices)


def margin(device: Device) -> int:
    """Returns the bytes of a device that stay free."""
    return RAM_MARGIN if device.name == RAM else CARD_MARGIN
