"""llama.cpp from Python: models; `context.py` has the contexts.

llama.cpp aborts the process on a wrong argument, so every value is checked here first.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import llama_cpp as C
import numpy as np
from numpy.typing import NDArray

from edgespec.core.fill_tokens import FillTokens
from edgespec.errors import (
    ModelFileError,
    ModelUnsupportedError,
    PairMismatchError,
    SettingError,
)
from edgespec.llama.deep_stack import on_a_deep_stack
from edgespec.llama.load_params import load_progress, may_repack, overrides, place
from edgespec.llama.log import complaints, last_complaint, listening, refuse_full_device
from edgespec.pairs.adapters import Adapter
from edgespec.pairs.check import header_errors
from edgespec.pairs.metadata_override import MetadataOverride
from edgespec.pairs.placement import Rule
from edgespec.system.closing import Closing
from edgespec_models.gguf.header import check_beginning
from edgespec_models.gguf.vocabulary import Vocabulary

_LAYER = re.compile(r"load_tensors: layer +\d+ assigned to device (\S+),")
_ABOUT_PATTERN = re.compile("regex|expression")  # what std::regex_error says
PROCESSOR = "CPU"  # the device, as llama.cpp names it
LONG_TEXT = 1000  # bytes; longer texts are tokenized on a deep stack
_TOKENISERS = {1: "SPM", 2: "BPE", 3: "WPM", 4: "UGM", 5: "RWKV", 6: "PLaMo-2"}


class Model(Closing):
    """A GGUF file, loaded. Close it, or use it in a `with`.

    Raises ModelFileError for a file that is missing or broken, ModelUnsupportedError for one that cannot
    generate text, SettingError for nonsense arguments.
    """

    _handle: Any = None

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        n_gpu_layers: int = -1,
        vocab_only: bool = False,
        no_alloc: bool = False,
        mtp: bool = False,
        head: bool = False,
        extra_buffers: bool | None = None,
        in_huge_pages: bool = False,
        devices: Sequence[int] = (),
        tensor_split: Sequence[float] = (),
        rules: Sequence[Rule] = (),
        metadata: Sequence[MetadataOverride] = (),
        on_progress: Callable[[float], None] | None = None,
    ) -> None:
        """path: the file (the first one of a split model). n_gpu_layers: how many layers to put on the GPU
        if there is one; negative means all. vocab_only: read metadata and vocabulary, no weights.
        no_alloc: plan all memory and take none, to learn how much it would be.
        mtp: load its MTP blocks, which it must have. head: it is one, and generates no text by itself.
        extra_buffers: let llama.cpp repack weights for this processor; None: if the self-test passed so.
        in_huge_pages: read the weights into huge pages instead of mapping the file (`huge_pages.py`).
        devices: of other machines (`remote.devices`), placed before this one's graphics cards.
        tensor_split: the share of the layers for each of all these; () is by their free memory.
        rules: where tensors lie that do not follow their layers.
        metadata: what llama.cpp is to read instead of what the file says.
        on_progress: called with the part of the weights that is loaded, 0 to 1."""
        self.path = Path(path)
        if not isinstance(n_gpu_layers, int) or not -1 <= n_gpu_layers <= 10_000:
            raise SettingError(
                f"n_gpu_layers is {n_gpu_layers!r}: it must be a whole number from -1 (all) to 10000"
            )
        with header_errors():  # the commonest mistakes are named before llama.cpp sees the file
            check_beginning(self.path)
        params = C.llama_model_default_params()
        place(params, devices, tensor_split, rules)
        self.rules, self.overridden = tuple(rules), tuple(metadata)
        if metadata:
            params.kv_overrides = ctypes.cast(overrides(metadata), type(params.kv_overrides))
        params.n_gpu_layers, params.vocab_only = n_gpu_layers, vocab_only
        self.adapters: list[tuple[Path, Any]] = []  # with their pointers
        self.mtp = params.load_mtp = mtp
        params.use_extra_bufts = extra_buffers is not False and (vocab_only or extra_buffers or may_repack())
        self.no_alloc = params.no_alloc = no_alloc
        if no_alloc or in_huge_pages:
            params.load_mode = C.LLAMA_LOAD_MODE_NONE  # with a mapped file, no_alloc aborts the process
        if on_progress or in_huge_pages:
            params.progress_callback = load_progress(on_progress, in_huge_pages)
        self.layers = Counter(self._load(params))  # by device
        try:
            self.metadata: Mapping[str, str] = self._read_metadata()
            if not head:
                self._refuse_unsupported()
        except BaseException:
            self.close()
            raise
        self.n_vocab: int = C.llama_vocab_n_tokens(self._vocab)
        self._pieces: dict[tuple[int, bool], bytes] = {}

    def _load(self, params: Any) -> list[str]:
        """Loads the file; returns the device of each layer."""
        complaints.clear()
        with listening() as lines:
            self._handle = C.llama_model_load_from_file(os.fsencode(self.path), params)
        if not self._handle:
            refuse_full_device(lines, self.path.name)
            if self.rules and _ABOUT_PATTERN.search(last_complaint()):
                raise SettingError(
                    f"llama.cpp cannot read a pattern of --override-tensor: {last_complaint()}"
                )
            raise ModelFileError(
                f"llama.cpp cannot load {self.path}: {last_complaint()}; "
                "the file may be damaged (download it again) or too new for this version"
            )
        return [match[1] for line in lines if (match := _LAYER.match(line))]

    def close(self) -> None:
        """Frees the weights. Close contexts of this model first."""
        if self._handle:
            C.llama_model_free(self._handle)
            self._handle = None

    @property
    def handle(self) -> Any:
        """The llama_model pointer."""
        if not self._handle:
            raise SettingError(f"{self.path.name} has been closed: load it again")
        return self._handle

    @property
    def _vocab(self) -> Any:
        return C.llama_model_get_vocab(self.handle)

    def _read_metadata(self) -> dict[str, str]:
        pairs = {}
        for i in range(C.llama_model_meta_count(self._handle)):
            key = _grown(
                lambda buffer, size, i=i: C.llama_model_meta_key_by_index(self._handle, i, buffer, size)
            )
            pairs[key] = _grown(
                lambda buffer, size, i=i: C.llama_model_meta_val_str_by_index(self._handle, i, buffer, size)
            )
        return pairs

    def _refuse_unsupported(self) -> None:
        name, kind = self.path.name, C.llama_vocab_type(self._vocab)
        if kind == C.LLAMA_VOCAB_TYPE_NONE:
            raise ModelUnsupportedError(f"{name} has no vocabulary: text cannot be turned into tokens for it")
        if kind not in _TOKENISERS:
            raise ModelUnsupportedError(
                f"{name} has an unknown tokenizer (type {kind}): a newer EdgeSpec may know it"
            )
        if C.llama_model_has_encoder(self._handle) or not C.llama_model_has_decoder(self._handle):
            raise ModelUnsupportedError(
                f"{name} is an encoder model: it does not generate text token by token"
            )
        if C.llama_model_is_diffusion(self._handle):
            raise ModelUnsupportedError(
                f"{name} is a diffusion model: it does not generate text token by token"
            )
        if self.metadata.get(f"{self.architecture}.attention.causal") == "false":
            raise ModelUnsupportedError(f"{name} is an embedding model: it does not generate text")

    def add_adapters(self, adapters: Sequence[Adapter]) -> None:
        """Loads LoRA adapters, which are freed with it. Its contexts, made later, have room for them.

        Raises PairMismatchError for one that llama.cpp refuses.
        """
        for adapter in adapters:
            complaints.clear()
            loaded = C.llama_adapter_lora_init(self.handle, os.fsencode(adapter.path))
            if not loaded:
                raise PairMismatchError(
                    f"{Path(adapter.path).name} is no adapter for {self.path.name}: {last_complaint()}; name "
                    "one that was made for this model"
                )
            self.adapters.append((Path(adapter.path), loaded))

    @property
    def on_gpu(self) -> bool:
        """True if layers of it are on a graphics card."""
        return bool(self.layers.keys() - {PROCESSOR})

    @property
    def all_on_gpu(self) -> bool:
        """True if the processor has none of its layers, nor tensors of them."""
        return self.on_gpu and PROCESSOR not in self.layers and not self.rules

    @property
    def architecture(self) -> str:
        return self.metadata.get("general.architecture", "")

    @property
    def name(self) -> str:
        return self.metadata.get("general.name", self.path.stem)

    @property
    def chat_template(self) -> str | None:
        """The Jinja text of the chat template in the file."""
        return self.metadata.get("tokenizer.chat_template")

    @property
    def tool_template(self) -> str | None:
        """The Jinja text of the chat template for conversations with tools, if the file has one."""
        return self.metadata.get("tokenizer.chat_template.tool_use")

    @cached_property
    def n_ctx_train(self) -> int:
        return int(C.llama_model_n_ctx_train(self.handle))

    @cached_property
    def has_recurrent_state(self) -> bool:
        """True for recurrent and hybrid models, whose memory cannot simply forget its last tokens."""
        return bool(C.llama_model_is_recurrent(self.handle) or C.llama_model_is_hybrid(self.handle))

    @cached_property
    def window(self) -> int:
        """How many last tokens sliding-window layers see; 0 if every layer sees all."""
        return int(C.llama_model_n_swa(self.handle))

    @cached_property
    def vocabulary(self) -> Vocabulary:
        vocab = self._vocab
        return Vocabulary(
            kind=_TOKENISERS[C.llama_vocab_type(vocab)],
            texts=[C.llama_vocab_get_text(vocab, i) for i in range(self.n_vocab)],
            add_bos=bool(C.llama_vocab_get_add_bos(vocab)),
            bos=C.llama_vocab_bos(vocab),
            add_eos=bool(C.llama_vocab_get_add_eos(vocab)),
            eos=C.llama_vocab_eos(vocab),
        )

    @property
    def bos_text(self) -> str:
        """The text of the start token, "" if there is none."""
        return self._token_text(C.llama_vocab_bos(self._vocab))

    @property
    def eos_text(self) -> str:
        """The text of the end token, "" if there is none."""
        return self._token_text(C.llama_vocab_eos(self._vocab))

    def _token_text(self, token: int) -> str:
        return C.llama_vocab_get_text(self._vocab, token).decode("utf-8", "replace") if token >= 0 else ""

    @cached_property
    def end_tokens(self) -> frozenset[int]:
        """Every token that ends a generation (end of text, of turn, of message)."""
        return frozenset(i for i in range(self.n_vocab) if C.llama_vocab_is_eog(self._vocab, i))

    @cached_property
    def control(self) -> NDArray[np.bool_]:
        """Which tokens are control tokens: (n_vocab,)."""
        attributes = (C.llama_vocab_get_attr(self._vocab, i) for i in range(self.n_vocab))
        return np.fromiter((bool(one & C.LLAMA_TOKEN_ATTR_CONTROL) for one in attributes), bool, self.n_vocab)

    @cached_property
    def fill_tokens(self) -> FillTokens | None:
        """The tokens between which it fills in text; None if it was not trained for that."""
        vocab = self._vocab
        found = FillTokens(
            prefix=C.llama_vocab_fim_pre(vocab),
            suffix=C.llama_vocab_fim_suf(vocab),
            middle=C.llama_vocab_fim_mid(vocab),
            repository=C.llama_vocab_fim_rep(vocab),
            separator=C.llama_vocab_fim_sep(vocab),
        )
        return None if min(found.prefix, found.suffix, found.middle) < 0 else found

    def tokenize(
        self, text: bytes, *, special: bool, add_bos: bool = True, add_end: bool = False
    ) -> NDArray[np.int32]:
        """Returns the token ids of UTF-8 bytes: (n,) int32.

        special: control tokens spelt out in the text become those tokens (templates); else they stay text.
        add_bos: put the start token first if the model wants one. add_end: put both around the text if it
        wants them, as llama.cpp does for embeddings.
        """
        if len(text) > 2**30:
            raise SettingError(f"the text has {len(text):,} bytes: at most 1 GiB can be turned into tokens")
        if len(text) > LONG_TEXT:
            return on_a_deep_stack(lambda: self._tokenize(text, special, add_bos, add_end), len(text))
        return self._tokenize(text, special, add_bos, add_end)

    def _tokenize(self, text: bytes, special: bool, add_bos: bool, add_end: bool) -> NDArray[np.int32]:
        bos = C.llama_vocab_bos(self._vocab)
        starts = add_bos and not add_end and bos >= 0 and C.llama_vocab_get_add_bos(self._vocab)
        start = [bos] if starts else []
        room = len(text) + 8
        while True:  # llama.cpp's own add_special would also put an end token after the text
            ids = np.empty(room, np.int32)
            pointer = ids.ctypes.data_as(ctypes.POINTER(ctypes.c_int32))
            n = C.llama_tokenize(self._vocab, text, len(text), pointer, room, add_end, special)
            if n >= 0:
                return np.concatenate([np.array(start, np.int32), ids[:n]])
            room = -n

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """Returns the bytes of one token; control tokens are empty unless `special`."""
        known = self._pieces.get((token, special))
        if known is None:
            known = self._pieces[token, special] = self._piece(self._checked(token), special)
        return known

    def _piece(self, token: int, special: bool) -> bytes:
        room = 32
        while True:
            buffer = (ctypes.c_char * room)()  # create_string_buffer audits: slow between evaluations
            n = C.llama_token_to_piece(self._vocab, token, buffer, room, 0, special)
            if n >= 0:
                return buffer.raw[:n]
            room = -n

    def _checked(self, token: int) -> int:
        if not 0 <= token < self.n_vocab:
            raise SettingError(f"token {token} does not exist: {self.path.name} has {self.n_vocab:,} tokens")
        return token

    def detokenize(self, tokens: NDArray[np.int32] | list[int], *, special: bool = False) -> bytes:
        """Returns the bytes of many tokens, one after another."""
        return b"".join(self.piece(int(token), special=special) for token in tokens)


def _grown(call: Any) -> str:
    """Calls a C function that fills (buffer, size) and returns the needed length, with enough room."""
    size = 256
    while True:
        buffer = ctypes.create_string_buffer(size)
        wanted = call(buffer, size)
        if wanted < size:
            return buffer.value.decode("utf-8", "replace") if wanted >= 0 else ""
        size = wanted + 1
