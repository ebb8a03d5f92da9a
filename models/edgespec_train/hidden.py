"""Run a target's GGUF file through llama.cpp, and read its hidden states along with its logits.

A thin layer over llama-cpp-python's low-level API, for training and checks; not EdgeSpec's engine.

An EAGLE-3 head needs the inputs of three layers (`taps`); an MTP block needs the state after the last layer,
which llama.cpp gives for architectures with MTP only (no taps); Medusa heads need what the output matrix
reads (OUTPUT), for which llama.cpp computes the logits of all tokens; a small draft none (`taps` is None).
"""

import ctypes
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Literal, Protocol, Self

import llama_cpp as api
import numpy as np
from llama_cpp import llama_cpp_ext as ext
from numpy.typing import NDArray

States = NDArray[np.float32]
Taps = tuple[int, ...] | Literal["output"] | None
OUTPUT: Final = "output"
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


@api.llama_log_callback
def _silent(level: int, text: bytes, data: object) -> None:
    """Drop llama.cpp's log."""


class ThreadChoice(Protocol):
    """Choose how many threads evaluate, by how long evaluations take."""

    def choose(self, n: int) -> None:
        """Choose for an evaluation of n tokens."""

    def note(self, n: int, seconds: float) -> None:
        """Learn how long it took."""


OfContext = Callable[[Any], ThreadChoice]  # chooses for a context of llama.cpp


class Hidden:
    """Own a model whose every evaluation leaves hidden states, and one context of llama.cpp.

    It has `context` positions for each of `sequences`.
    """

    def __init__(
        self,
        path: Path,
        taps: Taps = (),
        *,
        context: int = 1024,
        threads: int = 1,
        sequences: int = 1,
        mtp: bool = False,
    ) -> None:
        api.llama_log_set(_silent, ctypes.c_void_p(0))
        api.llama_backend_init()
        wanted = api.llama_model_default_params()
        wanted.load_mtp = mtp  # the file's MTP block; without it a context of that type ends the process
        self.model = api.llama_model_load_from_file(str(path).encode(), wanted)
        if not self.model:
            raise RuntimeError(f"llama.cpp cannot load {path}")
        parameters = api.llama_context_default_params()
        parameters.n_ctx = context * sequences
        parameters.n_batch = parameters.n_ubatch = max(context, 1024)
        parameters.n_seq_max = sequences
        parameters.n_threads = parameters.n_threads_batch = threads
        self.context = api.llama_init_from_model(self.model, parameters)
        if not self.context:
            api.llama_model_free(self.model)
            raise RuntimeError(f"llama.cpp makes no context of {context * sequences:,} tokens for {path}")
        self.chosen: ThreadChoice | None = None
        self.vocab = api.llama_model_get_vocab(self.model)
        self.size = int(api.llama_vocab_n_tokens(self.vocab))
        self.taps = taps
        self.width = int(api.llama_model_n_embd(self.model))
        if taps == OUTPUT:
            api.llama_set_embeddings(self.context, True)
        elif taps:
            of_context = [api.llama_context_p_ctypes, ctypes.c_uint32]
            switch = unbound(SET_TAP, [*of_context, ctypes.c_bool], None)
            self.tap = unbound(GET_TAP, of_context, ctypes.POINTER(ctypes.c_float))
            for layer in taps:
                switch(self.context, layer, True)
        elif taps is not None:
            ext.llama_set_embeddings_nextn(self.context, True, False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *fault: object) -> None:
        api.llama_free(self.context)
        api.llama_model_free(self.model)

    def tokenise(self, text: str, special: bool = True, bos: bool = True) -> list[int]:
        """Split text into token ids; `special`: control tokens count as such, `bos`: one may begin it."""
        raw = text.encode()
        room = (api.llama_token * (len(raw) + 8))()
        count = api.llama_tokenize(self.vocab, raw, len(raw), room, len(room), bos, special)
        if count < 0:
            raise RuntimeError(f"llama_tokenize wanted room for {-count} tokens")
        return list(room[:count])

    def ends(self) -> set[int]:
        """Return the tokens that end a text."""
        return {token for token in range(self.size) if api.llama_vocab_is_eog(self.vocab, token)}

    def forget(self, start: int = 0, sequence: int = 0) -> None:
        """Forget a sequence's positions from `start` on."""
        api.llama_memory_seq_rm(api.llama_get_memory(self.context), sequence, start, -1)

    def logits(self, ids: list[int], start: int = 0) -> NDArray[np.float32]:
        """Evaluate ids of sequence 0 at the positions from `start` on; return a copy of all rows (T, V)."""
        return self.evaluate([(token, start + i, 0, True) for i, token in enumerate(ids)])

    def evaluate(self, entries: list[tuple[int, int, int, bool]]) -> NDArray[np.float32]:
        """Evaluate (token, position, sequence, wanted); return a copy of the wanted rows (n, V) in order."""
        batch = api.llama_batch_init(len(entries), 0, 1)
        batch.n_tokens = len(entries)
        for i, (token, position, sequence, wanted) in enumerate(entries):
            batch.token[i] = token
            batch.pos[i] = position
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = sequence
            batch.logits[i] = wanted
        if self.chosen:
            self.chosen.choose(len(entries))
        begun = time.perf_counter()
        code = api.llama_decode(self.context, batch)
        api.llama_batch_free(batch)
        if code != 0:
            raise RuntimeError(f"llama_decode returned {code} for {len(entries)} tokens")
        chosen = [i for i, entry in enumerate(entries) if entry[3]]
        count = len(entries if self.taps == OUTPUT else chosen)
        rows = np.ctypeslib.as_array(api.llama_get_logits(self.context), shape=(count, self.size))
        if count > len(chosen):
            rows = rows[chosen]
        if self.chosen:
            self.chosen.note(len(entries), time.perf_counter() - begun)
        return np.array(rows, np.float32)

    def states(self, count: int) -> States:
        """Return the states (count, F) of the tokens last evaluated; F is the width times the taps."""
        if self.taps is None:
            return np.zeros((count, 0), np.float32)
        if self.taps == OUTPUT:
            return rows_at(api.llama_get_embeddings(self.context), count, self.width)
        if not self.taps:
            return rows_at(ext.llama_get_embeddings_nextn(self.context), count, self.width)
        parts = [rows_at(self.tap(self.context, layer), count, self.width) for layer in self.taps]
        return np.concatenate(parts, 1)
