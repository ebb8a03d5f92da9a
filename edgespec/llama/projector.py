"""A projector: the file next to a model that turns pictures and sounds into rows that the model reads.

llama.cpp's `mtmd` evaluates it. Its assertions end the process, some of them only while encoding: use it in a
child (`projector_child.py`).
"""

import ctypes
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import llama_cpp as C
import numpy as np
from numpy.typing import NDArray

from edgespec.core.sound import is_sound
from edgespec.errors import EngineError, ModelFileError, ModelUnsupportedError, SettingError
from edgespec.llama.devices import cards
from edgespec.llama.log import complaints, last_complaint, listening, take_log
from edgespec.llama.model import Model
from edgespec.system.builds import REBUILD
from edgespec.system.cores import threads_wanted
from edgespec_models.fit.need import RAM, Parts

TEXT, IMAGE = 0, 1  # kinds of chunks
WIDEST = 4096  # pixels; the sizes for which it is asked how many cells a picture may take
TRIAL = 64  # pixels of the picture with which a projector is tried when it is loaded
_BACKEND = re.compile(r"CLIP using (\S+) backend")
_WEIGHTS = re.compile(r"model size: +([0-9.]+) MiB")
_COMPUTE = re.compile(r"(\S+) compute buffer size = +([0-9.]+) MiB")
Piece = dict[str, Any]  # {"tokens": ids}, or what `medium.Medium` has


def loaded(path: Path, model: Any, *, on_gpu: bool) -> tuple[Any, dict[str, Parts]]:
    """Returns a projector's handle, and what it takes on each device. model: its target's handle, or None.

    Buffers for a large picture are reserved, but none is encoded. Raises ModelFileError.
    """
    mtmd = mtmd_cpp()
    take_log(mtmd)
    params = mtmd.mtmd_context_params_default()
    params.use_gpu, params.n_threads = on_gpu, threads_wanted()
    complaints.clear()
    with listening() as log:
        handle = mtmd.mtmd_init_from_file(os.fsencode(path), model, params)
    if not handle:
        why = " ".join(last_complaint().split())
        raise ModelFileError(f"llama.cpp cannot load the projector {path}: {why}")
    return handle, _memory(log)


def _memory(log: Iterable[str]) -> dict[str, Parts]:
    """Returns what llama.cpp says of the encoders that it loads, one for pictures, one for sound."""
    places, found = {card.name for card in cards()}, dict[str, Parts]()
    reserved: dict[tuple[int, str], int] = {}
    where, encoder = RAM, 0
    for line in log:
        if match := _BACKEND.search(line):
            where, encoder = match[1] if match[1] in places else RAM, encoder + 1
        elif match := _WEIGHTS.search(line):
            found[where] = found.get(where, Parts()) + Parts(weights=round(float(match[1]) * 2**20))
        elif match := _COMPUTE.search(line):  # twice, if it goes without flash attention
            device = match[1] if match[1] in places else RAM
            reserved[encoder, device] = round(float(match[2]) * 2**20)
    for (_, device), size in reserved.items():
        found[device] = found.get(device, Parts()) + Parts(compute=size)
    return found


def mtmd_cpp() -> Any:
    """Returns llama-cpp-python's module that reads pictures and sounds. Raises ModelUnsupportedError."""
    try:
        from llama_cpp import mtmd_cpp
    except (ImportError, OSError, AttributeError, FileNotFoundError, RuntimeError):
        raise ModelUnsupportedError(
            f"this build of llama.cpp reads no pictures: build it whole, as {REBUILD} says"
        ) from None
    return mtmd_cpp


