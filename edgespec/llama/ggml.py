"""The two ggml libraries beside llama.cpp's own, with the functions that llama-cpp-python does not bind."""

import ctypes
import os
from functools import cache
from pathlib import Path
from typing import Any, Literal

from llama_cpp._ctypes_extensions import load_shared_library
from llama_cpp.llama_cpp import _lib

Kind = Literal["cpu", "gpu", "igpu", "accelerator", "meta"]
_KINDS: tuple[Kind, ...] = ("cpu", "gpu", "igpu", "accelerator", "meta")  # by ggml's numbers
ABORT = ctypes.CFUNCTYPE(None, ctypes.c_char_p)  # called with what is wrong before the process ends


@cache
def libraries() -> tuple[Any, Any]:
    """Returns libggml and libggml-base, with signatures for the functions used here."""
    if os.name == "nt":  # where a handle knows its own functions alone
        folder = Path(_lib._name).parent
        ggml, base = load_shared_library("ggml", folder), load_shared_library("ggml-base", folder)
    else:  # by their file names they could be loaded again: a wheel contains copies, not links
        ggml = base = ctypes.CDLL(None, handle=_lib._handle)
    pointer, size, text = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p
    sizes = ctypes.POINTER(size)
    for library, name, returns, takes in (
        (ggml, "ggml_backend_dev_count", size, []),
        (ggml, "ggml_backend_dev_get", pointer, [size]),
        (ggml, "ggml_backend_reg_by_name", pointer, [text]),
        (base, "ggml_backend_dev_memory", None, [pointer, sizes, sizes]),
        (base, "ggml_backend_dev_type", ctypes.c_int, [pointer]),
        (base, "ggml_backend_dev_backend_reg", pointer, [pointer]),
        (base, "ggml_backend_dev_name", text, [pointer]),
        (base, "ggml_backend_dev_buffer_type", pointer, [pointer]),
        (base, "ggml_backend_buft_name", text, [pointer]),
        (base, "ggml_backend_dev_description", text, [pointer]),
        (base, "ggml_backend_reg_name", text, [pointer]),
        (base, "ggml_backend_reg_dev_count", size, [pointer]),
        (base, "ggml_backend_reg_dev_get", pointer, [pointer, size]),
        (base, "ggml_backend_reg_get_proc_address", pointer, [pointer, text]),
        (base, "ggml_set_abort_callback", pointer, [ABORT]),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = returns, takes
    return ggml, base


def local_devices(*kinds: Kind) -> list[int]:
    """Returns the devices that this build finds on this machine, as pointers; of these kinds, if any."""
    ggml = libraries()[0]
    found = [ggml.ggml_backend_dev_get(i) for i in range(ggml.ggml_backend_dev_count())]
    return [device for device in found if not kinds or kind_of(device) in kinds]


def kind_of(device: int) -> Kind:
    """Returns the kind of a device."""
    number = libraries()[1].ggml_backend_dev_type(device)
    return _KINDS[number] if number < len(_KINDS) else "accelerator"
