"""How a pair is loaded: the settings, checked before any model is opened.

They are made in one place (`commands/loading.py`, from flags), go to the worker unchanged, and
`engine.Pair` reads them. This module knows nothing of llama.cpp, so the web process may hold them too.
"""

import math
from dataclasses import dataclass
from typing import Literal, get_args

from edgespec.errors import SettingError
from edgespec.pairs.adapters import Adapter, Scales
from edgespec.pairs.metadata_override import MetadataOverride
from edgespec.pairs.placement import Placement
from edgespec.pairs.rope import Rope
from edgespec.system.cores import MOST_THREADS

KvType = Literal["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"]
FLOATS = ("f32", "f16", "bf16")  # the others come in blocks
FLASH_ATTENTION = {"on": True, "off": False, "auto": None}  # by what the flag says
MOST_SLOTS = 32


@dataclass(frozen=True, slots=True)
class PairSettings:
    """How a pair is loaded. None means: what suits model and machine."""

    n_ctx: int | None = None  # tokens that one request may use, prompt and answer together
    kv_type: KvType = "f16"
    draft_kv_type: KvType = "f16"
    flash_attention: bool | None = None  # None: where it is faster on this machine
    byte_identical: bool = False  # greedy and seeded texts do not depend, to the bit, on how they are made
    threads: int | None = None
    n_gpu_layers: int = -1  # -1 is as many as fit
    draft_gpu_layers: int | None = None  # None is as many as n_gpu_layers says
    placement: Placement = Placement()  # of the target's tensors that do not follow their layers
    draft_placement: Placement = Placement()
    adapters: tuple[Adapter, ...] = ()  # of the target
    metadata: tuple[MetadataOverride, ...] = ()  # of the target, instead of what its file says
    plans_failed: int = 0  # plans of layer placement for which a graphics card had too little memory, later
    rpc: tuple[str, ...] = ()  # other machines that the target's layers may go to, each as IPV4:PORT
    # the share of the layers for each machine of rpc, then each graphics card; (): by their free memory
    tensor_split: tuple[float, ...] = ()
    remember: bool = True  # what is learned of the pair is saved in the cache folder when it is closed
    head: bool = True  # a head in the target's file guesses if no draft is named
    slots: int = 1  # requests that may be evaluated at once
    # tokens that all of them may use together (None: n_ctx each); if they want more, the youngest waits
    cache_tokens: int | None = None
    # bytes of host memory for prompts that are in no slot; None: a quarter of what is free, 8 GiB
    # at most
    cache_ram: int | None = None
    cache_disk: int = 0  # bytes of files for prompts, which outlive the program
    rope: Rope = Rope()  # of the target, and of a draft with the same positions
    mmproj: str = (
        "none"  # the projector with which the target reads pictures: a file, or "auto" for one next to it
    )
    keep_texts: int = 0  # bytes of prompts and answers kept for `edgespec distill`, the oldest out

    @property
    def scales(self) -> Scales:
        """The scales of the adapters, where a request names none."""
        return tuple(adapter.scale for adapter in self.adapters)

    def __post_init__(self) -> None:
        """Raises SettingError for nonsense, before anything is loaded."""
        whole("the number of slots", self.slots, 1, MOST_SLOTS)
        if self.n_ctx is not None:
            whole("the context length", self.n_ctx, 2, 2**31 - 1)
        if self.cache_tokens is not None:
            whole("the number of tokens in the cache", self.cache_tokens, self.n_ctx or 2, 2**31 - 1)
        if self.cache_ram is not None:
            whole("the memory for prompts", self.cache_ram, 0, 2**50)
        whole("the room for prompts on disk", self.cache_disk, 0, 2**50)
        whole("the room for kept texts", self.keep_texts, 0, 2**50)
        check_threads(self.threads)
        if self.tensor_split and not (min(self.tensor_split) >= 0 and 0 < sum(self.tensor_split) < math.inf):
            raise SettingError(
                f"--tensor-split is {self.tensor_split}: its parts must be 0 or more, and one of them more"
            )
        for kv_type in (self.kv_type, self.draft_kv_type):
            check_kv(kv_type, self.flash_attention)
        if self.byte_identical:
            self._check_byte_identical()

    def _check_byte_identical(self) -> None:
        """Raises SettingError for what would let digits depend on how a text is made."""
        for flag, wrong in (
            (f"--slots {self.slots}", self.slots > 1),
            (f"--kv-type {self.kv_type}", self.kv_type not in FLOATS),
            ("--flash-attention on", self.flash_attention is True),
            (f"--gpu-layers {self.n_gpu_layers}", self.n_gpu_layers > 0),
            ("--rpc", bool(self.rpc)),
        ):
            if wrong:
                raise SettingError(
                    "--byte-identical works for one request at a time, on the processor, without flash "
                    f"attention: leave out {flag}"
                )


def whole(name: str, value: object, low: int, high: int) -> None:
    """Raises SettingError for what is not a whole number from `low` to `high`."""
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise SettingError(f"{name} is {value!r}: it must be a whole number from {low} to {high:,}")


def check_threads(threads: int | None) -> None:
    """Raises SettingError for an impossible number of threads."""
    if threads is not None:
        whole("the number of threads", threads, 1, MOST_THREADS)


def check_kv(kv_type: str, flash_attention: bool | None) -> None:
    """Raises SettingError for an unknown type of KV cache."""
    if kv_type not in get_args(KvType):
        raise SettingError(
            f"the KV cache type is {kv_type!r}: it must be one of {', '.join(get_args(KvType))}"
        )
    if kv_type not in FLOATS and flash_attention is False:
        raise SettingError(
            f"a {kv_type} KV cache needs flash attention: leave out --flash-attention off, or keep f16"
        )
