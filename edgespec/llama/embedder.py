"""An embedding model: texts become vectors of length 1, several in one evaluation. A reranker is one, too:
query and document together become a single number."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import llama_cpp as C
import numpy as np
from numpy.typing import NDArray

from edgespec.errors import EngineError, ModelUnsupportedError, NoRoomError, SettingError
from edgespec.llama.batch import Batch
from edgespec.llama.log import last_complaint
from edgespec.llama.model import Model
from edgespec.system.cores import threads_wanted

LONGEST = 2048  # tokens of one text: attention without order needs all of it in one evaluation
AT_ONCE = 32  # texts in one evaluation
RANK = C.LLAMA_POOLING_TYPE_RANK
POOLED = (C.LLAMA_POOLING_TYPE_MEAN, C.LLAMA_POOLING_TYPE_CLS, C.LLAMA_POOLING_TYPE_LAST, RANK)


class Embedder:
    """A loaded model. Raises what `Model` does."""

    def __init__(self, path: Path) -> None:
        """path: a GGUF file that says how the rows of a text become one (`pooling_type`)."""
        self.model = Model(path, head=True)
        self._handle: Any = None
        try:
            self.longest = min(self.model.n_ctx_train or LONGEST, LONGEST)
            params = C.llama_context_default_params()
            params.n_ctx = params.n_batch = params.n_ubatch = self.longest
            params.n_seq_max, params.kv_unified, params.embeddings = AT_ONCE, True, True
            params.n_threads = params.n_threads_batch = threads_wanted()
            self._handle = C.llama_init_from_model(self.model.handle, params)
            if not self._handle:
                raise NoRoomError(f"{path.name} cannot be used for embeddings: {last_complaint()}")
            pooling = C.llama_pooling_type(self._handle)
            if pooling not in POOLED:
                raise ModelUnsupportedError(
                    f"{path.name} does not say how a text becomes one vector: name an embedding model"
                )
            self._ranks = pooling == RANK
            self.width = 1 if self._ranks else int(C.llama_model_n_embd_out(self.model.handle))
            self._batch = Batch(self.longest, self.longest)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Frees context and model."""
        if self._handle:
            C.llama_free(self._handle)
            self._handle = None
        self.model.close()

    def tokens(self, text: str | Sequence[int] | Sequence[str], *, truncate: bool) -> NDArray[np.int32]:
        """Returns a text's tokens, int32, or those of query and document. truncate: the end of a longer one
        is left out.

        Raises SettingError for one that is too long, and for tokens that do not exist.
        """
        if isinstance(text, str):
            found = self.model.tokenize(text.encode("utf-8", "replace"), special=True, add_end=True)
        elif text and isinstance(text[0], str):
            found = self._pair(*map(str, text))
        else:
            found = np.asarray(text, np.int32)
            if found.size and not 0 <= found.min() <= found.max() < self.model.n_vocab:
                raise SettingError(f"a token is outside of the model's {self.model.n_vocab:,}")
        if not (len(text) and found.size):
            raise SettingError("a text is empty: leave it out")
        if found.size > self.longest and not truncate:
            sentence = f"a text has {found.size:,} tokens, and {self.longest:,} are read at once: shorten it"
            raise SettingError(sentence)
        return found[: self.longest]

    def _pair(self, query: str, document: str) -> NDArray[np.int32]:
        """Returns the tokens of both as llama-server writes them: in the model's own form, if it has one."""

        def read(text: str, *, special: bool = False) -> NDArray[np.int32]:
            return self.model.tokenize(text.encode("utf-8", "replace"), special=special, add_bos=False)

        if form := C.llama_model_chat_template(self.model.handle, b"rerank"):
            given = {"{query}": query, "{document}": document}
            pattern = "|".join(map(re.escape, given))
            return read(re.sub(pattern, lambda found: given[found[0]], form.decode()), special=True)
        vocab = C.llama_model_get_vocab(self.model.handle)
        bos, eos, sep = C.llama_vocab_bos(vocab), C.llama_vocab_eos(vocab), C.llama_vocab_sep(vocab)
        begin = [bos] * C.llama_vocab_get_add_bos(vocab)
        end = [sep if eos < 0 else eos] * C.llama_vocab_get_add_eos(vocab)
        between = [*end, *[sep] * C.llama_vocab_get_add_sep(vocab)]
        return np.concatenate([begin, read(query), between, read(document), end]).astype(np.int32)

    def vectors(self, texts: Sequence[NDArray[np.int32]]) -> NDArray[np.float32]:
        """Returns a vector for each text: float32, (len(texts), width). Raises EngineError."""
        return np.concatenate(
            [np.empty((0, self.width), np.float32), *map(self._evaluated, self._parts(texts))]
        )

    def _parts(self, texts: Sequence[NDArray[np.int32]]) -> Iterator[list[NDArray[np.int32]]]:
        """Yields as many texts as fit into one evaluation."""
        part: list[NDArray[np.int32]] = []
        for text in texts:
            if part and (len(part) == AT_ONCE or sum(one.size for one in part) + text.size > self.longest):
                yield part
                part = []
            part.append(text)
        if part:
            yield part

    def _evaluated(self, texts: Sequence[NDArray[np.int32]]) -> NDArray[np.float32]:
        if memory := C.llama_get_memory(self._handle):
            C.llama_memory_clear(memory, True)
        self._batch.fill([(seq, text.tobytes(), text.size, 0) for seq, text in enumerate(texts)])
        if code := C.llama_decode(self._handle, self._batch.struct):
            raise EngineError(f"llama.cpp could not embed {self._batch.n_tokens} tokens (code {code})")
        rows = np.array([self._row(seq) for seq in range(len(texts))], np.float32)  # (texts, width)
        if self._ranks:
            return rows
        lengths: NDArray[np.float32] = np.linalg.norm(rows, axis=1, keepdims=True)
        return np.divide(rows, np.maximum(lengths, 1e-12), dtype=np.float32)

    def _row(self, seq: int) -> NDArray[np.float32]:
        row = C.llama_get_embeddings_seq(self._handle, seq)
        if not row:
            raise EngineError("llama.cpp returned no vector for a text")
        values: NDArray[np.float32] = np.ctypeslib.as_array(row, (self.width,)).copy()
        return values
