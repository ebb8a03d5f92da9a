"""Make the logits that the self-test compares with: `python -m edgespec_train.recipes.reference_logits`.

Weights of the shipped pair are written out as F32, so that the result depends on no kernel for
quantised weights, and evaluated one token at a time on one thread, without repacked weights. Needs neither
torch nor tokenizers.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from edgespec.core.loop import Want
from edgespec.llama.context import Context, ContextSettings
from edgespec.llama.model import Model
from edgespec_models import tiny

TEXT = b'def read(path):\n    """Return the lines of a file."""\n    with open(path, encoding="utf-8") as'
N_TOKENS = 12
N_COLUMNS = 256


def logits(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return the tokens of the text, and the logits after each: (n,), (n, n_vocab)."""
    with Model(path, n_gpu_layers=0, extra_buffers=False) as model:
        tokens = model.tokenize(TEXT, special=False)[:N_TOKENS]
        settings = ContextSettings(n_ctx=64, threads=1, flash_attention=False)
        with Context(model, settings) as context:
            rows = [context.score([Want(tokens[: n + 1])])[0][0].copy() for n in range(len(tokens))]
    return tokens, np.stack(rows)


def main() -> None:
    """Evaluate both models and write the file."""
    found: dict[str, np.ndarray] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, path in (("target", tiny.target_path()), ("draft", tiny.draft_path())):
            whole = Path(folder, f"{name}.gguf")
            command = [sys.executable, *"-m edgespec convert --to F32 -o".split(), str(whole), str(path)]
            subprocess.run(command, check=True)
            tokens, rows = logits(whole)
            columns = np.arange(0, rows.shape[1], rows.shape[1] // N_COLUMNS, dtype=np.int32)
            found |= {"tokens": tokens, "columns": columns, name: rows[:, columns]}
    np.savez_compressed(tiny.reference_path(), allow_pickle=False, **found)
    print(tiny.reference_path(), tiny.reference_path().stat().st_size, "bytes")


if __name__ == "__main__":
    main()
