"""Run a head through llama.cpp: the shipped file, on the states of its target.

A row stands for a token and the target's state before it. An MTP block is a second context on the target's
own model; an EAGLE-3 head is a model beside it, whose states go through its encoder first, and whose rows are
one position lower, since the first token has none.
"""

import ctypes
from pathlib import Path

import llama_cpp as api
import numpy as np
from llama_cpp import llama_cpp_ext as ext
from numpy.typing import NDArray

from edgespec_train.hidden import Hidden, States, rows_at

Row = NDArray[np.float32]


class HeadGuesser:
    """Own a head's context; `file` is an EAGLE-3 head, or None for the MTP block in the target's file."""

    def __init__(
        self, target: Hidden, file: Path | None = None, context: int = 2048, threads: int = 1
    ) -> None:
        self.target = target
        self.model = target.model
        wanted = api.llama_context_default_params()
        wanted.n_ctx = wanted.n_batch = wanted.n_ubatch = context
        wanted.n_threads = wanted.n_threads_batch = threads
        if file is None:
            wanted.ctx_type = api.LLAMA_CONTEXT_TYPE_MTP
        else:
            self.model = api.llama_model_load_from_file(str(file).encode(), api.llama_model_default_params())
            if not self.model:
                raise RuntimeError(f"llama.cpp cannot load {file}")
            wanted.ctx_other = target.context
        self.eagle = file is not None
        self.context = api.llama_init_from_model(self.model, wanted)
        ext.llama_set_embeddings_nextn(self.context, True, True)
        self.memory = api.llama_get_memory(self.context)
        self.last = 0  # of the last batch read
        self.first = 1 if self.eagle else 0  # the token that the first row stands for

    def close(self) -> None:
        api.llama_free(self.context)
        if self.eagle:
            api.llama_model_free(self.model)

    def forget(self, token: int) -> None:
        """Forget the rows of all tokens from this one on."""
        api.llama_memory_seq_rm(self.memory, 0, max(0, token - self.first), -1)

    def encoded(self, states: States) -> States:
        """Return what rows take as the target's states (n, F): EAGLE-3 has an encoder for them."""
        if not self.eagle:
            return states
        start = api.llama_memory_seq_pos_max(self.memory, 0) + 1  # the position is not used, but checked
        batch = filled(states, range(start, start + len(states)))
        code = api.llama_encode(self.context, batch)
        release(batch)
        if code != 0:
            raise RuntimeError(f"llama_encode returned {code} for {len(states)} states")
        return rows_at(ext.llama_get_embeddings_nextn(self.context), len(states), self.target.width)

    def read(self, tokens: list[int], states: States, start: int, every: bool = False) -> Row:
        """Evaluate tokens from the position `start` on, each with the (encoded) state before it.

        Returns the last row (1, V), or every one.
        """
        begin = start - self.first
        flagged = every or self.eagle  # eagle3's graph gives its first row, if only the last is flagged
        batch = filled(states, range(begin, begin + len(tokens)), flagged)
        batch.token = ids = (api.llama_token * len(tokens))(*tokens)
        code = api.llama_decode(self.context, batch)
        release(batch)
        del ids
        if code != 0:
            raise RuntimeError(f"llama_decode returned {code} for {len(tokens)} rows of a head")
        self.last = len(tokens) - 1
        rows = rows_at(api.llama_get_logits(self.context), len(tokens) if flagged else 1, self.target.size)
        return rows if every else rows[-1:]

    def own_state(self) -> States:
        """Return the head's own state for the next guess (1, D)."""
        row = ext.llama_get_embeddings_nextn_ith(self.context, self.last)
        return rows_at(row, 1, self.target.width)


def filled(states: States, positions: range, every: bool = True) -> api.llama_batch:
    """Return a batch of states (n, F), as yet without tokens."""
    count, width = states.shape
    batch = api.llama_batch_init(count, width, 1)
    batch.n_tokens = count
    ctypes.memmove(batch.embd, np.ascontiguousarray(states, np.float32).ctypes.data, count * width * 4)
    for i, position in enumerate(positions):
        batch.pos[i] = position
        batch.n_seq_id[i] = 1
        batch.seq_id[i][0] = 0
        batch.logits[i] = every or i == count - 1
    return batch


def release(batch: api.llama_batch) -> None:
    """Free a batch, but not the tokens in it, which are Python's."""
    batch.token = None  # type: ignore[assignment]
    api.llama_batch_free(batch)
