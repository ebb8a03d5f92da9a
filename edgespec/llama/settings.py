"""How a context is made: its settings, checked before llama.cpp sees them, and its creation."""

from dataclasses import dataclass
from typing import Any

import llama_cpp as C
import psutil

from edgespec.errors import ModelUnsupportedError, SettingError
from edgespec.llama.log import complaints, last_complaint, refuse_full_device
from edgespec.llama.model import Model
from edgespec.pairs.check import headers_of
from edgespec.pairs.rope import Rope
from edgespec.pairs.settings import KvType, PairSettings, check_kv, check_threads, whole
from edgespec.system.cores import threads_wanted
from edgespec_models.fit.formulas import cache_bytes
from edgespec_models.gguf.facts import learned_positions
from edgespec_models.gguf.header import read_file

_KV_TYPES = {
    "f32": 0, "f16": 1, "bf16": 30, "q8_0": 8, "q5_1": 7, "q5_0": 6, "q4_1": 3, "q4_0": 2, "iq4_nl": 20,
}  # llama.cpp's ids  # fmt: skip
_ROPE_SCALINGS = {"none": 0, "linear": 1, "yarn": 2}  # so are these
DEFAULT_N_CTX = 8192
CHUNK = 512
CELL_BYTES = 64  # of host memory that llama.cpp keeps about each token of a cache, even if it only plans one
MAX_SEQUENCES = 256  # LLAMA_MAX_SEQ
THREADS_BESIDE_CARD = 4  # more than look up embeddings in time only wait for each other
SNAPSHOTS = (
    8  # recurrent states kept for rollback where the architecture allows; each is a copy of the whole state
)


@dataclass(frozen=True, slots=True)
class ContextSettings:
    """How a context is made. None means: what suits this machine."""

    n_ctx: int  # tokens one sequence may hold
    n_seq: int = 1  # sequences at once
    n_rows: int = 1  # logits rows one call may ask for, over all sequences (sizes llama.cpp's output buffer)
    kv_type: KvType = "f16"  # the cache's number format; below f16 the logits change
    flash_attention: bool | None = None  # None lets llama.cpp choose
    threads: int | None = None
    chunk: int = CHUNK  # tokens in one evaluation; a prompt is evaluated in such pieces
    medium: int = 0  # cells of the largest picture that has to be evaluated at once
    cells: int | None = None  # tokens that all of them may hold together; None: n_ctx for each
    rope: Rope = Rope()
    identical: bool = False  # a token's logits do not depend, to the bit, on what it is evaluated with
    parts: bool = False  # the state of some tokens can be saved by itself, where the memory allows it

    def __post_init__(self) -> None:
        whole("the context length", self.n_ctx, 2, 2**31 - 1)
        whole("the number of sequences", self.n_seq, 1, MAX_SEQUENCES)
        whole("the number of logits rows", self.n_rows, self.n_seq, 2**16)
        if self.cells is not None:
            whole("the number of tokens in the cache", self.cells, self.n_ctx, self.n_ctx * self.n_seq)
        check_threads(self.threads)
        whole("the chunk", self.chunk, max(2, self.n_rows), 2**16)
        check_kv(self.kv_type, self.flash_attention)


def keeps_order(model: Model, settings: ContextSettings) -> bool:
    """Returns whether a context has one more sequence, which keeps cells. See `Context.keep_cells`.

    Not on a graphics card: there, batches differ from single tokens in any order of cells.
    """
    return not model.on_gpu and 1 < settings.n_seq < MAX_SEQUENCES and not model.has_recurrent_state


def has_parts(model: Model, settings: ContextSettings) -> bool:
    """Returns whether a context has one more sequence, to save parts of others. See `StateParts`."""
    cuttable = not model.has_recurrent_state and not model.window
    return settings.parts and cuttable and settings.n_seq + 1 < MAX_SEQUENCES


def sequences(model: Model, settings: ContextSettings) -> int:
    """Returns how many sequences a context has: those asked for, and those of its own."""
    own = keeps_order(model, settings) + has_parts(model, settings) + settings.identical
    return settings.n_seq + own


