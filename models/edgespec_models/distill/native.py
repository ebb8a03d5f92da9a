"""Run a GGUF file through llama.cpp itself, for checks and measurements only.

A thin layer over llama-cpp-python's low-level API, for training and checks; not EdgeSpec's engine.
"""

import ctypes
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import llama_cpp as api
import numpy as np
from numpy.typing import NDArray


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


class Native:
    """Own one loaded model and one context of llama.cpp; `context` positions for each of `sequences`."""

    def __init__(
        self, path: Path, context: int = 2048, threads: int = 2, sequences: int = 1, mtp: bool = False
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

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
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
        count = sum(entry[3] for entry in entries)
        rows = np.ctypeslib.as_array(api.llama_get_logits(self.context), shape=(count, self.size))
        if self.chosen:
            self.chosen.note(len(entries), time.perf_counter() - begun)
        return np.array(rows, np.float32)
