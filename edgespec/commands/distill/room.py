"""How much memory making a draft takes, and whether there is enough."""

from collections.abc import Sequence

from edgespec.errors import DoesNotFitError
from edgespec.memory.free import free_memory
from edgespec_models.fit.formulas import cache_bytes
from edgespec_models.gguf.header import Header
from edgespec_models.gguf.vocabulary import vocabulary_of
from edgespec_models.shelf.sizes import size_text

WIDEST, NARROWEST = 96, 2  # texts side by side
EACH_MINUTE = 2  # of them at most: their prompts are read before any of them continues
AROUND = 3 << 30  # bytes of torch, of scores and of texts in memory at once


def choose_width(headers: Sequence[Header], model: int, kind: str, context: int, minutes: float) -> int:
    """Returns how many texts the target writes side by side. model: bytes. Raises DoesNotFitError."""
    free, _ = free_memory()
    text = cache_bytes(headers[0], context)
    learning = _learning(headers[0], kind)
    needed = max(model + NARROWEST * text, learning) + AROUND // 3
    if needed > free:
        raise DoesNotFitError(
            f"making a draft for {headers[0].name} takes about {size_text(needed)} of memory, and "
            f"{size_text(free)} are free: close other programs, or use a machine with more"
        )
    in_time = max(4, int(EACH_MINUTE * minutes))
    return max(NARROWEST, min(WIDEST, in_time, (free - model) // 4 // max(text, 1)))


def _learning(header: Header, kind: str) -> int:
    """Returns bytes of a draft's weights, gradients and averages, and of the target's embedding."""
    width = header.of_architecture("embedding_length", 1) or 1
    wide = header.of_architecture("feed_forward_length", 4 * width) or 4 * width
    rows = len(vocabulary_of(header).texts)
    if kind == "eagle3":
        block = 3 * width * width + 6 * width * width + 3 * width * wide
        return 4 * (rows * width + 2 * rows * width // 4 + 4 * block)
    return 4 * (rows * width + 4 * (rows * 256 + 2_000_000))
