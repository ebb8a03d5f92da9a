"""Read a target's hidden states along with its logits, through llama.cpp.

An EAGLE-3 head needs the inputs of three layers (`taps`); an MTP block needs the state after the last layer,
which llama.cpp gives for architectures with MTP only (no taps); a small draft none (`taps` is None).
"""

import ctypes
from pathlib import Path
from typing import Any

import llama_cpp as api
import numpy as np
from llama_cpp import llama_cpp_ext as ext
from numpy.typing import NDArray

from edgespec_models.distill.native import Native

States = NDArray[np.float32]
SET_TAP = "_Z30llama_set_embeddings_layer_inpP13llama_contextjb"  # exported, but not bound in Python
GET_TAP = "_Z30llama_get_embeddings_layer_inpP13llama_contextj"


def unbound(name: str, arguments: list[Any], result: Any) -> Any:
    """Return a function of llama.cpp that llama-cpp-python does not bind."""
    try:
        found = getattr(api.llama_cpp._lib, name)
    except AttributeError:
        raise RuntimeError(f"this build of llama.cpp has no {name}: EAGLE-3 heads need it") from None
    found.argtypes, found.restype = arguments, result
    return found


def can_tap() -> bool:
    """Return whether this build of llama.cpp shows the inputs of layers."""
    return all(hasattr(api.llama_cpp._lib, name) for name in (SET_TAP, GET_TAP))


def rows_at(pointer: Any, count: int, width: int) -> States:
    """Return a copy of `count` rows of floats."""
    return np.array(np.ctypeslib.as_array(pointer, shape=(count, width)), np.float32)


class Hidden(Native):
    """Own a target whose every evaluation leaves hidden states too."""

    def __init__(
        self,
        path: Path,
        taps: tuple[int, ...] | None = (),
        *,
        context: int = 1024,
        threads: int = 1,
        sequences: int = 1,
        mtp: bool = False,
    ) -> None:
        super().__init__(path, context, threads, sequences, mtp)
        self.taps = taps
        self.width = int(api.llama_model_n_embd(self.model))
        if taps:
            of_context = [api.llama_context_p_ctypes, ctypes.c_uint32]
            switch = unbound(SET_TAP, [*of_context, ctypes.c_bool], None)
            self.tap = unbound(GET_TAP, of_context, ctypes.POINTER(ctypes.c_float))
            for layer in taps:
                switch(self.context, layer, True)
        elif taps is not None:
            ext.llama_set_embeddings_nextn(self.context, True, False)

    def states(self, count: int) -> States:
        """Return the states (count, F) of the tokens last evaluated; F is the width times the taps."""
        if self.taps is None:
            return np.zeros((count, 0), np.float32)
        if not self.taps:
            return rows_at(ext.llama_get_embeddings_nextn(self.context), count, self.width)
        parts = [rows_at(self.tap(self.context, layer), count, self.width) for layer in self.taps]
        return np.concatenate(parts, 1)