class Projector:
    """A loaded projector, tried with a small picture or sound.

    Raises ModelFileError for what is none, ModelUnsupportedError for one of another model.
    """

    def __init__(self, path: Path, target: Path, *, on_gpu: bool) -> None:
        """target: the model that is to read, of which only the vocabulary and the sizes are loaded."""
        self.path, self._mtmd = path, mtmd_cpp()
        self._model = Model(target, n_gpu_layers=0, no_alloc=True, head=True)
        handle, self.memory = loaded(path, self._model.handle, on_gpu=on_gpu)
        self._handle = handle
        self.sees, self.hears = (
            bool(can(handle)) for can in (self._mtmd.mtmd_support_vision, self._mtmd.mtmd_support_audio)
        )
        self._sections = 4 if self._mtmd.mtmd_decode_use_mrope(handle) else 1
        self._numbered = self._sections == 4 and self.sees and self._numbers_pictures()
        self._width = int(C.llama_model_n_embd_inp(self._model.handle))
        self.at_once = self._largest_at_once() if self.sees else 0
        if self.sees:
            self.picture(TRIAL, TRIAL, bytes(3 * TRIAL * TRIAL))
        if self.hears:
            with self._bitmap_of_sound(np.zeros(16_000, np.float32)) as bitmap:
                self._pieces(bitmap)

    def _numbers_pictures(self) -> bool:
        """Returns whether positions say which of several pictures one is, as HunyuanVL's do."""
        with (
            self._owned(self._mtmd.mtmd_bitmap_init(TRIAL, TRIAL, None)) as one,
            self._chunks(one, one) as chunks,
        ):
            found = [self._places(chunk, kind, n, 0) for chunk, kind, n in chunks if kind == IMAGE]
        return not np.array_equal(found[0], found[1])

    def _largest_at_once(self) -> int:
        """Returns how many cells the largest picture takes that must be evaluated at once; 0 if none must."""
        largest = 0
        for width, height in ((WIDEST, WIDEST), (WIDEST, WIDEST // 8), (WIDEST // 8, WIDEST)):
            with (
                self._owned(self._mtmd.mtmd_bitmap_init(width, height, None)) as bitmap,
                self._chunks(bitmap) as chunks,
            ):
                for chunk, kind, n in chunks:
                    if kind != TEXT and self._mtmd.mtmd_decode_use_non_causal(self._handle, chunk):
                        largest = max(largest, n)
        return largest

    def picture(self, width: int, height: int, rgb: bytes) -> list[Piece]:
        """Returns the pieces of a picture. Raises EngineError."""
        data = (ctypes.c_uint8 * len(rgb)).from_buffer_copy(rgb)
        with self._owned(self._mtmd.mtmd_bitmap_init(width, height, data)) as bitmap:
            return self._pieces(bitmap)

    def sound(self, file: bytes) -> list[Piece]:
        """Returns the pieces of a sound, a WAV or MP3 file. Raises SettingError for what is none."""
        mtmd = self._mtmd
        if not is_sound(file):
            raise SettingError("the sound is no WAV or MP3 file: convert it to one")
        data = (ctypes.c_ubyte * len(file)).from_buffer_copy(file)
        opt = mtmd.mtmd_helper_init_opt_default()
        made = mtmd.mtmd_helper_bitmap_init_from_buf_wrapper(self._handle, data, len(file), False, opt)
        if not made.bitmap:
            raise SettingError(f"the sound cannot be read: {last_complaint()}")
        with self._owned(made.bitmap) as bitmap:
            if mtmd.mtmd_bitmap_get_n_bytes(bitmap) <= 4:  # one sample: llama.cpp would end the process
                raise SettingError("the sound is empty")
            return self._pieces(bitmap)

    def _bitmap_of_sound(self, samples: NDArray[np.float32]) -> Any:
        data = samples.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        return self._owned(self._mtmd.mtmd_bitmap_init_from_audio(samples.size, data))

    @contextmanager
    def _owned(self, bitmap: Any) -> Iterator[Any]:
        try:
            yield bitmap
        finally:
            self._mtmd.mtmd_bitmap_free(bitmap)

    @contextmanager
    def _chunks(self, *media: Any) -> Iterator[list[tuple[Any, int, int]]]:
        """Gives the chunks of media: each with its kind and its number of tokens."""
        mtmd, marks = self._mtmd, self._mtmd.mtmd_default_marker() * len(media)
        text = mtmd.mtmd_input_text(marks, len(marks), False, True)
        chunks, bitmaps = mtmd.mtmd_input_chunks_init(), (mtmd.mtmd_bitmap_p_ctypes * len(media))(*media)
        try:
            complaints.clear()
            if mtmd.mtmd_tokenize(self._handle, chunks, ctypes.byref(text), bitmaps, len(media)):
                raise EngineError(f"the projector cannot take it: {last_complaint()}")
            found = [
                mtmd.mtmd_input_chunks_get(chunks, i) for i in range(mtmd.mtmd_input_chunks_size(chunks))
            ]
            kinds = (mtmd.mtmd_input_chunk_get_type, mtmd.mtmd_input_chunk_get_n_tokens)
            yield [(chunk, *(int(of(chunk)) for of in kinds)) for chunk in found]
        finally:
            mtmd.mtmd_input_chunks_free(chunks)

    def _pieces(self, bitmap: Any) -> list[Piece]:
        with self._chunks(bitmap) as chunks:
            texts = [self._tokens(chunk) if kind == TEXT else None for chunk, kind, _ in chunks]
            return [
                self._encoded(chunk, kind, n) if tokens is None else {"tokens": tokens}
                for tokens, (chunk, kind, n) in zip(texts, chunks, strict=True)
            ]

    def _tokens(self, chunk: Any) -> list[int]:
        """Returns the tokens that a projector puts around a picture, or between its parts."""
        size = ctypes.c_size_t()
        tokens = self._mtmd.mtmd_input_chunk_get_tokens_text(chunk, ctypes.byref(size))
        found = [int(tokens[i]) for i in range(size.value)]
        if not all(0 <= token < self._model.n_vocab for token in found):
            raise ModelUnsupportedError(
                f"the projector {self.path.name} belongs to another model: it marks pictures with tokens "
                f"that {self._model.path.name} does not have"
            )
        return found

    def _encoded(self, chunk: Any, kind: int, n: int) -> Piece:
        mtmd = self._mtmd
        complaints.clear()
        if mtmd.mtmd_encode_chunk(self._handle, chunk):
            raise EngineError(f"the projector cannot encode it: {last_complaint()}")
        rows = np.ctypeslib.as_array(mtmd.mtmd_get_output_embd(self._handle), (n * self._width,))
        places = self._places(chunk, kind, n, 0)
        return {
            "rows": rows.copy().reshape(n, self._width),
            "places": places,
            "moves": self._places(chunk, kind, n, 1) - places,
            "n_positions": int(mtmd.mtmd_input_chunk_get_n_pos(chunk)),
            "numbered": self._numbered and kind == IMAGE,
            "causal": not mtmd.mtmd_decode_use_non_causal(self._handle, chunk),
        }

    def _places(self, chunk: Any, kind: int, n: int, first: int) -> NDArray[np.int32]:
        """Returns the positions of a medium that begins at `first`: (1 or 4, n)."""
        if self._sections == 1 or kind != IMAGE:
            return np.tile(np.arange(first, first + n, dtype=np.int32), (self._sections, 1))
        of = self._mtmd.mtmd_image_tokens_get_decoder_pos
        image = self._mtmd.mtmd_input_chunk_get_tokens_image(chunk)
        found = [of(image, first, i) for i in range(n)]
        return np.array([[p.t, p.y, p.x, p.z] for p in found], np.int32).T.copy()
