"""Which buffers tensors go to that do not follow their layers, as llama.cpp reads it."""

import ctypes
from collections.abc import Sequence
from typing import Any

from edgespec.errors import UnknownPlaceError
from edgespec.llama.ggml import libraries, local_devices
from edgespec.pairs.placement import Rule


class _BufferOfTensors(ctypes.Structure):
    """llama_model_tensor_buft_override, which llama-cpp-python does not bind."""

    _fields_ = [("pattern", ctypes.c_char_p), ("buffer_type", ctypes.c_void_p)]


def tensor_rules(rules: Sequence[Rule], machines: Sequence[int]) -> Any:
    """Returns llama.cpp's array of the rules; keep it as long as the model loads.

    machines: devices of other machines. Raises UnknownPlaceError for a place that does not exist here.
    """
    base, places = libraries()[1], {}
    for device in (*machines, *local_devices()):
        buffer = base.ggml_backend_dev_buffer_type(device)
        for named in (base.ggml_backend_dev_name(device), base.ggml_backend_buft_name(buffer)):
            places[named.decode("utf-8", "replace")] = buffer
    if wrong := next((place for _, place in rules if place not in places), None):
        raise UnknownPlaceError(
            f"--override-tensor names the place {wrong}, which is not here: there are {', '.join(places)}"
        )
    listed = (_BufferOfTensors * (len(rules) + 1))()  # the last one, of null pointers, ends it
    for i, (pattern, place) in enumerate(rules):
        listed[i] = _BufferOfTensors(pattern.encode(), places[place])
    return listed
