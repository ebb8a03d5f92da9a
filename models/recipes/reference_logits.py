"""Make the logits that the self-test compares with: `cd models && python -m recipes.reference_logits`.

Weights of the shipped pair are written out as F32, so that the result depends on no kernel for
quantised weights, and evaluated one token at a time on one thread, without repacked weights. Needs neither
torch nor tokenizers.
"""

import tempfile
from pathlib import Path

import gguf
import numpy as np

from edgespec.core.loop import Want
from edgespec.llama.context import Context, ContextSettings
from edgespec.llama.model import Model
from edgespec_models import tiny

TEXT = b'def read(path):\n    """Return the lines of a file."""\n    with open(path, encoding="utf-8") as'
N_TOKENS = 12
N_COLUMNS = 256


def write_f32(source: Path, into: Path) -> None:
    """Write a GGUF file again with all its weights as F32."""
    reader = gguf.GGUFReader(str(source))
    writer = gguf.GGUFWriter(str(into), reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        kind = field.types[0]
        inner = field.types[1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), kind, inner)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


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
            write_f32(path, whole)
            tokens, rows = logits(whole)
            columns = np.arange(0, rows.shape[1], rows.shape[1] // N_COLUMNS, dtype=np.int32)
            found |= {"tokens": tokens, "columns": columns, name: rows[:, columns]}
    np.savez_compressed(tiny.reference_path(), allow_pickle=False, **found)
    print(tiny.reference_path(), tiny.reference_path().stat().st_size, "bytes")


if __name__ == "__main__":
    main()
