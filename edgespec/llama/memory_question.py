"""What the child that measures memory is asked: one model with one context."""

from dataclasses import dataclass

from edgespec.pairs.placement import Rule
from edgespec.pairs.settings import KvType


@dataclass(frozen=True, slots=True)
class Question:
    """One model with one context, as in `ContextSettings`."""

    path: str
    n_gpu_layers: int
    n_ctx: int
    cells: int
    n_seq: int
    n_rows: int
    kv_type: KvType
    flash_attention: bool | None = None
    mtp: bool = False  # its MTP blocks guess, with a cache of their own
    target: str | None = None  # the model that it is a head for, in a file of its own
    rpc: tuple[str, ...] = ()  # as `PairSettings` has them
    tensor_split: tuple[float, ...] = ()
    rules: tuple[Rule, ...] = ()  # where tensors lie that do not follow their layers
