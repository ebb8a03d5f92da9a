"""Whether a context on the processor uses flash attention: one layer's attention is timed both ways.

ggml's flash attention for processors reads a prompt somewhat faster than two matrix products with a softmax
between them, and evaluates a few rows several times slower, the more so the longer the context; by how much
depends on the processor, the build and the shape of the heads. It also splits a single row over the threads,
so that logits depend on their number. But it skips the cells of other sequences (`other_sequences.py`). So it
is used where it is faster for what a pair does, and where only it will do: for a quantised cache, and where
there is no room for scores. What was measured is kept, and measured again after a week.
"""

import contextlib
import hashlib
import json
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import psutil

from edgespec.llama.attention_timing import Shape, time_attention
from edgespec.llama.model import Model
from edgespec.llama.other_sequences import others_in_use
from edgespec.llama.settings import ContextSettings
from edgespec.pairs.check import headers_of
from edgespec.pairs.settings import FLOATS
from edgespec.system.builds import library_folder
from edgespec.system.config import cache_folder
from edgespec.system.cores import threads_wanted
from edgespec_models.fit.formulas import CHUNK, score_bytes, score_room
from edgespec_models.fit.need import FlashAttention
from edgespec_models.gguf.header import Header
from edgespec_models.gguf.heads import heads_in_cache
from edgespec_models.kept_file import is_recent, write_whole

NEEDED = ("minimax-m3",)  # its sparse attention reads the layout of flash attention's cache
CELLS = (512, 2048)  # tokens of context that are timed
ROWS = (1, 4, 8)  # of an evaluation
PROMPT_ROWS = 128  # and of a prompt, at the longer context
PROMPT = 3.0  # tokens of a prompt that are read for each token generated
ROUND = 2.5  # tokens that a verification of four rows yields
CLEARLY = 1.05  # by so much flash attention has to win: without it, threads do not change digits
LEAST_CHUNK = 64
FORMAT = 1
Seconds = Mapping[tuple[int, int], float]  # (rows, cells) -> seconds of one layer's attention
Timing = Callable[[Shape, Sequence[tuple[int, int]], int], tuple[Seconds, Seconds] | None]


@dataclass(frozen=True, slots=True)
class Attention:
    """What one layer's attention costs on this machine: with flash attention, and without."""

    flash: Seconds
    plain: Seconds

    def ratio(self, others: float = 0.0) -> float:
        """Returns the time with flash attention over that without, for what a pair usually does.

        others: cells that other sequences hold for each of one's own, which it skips, and which else cost as
        much as these.
        """
        return _a_token(self.flash) / (_a_token(self.plain) * (1 + others))

    def flash_pays(self, others: float = 0.0) -> bool:
        """Returns whether flash attention is clearly faster."""
        return CLEARLY * self.ratio(others) < 1

    def slopes(self, *, flash: bool) -> dict[int, float]:
        """Returns by rows the seconds of one layer for each 1,000 tokens of context."""
        found, (near, far) = self.flash if flash else self.plain, CELLS
        slopes = {n: (found[n, far] - found[n, near]) * 1000 / (far - near) for n in ROWS}
        return {**slopes, PROMPT_ROWS: found[PROMPT_ROWS, far] * 1000 / far}


def _a_token(found: Seconds) -> float:
    """Returns the seconds of attention for one token in use: plain, verified, and its share of a prompt."""
    decoding = sum(found[1, cells] + found[4, cells] / ROUND for cells in CELLS) / (2 * len(CELLS))
    return decoding + PROMPT * found[PROMPT_ROWS, CELLS[-1]] / PROMPT_ROWS


def with_attention(model: Model, settings: ContextSettings) -> ContextSettings:
    """Returns the settings with flash attention decided, and chunks for whose scores there is room."""
    return decided(model, settings)[0]


def decided(
    model: Model,
    settings: ContextSettings,
    room: int | None = None,
    costs: Callable[[Header], Attention | None] | None = None,
) -> tuple[ContextSettings, FlashAttention]:
    """Returns the same, and why.

    A card decides for itself (None). room: bytes for scores; None for this machine's. costs: what says what
    attention costs; None: `attention_of`.
    """
    why = "as asked"
    if settings.identical:
        settings = replace(settings, flash_attention=False)
    if model.on_gpu and settings.flash_attention is None:
        return settings, FlashAttention(None, "as the graphics card decides")
    if model.on_gpu or settings.flash_attention:
        return settings, FlashAttention(settings.flash_attention, why)
    header = headers_of(model.path)[0]
    heads = header.of_architecture("attention.head_count", 1) or 1
    cells = settings.cells or settings.n_ctx * settings.n_seq
    least = max(LEAST_CHUNK, settings.n_rows)
    chunk = min(settings.chunk, max(CHUNK, least))
    room = score_room() if room is None else room
    if score_bytes(heads, cells, chunk) > room:
        chunk = min(chunk, least)
    if settings.flash_attention is None:
        fits = score_bytes(heads, cells, max(chunk, settings.medium)) <= room
        on, why = _wanted(model, header, settings, fits, costs or attention_of)
        if on:
            return replace(settings, flash_attention=True), FlashAttention(True, why)
    return replace(settings, flash_attention=False, chunk=chunk), FlashAttention(False, why)


