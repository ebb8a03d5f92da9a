"""The child process of the self-test: evaluates the embedded pair, and prints what is wrong with the logits.

llama.cpp may abort it at any time; `self_test` then says so.
"""

import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgespec.core.loop import Want
from edgespec.llama.context import Context, ContextSettings
from edgespec.llama.model import Model
from edgespec_models import tiny

MARGIN = 0.3  # root mean square of a row; the largest seen of a sound build is 0.115, logits have 3.4 to 5


def fault(model: Path, name: str, *, extra_buffers: bool) -> str:
    """Returns which rows of one model are wrong, in a clause; "" if none is."""
    reference = tiny.reference_logits()
    with Model(model, n_gpu_layers=0, extra_buffers=extra_buffers) as loaded:
        for threads in (1, 2):
            settings = ContextSettings(n_ctx=64, n_rows=len(reference.tokens), threads=threads)
            with Context(loaded, settings) as context:
                for how, rows in (("one by one", _singles), ("in a batch", _batch)):
                    wrong = rows(context, reference.tokens)[:, reference.columns] - reference.rows[name]
                    worst = float(np.sqrt(np.square(wrong).mean(axis=1)).max())
                    if not worst <= MARGIN:  # NaN is wrong too
                        return (
                            f"logits of the embedded {name}, {how} on {threads} thread{'s'[: threads - 1]}, "
                            f"are off by {worst:.2g}"
                        )
    return ""


def _singles(context: Context, tokens: NDArray[np.int32]) -> NDArray[np.float32]:
    """Returns the logits after each token, evaluated one at a time: (n, n_vocab)."""
    return np.stack([context.score([Want(tokens[: n + 1])])[0][0].copy() for n in range(len(tokens))])


def _batch(context: Context, tokens: NDArray[np.int32]) -> NDArray[np.float32]:
    """Returns the same, evaluated all at once."""
    context.clear()
    return context.score([Want(tokens, rows=len(tokens))])[0].copy()


def main() -> None:
    """Prints the first fault, or nothing. Argument: 1 with repacked weights, 0 without."""
    extra_buffers = sys.argv[1] == "1"
    with np.errstate(invalid="ignore", over="ignore"):
        for name, path in (("target", tiny.target_path()), ("draft", tiny.draft_path())):
            if reason := fault(path, name, extra_buffers=extra_buffers):
                print(reason)
                return


if __name__ == "__main__":
    main()
