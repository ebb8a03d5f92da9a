"""Where hidden rows come out of llama.cpp: after the last layer, before the output, or before chosen layers.

llama-cpp-python binds the rows after the last layer (`nextn`). Those before a layer come from
functions that it does not bind, under the names that compilers of Linux and macOS give them.
"""

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import llama_cpp as C
import numpy as np
from numpy.typing import NDArray

from edgespec.errors import ModelUnsupportedError

Tap = Callable[[int], NDArray[np.float32]]  # tokens of the last evaluation -> their rows (n, width)
Switch = Callable[[bool], None]  # whether the next evaluation is tapped
_SET_LAYER = "_Z30llama_set_embeddings_layer_inpP13llama_contextjb"
_GET_LAYER = "_Z30llama_get_embeddings_layer_inpP13llama_contextj"
_Floats = ctypes.POINTER(ctypes.c_float)


def tap_end(handle: Any, width: int, *, outputs_only: bool = False) -> Tap:
    """Makes a context keep its last layer's output, of every token or of those that want logits.

    width: floats of one row. Raises ModelUnsupportedError if this build of llama.cpp does not show it.
    """
    try:
        from llama_cpp import llama_cpp_ext
    except (ImportError, AttributeError):  # the module looks its symbols up when it is imported
        raise ModelUnsupportedError(
            "this build of llama.cpp does not show its hidden states, which heads guess from: "
            "use a draft model instead, or install llama-cpp-python 0.3.36"
        ) from None
    llama_cpp_ext.llama_set_embeddings_nextn(handle, True, outputs_only)
    return lambda n: _rows(llama_cpp_ext.llama_get_embeddings_nextn(handle), n, width)


def tap_outputs(handle: Any, width: int) -> tuple[Tap, Switch]:
    """Makes a context keep what its output matrix reads, where that is switched on: it computes all logits.

    width: floats of one row. Works for every architecture and build.
    """

    def switch(on: bool) -> None:
        C.llama_set_embeddings(handle, on)

    return lambda n: _rows(C.llama_get_embeddings(handle), n, width), switch


def tap_layers(handle: Any, layers: Sequence[int], width: int) -> Tap:
    """Makes a context keep the input of some layers; a row has one part of `width` floats for each of them.

    Raises ModelUnsupportedError if this build of llama.cpp does not show them.
    """
    library: Any = C.llama_cpp._lib
    try:
        switch, get = getattr(library, _SET_LAYER), getattr(library, _GET_LAYER)
    except AttributeError:
        raise ModelUnsupportedError(
            "this build of llama.cpp does not show what goes into its layers, which EAGLE-3 and DFlash heads "
            "guess from: use a draft model instead, or run on Linux or macOS"
        ) from None
    switch.argtypes, switch.restype = [C.llama_context_p_ctypes, ctypes.c_uint32, ctypes.c_bool], None
    get.argtypes, get.restype = [C.llama_context_p_ctypes, ctypes.c_uint32], _Floats
    for layer in layers:
        switch(handle, layer, True)
    return lambda n: np.concatenate([_rows(get(handle, layer), n, width) for layer in layers], 1)


def _rows(pointer: Any, n: int, width: int) -> NDArray[np.float32]:
    """Returns a view of n rows, valid until the next evaluation."""
    if not pointer:
        raise ModelUnsupportedError(
            "llama.cpp gave no hidden rows of this target: heads cannot guess for its architecture"
        )
    return np.ctypeslib.as_array(pointer, shape=(n, width))