def _wanted(
    model: Model,
    header: Header,
    settings: ContextSettings,
    fits: bool,
    costs: Callable[[Header], Attention | None],
) -> tuple[bool, str]:
    """Returns whether flash attention is used on the processor, and why. fits: there is room for scores."""
    if not fits:
        return True, "as there is no room for the scores of attention without it"
    if settings.kv_type not in FLOATS:
        return True, f"as a {settings.kv_type} cache needs it"
    if model.architecture in NEEDED:
        return True, f"as {model.architecture} needs it"
    attention = costs(header)
    others = (settings.n_seq - 1) * others_in_use(model.path, settings.n_seq)
    if attention is None:
        missing = "it could not be timed here" if shape_of(header) else "the model has no attention"
        return others >= 1, f"as {missing}"
    why = f"measured here at {attention.ratio(others):.2f} of the time without it"
    return attention.flash_pays(others), f"{why} (on below {1 / CLEARLY:.2f})"


def attention_of(header: Header, *, timing: Timing = time_attention) -> Attention | None:
    """Returns what attention of a model's shape costs here, measured in half a second unless that is known.

    None for a model without attention, and where this build cannot be timed.
    """
    shape, threads = shape_of(header), threads_wanted()
    if shape is None:
        return None
    path = _path(shape, threads)
    found = _kept(path)
    if found is None:
        found = attention_timed(shape, threads, timing)
        if found is None:
            return None
        with contextlib.suppress(OSError):
            text = json.dumps({"format": FORMAT, **{kind: _listed(getattr(found, kind)) for kind in _KINDS}})
            write_whole(path, text, sync=False)
    return found


@lru_cache(maxsize=8)  # a cache folder that cannot be written would have it timed for each context, twice
def attention_timed(shape: Shape, threads: int, timing: Timing = time_attention) -> Attention | None:
    plan = [(n, cells) for cells in CELLS for n in ROWS] + [(PROMPT_ROWS, CELLS[-1])]
    timed = timing(shape, plan, threads)
    return Attention(*timed) if timed else None


def slopes_of(model: Model, settings: ContextSettings) -> dict[int, float]:
    """Returns by rows the seconds that 1,000 tokens of context add to an evaluation; {} if unknown."""
    if model.on_gpu or settings.kv_type not in FLOATS:
        return {}
    header = headers_of(model.path)[0]
    attention = attention_of(header)
    layers = sum(1 for heads in heads_in_cache(header) if heads)
    if attention is None or model.window:  # of which most layers see little
        return {}
    slopes = attention.slopes(flash=bool(settings.flash_attention))
    return {n: layers * seconds for n, seconds in slopes.items()} if min(slopes.values()) > 0 else {}


def shape_of(header: Header) -> Shape | None:
    """Returns the shape of a model's attention; None if it has none."""
    heads = header.of_architecture("attention.head_count", 0) or 0
    in_cache = max(heads_in_cache(header), default=0)
    if not heads or not in_cache:
        return None
    usual = (header.of_architecture("embedding_length", 0) or 0) // heads
    if latent := header.of_architecture("attention.kv_lora_rank"):  # one head for all
        rotated = header.of_architecture("rope.dimension_count", 64) or 64
        return Shape(latent + rotated, latent, heads, 1, in_keys=True)
    key = header.of_architecture("attention.key_length", usual) or usual
    value = header.of_architecture("attention.value_length", usual) or usual
    return Shape(key, value, heads, in_cache) if key and value and heads % in_cache == 0 else None


_KINDS = ("flash", "plain")


def _path(shape: Shape, threads: int) -> Path:
    libraries = [(file.name, file.stat().st_mtime_ns) for file in sorted(library_folder().glob("*ggml*"))]
    of = [platform.node(), platform.machine(), libraries, psutil.cpu_count(), threads, repr(shape)]
    key = hashlib.sha256(json.dumps(of).encode()).hexdigest()[:20]
    return cache_folder() / "attention" / f"{key}.json"


def _listed(found: Seconds) -> list[list[float]]:
    return [[rows, cells, seconds] for (rows, cells), seconds in found.items()]


def _kept(path: Path) -> Attention | None:
    """Returns an earlier measurement that is not too old; None if there is none that makes sense."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        held = json.loads(path.read_text(encoding="utf-8"))
        if held["format"] != FORMAT or not is_recent(path):
            return None
        found = Attention(
            *({(int(n), int(cells)): float(s) for n, cells, s in held[kind]} for kind in _KINDS)
        )
        wanted = {*((n, cells) for n in ROWS for cells in CELLS), (PROMPT_ROWS, CELLS[-1])}
        seconds = [*found.flash.values(), *found.plain.values()]
        if found.flash.keys() == found.plain.keys() == wanted and min(seconds) > 0:
            return found
    return None