def new_context(model: Model, settings: ContextSettings, *, mtp: bool = False, other: Any = None) -> Any:
    """Returns a llama_context. Raises SettingError or ModelUnsupportedError where llama.cpp would abort.

    mtp: of the model's MTP blocks alone. other: the context of the target that a head guesses for.
    """
    if mtp and not (
        model.mtp and model.metadata.get(f"{model.architecture}.nextn_predict_layers", "0") != "0"
    ):
        raise ModelUnsupportedError(f"{model.path.name} has no MTP blocks, or was loaded without them")
    head = mtp or other is not None
    # a head reads no further back than pays; llama.cpp aborts at a position that has no vector
    if settings.n_ctx > model.n_ctx_train and not head and learned_positions(headers_of(model.path)):
        raise SettingError(
            f"the context length is {settings.n_ctx:,}: {model.path.name} learned its positions, and knows "
            f"{model.n_ctx_train:,}; ask for no more than that"
        )
    cells = settings.cells or settings.n_ctx * settings.n_seq
    if not head:
        _check_memory(model, cells, settings.kv_type)
    params = C.llama_context_default_params()
    params.n_ctx = cells + settings.identical  # for a row that is thrown away
    params.n_batch = params.n_ubatch = max(settings.chunk, settings.medium)
    params.n_seq_max = sequences(model, settings)
    # a micro-batch must be longer than the snapshots, else llama.cpp aborts
    if model.has_recurrent_state and not head:
        params.n_rs_seq = max(0, min(settings.n_rows - 1, settings.chunk - 2, params.n_ctx - 2, SNAPSHOTS))
    params.n_outputs_max = max(settings.n_rows, params.n_seq_max)  # llama.cpp reserves one for each
    params.n_outputs_max_per_seq = settings.n_rows
    usual = min(threads_wanted(), THREADS_BESIDE_CARD) if model.all_on_gpu else threads_wanted()
    params.n_threads = params.n_threads_batch = settings.threads or usual
    params.flash_attn_type = -1 if settings.flash_attention is None else int(settings.flash_attention)
    params.type_k = params.type_v = _KV_TYPES[settings.kv_type]
    for name, value in settings.rope.given().items():
        if name == "rope_scaling":
            params.rope_scaling_type = _ROPE_SCALINGS[str(value)]
        else:
            setattr(params, name, value)
    params.kv_unified = True  # sequences of unequal length share one batch and one pool of cells
    params.swa_full = True  # sliding-window layers keep all cells, so that tails can be withdrawn
    params.no_perf = True
    if mtp:
        params.ctx_type = C.LLAMA_CONTEXT_TYPE_MTP
    if other is not None:
        params.ctx_other = other
    complaints.clear()
    handle = C.llama_init_from_model(model.handle, params)
    if not handle:
        refuse_full_device(complaints, model.path.name)
        raise ModelUnsupportedError(
            f"llama.cpp cannot make a context for {model.path.name}: {last_complaint()}"
        )
    return handle


def kv_bytes(model: Model, n_tokens: int, kv_type: KvType) -> int:
    """Returns about how many bytes a KV cache of `n_tokens` takes, an upper bound at worst."""
    return cache_bytes(read_file(model.path), n_tokens, kv_type)


def _check_memory(model: Model, n_tokens: int, kv_type: KvType) -> None:
    """Refuses a cache larger than the free memory.

    llama.cpp clears a cache when it makes it, so one that is too large kills the process instead of failing.
    """
    wanted, free = n_tokens * CELL_BYTES, psutil.virtual_memory().available
    if model.no_alloc:  # what would fit takes little of it
        free //= 4
    elif not model.on_gpu:  # its memory gets the cache, and llama.cpp itself reports if it is too small
        wanted += kv_bytes(model, n_tokens, kv_type)
    if wanted > free:
        raise SettingError(
            f"a context of {n_tokens:,} tokens takes about {wanted / 2**30:.1f} GiB and "
            f"{free / 2**30:.1f} GiB of memory are free: ask for fewer with --ctx"
        )


def settings_for(model: Model, settings: PairSettings) -> ContextSettings:
    """Returns the settings of a model's context for a pair's settings."""
    n_ctx = settings.n_ctx
    if n_ctx is None:  # what the model was trained for, a usual length at most, and half of the free memory
        n_ctx = min(model.n_ctx_train, DEFAULT_N_CTX)
        while (
            n_ctx > 512
            and kv_bytes(model, n_ctx * settings.slots, settings.kv_type)
            > psutil.virtual_memory().available / 2
        ):
            n_ctx //= 2
    cells = None
    if settings.cache_tokens is not None:
        n_ctx = min(n_ctx, settings.cache_tokens)
        cells = min(settings.cache_tokens, n_ctx * settings.slots)
    return ContextSettings(
        n_ctx=n_ctx,
        n_seq=settings.slots,
        n_rows=settings.slots,
        cells=cells,
        kv_type=settings.kv_type,
        flash_attention=settings.flash_attention,
        threads=settings.threads,
        rope=settings.rope,
        parts=settings.cache_disk > 0,
    )
