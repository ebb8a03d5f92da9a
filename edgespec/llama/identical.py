"""Whether a context keeps its promise that a token's logits do not depend on what it is evaluated with.

Without flash attention, without weights repacked for the processor, and with two rows at least in each
evaluation, ggml's kernels for processors were found to give the same bits for any number of rows and threads
(AVX-512 and AVX2 builds; F32, F16, Q8_0, Q4_0, Q4_K_M). Nothing in ggml promises that, so it is tried.
"""

import numpy as np

from edgespec.core.loop import Want
from edgespec.errors import SettingError
from edgespec.llama.context import Context
from edgespec.llama.model import Model

PIECES = (1, 1, 2, 3, 1, 5, 9, 12)  # evaluations of the same tokens that are read at once, too


def refuse_identical(model: Model) -> None:
    """Raises SettingError for a model that cannot keep the promise."""
    if model.on_gpu:
        raise SettingError(
            f"--byte-identical works on the processor: {model.path.name} lies on a graphics card; add "
            "--gpu-layers 0"
        )
    if model.has_recurrent_state:
        raise SettingError(
            f"--byte-identical does not work for {model.path.name}: its recurrent state rounds by how many "
            "tokens are read at once; leave it out"
        )


def check_identical(context: Context) -> None:
    """Evaluates the same tokens at once and in pieces. Raises SettingError if any bit of a logit differs.

    The caches hold nothing afterwards.
    """
    n = min(sum(PIECES), context.n_ctx, context.settings.n_rows)
    tokens = (np.arange(n, dtype=np.int32) * 7919 + 3) % context.n_vocab
    at_once = context.score([Want(tokens, rows=n)])[0].copy()
    context.clear()
    end = 0
    for piece in PIECES:
        if end + piece > n:
            break
        end += piece
        rows = context.score([Want(tokens[:end], rows=piece)])[0]
        if rows.tobytes() != at_once[end - piece : end].tobytes():
            raise SettingError(
                f"--byte-identical cannot be kept here: {context.model.path.name} gives other digits for "
                f"{piece} tokens at once than for {n}; leave it out"
            )
    context.clear()
