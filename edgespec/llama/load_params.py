"""The parameters by which llama.cpp loads a model."""

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import llama_cpp as C

from edgespec.errors import EngineError, SettingError
from edgespec.llama import huge_pages
from edgespec.llama.ggml import local_devices
from edgespec.llama.tensor_rules import tensor_rules
from edgespec.pairs.metadata_override import MetadataOverride
from edgespec.pairs.placement import Rule
from edgespec.system.self_test import self_test


def place(params: Any, devices: Sequence[int], tensor_split: Sequence[float], rules: Sequence[Rule]) -> None:
    """Says which devices take the layers, how much each, and what does not follow its layer."""
    places = [*devices, *(local_devices("gpu") or local_devices("igpu"))]
    if devices:
        listed = (ctypes.c_void_p * (len(places) + 1))(*places)  # a null pointer ends it
        params.devices = ctypes.cast(listed, ctypes.c_void_p)
    if tensor_split:
        params.tensor_split = _shares(tensor_split, len(places))
    if rules:
        params.tensor_buft_overrides = ctypes.cast(tensor_rules(rules, devices), ctypes.c_void_p)


def _shares(tensor_split: Sequence[float], n_devices: int) -> Any:
    """Returns the shares of the layers as llama.cpp reads them. Raises SettingError if they do not fit."""
    if len(tensor_split) != n_devices:
        raise SettingError(
            f"--tensor-split has {len(tensor_split)} parts for {n_devices} devices: give one for "
            "each, machines of --rpc first, then this one's graphics cards"
        )
    return (ctypes.c_float * C.llama_max_devices())(*tensor_split)


def overrides(metadata: Sequence[MetadataOverride]) -> Any:
    """Returns the values as llama.cpp reads them; one without a key ends them."""
    listed = (C.llama_model_kv_override * (len(metadata) + 1))()
    for one, (key, value) in zip(listed, metadata, strict=False):
        one.key = key.encode()
        if isinstance(value, bool):
            one.tag, one.value.val_bool = C.LLAMA_KV_OVERRIDE_TYPE_BOOL, value
        elif isinstance(value, int):
            one.tag, one.value.val_i64 = C.LLAMA_KV_OVERRIDE_TYPE_INT, value
        elif isinstance(value, float):
            one.tag, one.value.val_f64 = C.LLAMA_KV_OVERRIDE_TYPE_FLOAT, value
        else:
            one.tag, one.value.val_str = C.LLAMA_KV_OVERRIDE_TYPE_STR, value.encode()
    return listed


def may_repack() -> bool:
    """Returns whether models may be loaded with repacked weights. Raises EngineError if nothing helps."""
    found = self_test()
    if not found.sound:
        raise EngineError(found.advice)
    return found.extra_buffers


def load_progress(on_progress: Callable[[float], None] | None, in_huge_pages: bool) -> Any:
    """Returns what llama.cpp calls with the part of the weights that is loaded."""

    def progress(share: float, _: object) -> bool:
        if share == 0 and in_huge_pages:  # all memory is allocated, and nothing is read
            huge_pages.ask()
        if on_progress:
            on_progress(share)
        return True  # go on

    return C.llama_progress_callback(progress)
