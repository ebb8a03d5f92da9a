"""What a translated guess costs beside the draft's evaluation, with real vocabularies: microseconds a token.

    python tests/benchmarks/translation.py FOLDER    # of ggml-vocab-NAME.gguf, such as llama.cpp's models/

The draft answers from memory, so that everything timed is translation: a text of 2,000 tokens, four guesses
behind it, one row each. Beside it: one gather over the whole row, which is what a plain table costs.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from edgespec.core.loop import Rows, Want
from edgespec.llama.translated_context import TranslatedContext
from edgespec_models.gguf.header import read_file
from edgespec_models.gguf.row_order import RowOrder
from edgespec_models.gguf.translation import Translation, translation

PAIRS = (
    ("llama-bpe", "qwen2"),
    ("qwen2", "llama-bpe"),
    ("phi-3", "qwen2"),
    ("llama-bpe", "gpt-2"),
)
GUESSES, ROUNDS = 4, 200


class Answering:
    """A draft whose rows are there already."""

    def __init__(self, n_vocab: int) -> None:
        self.model = SimpleNamespace(n_vocab=n_vocab)
        self.settings = SimpleNamespace(n_rows=4, n_seq=1)
        self.n_ctx = 8192
        self.rows = np.random.default_rng(1).standard_normal((4, n_vocab)).astype(np.float32)

    def score(self, wants: Sequence[Want]) -> list[Rows]:
        return [self.rows[: want.rows] for want in wants]


def microseconds(what: Callable[[], object], n: int) -> float:
    """Returns the processor time of a call: the least of 15 times n, for what else runs can only add."""
    found = []
    for _ in range(15):
        began = time.process_time()
        for _ in range(n):
            what()
        found.append((time.process_time() - began) / n * 1e6)
    return min(found)


def guessing(table: Translation) -> Callable[[], object]:
    """Returns a round: four guesses behind one text."""
    answering: Any = Answering(table.to_target.size)
    context = TranslatedContext(answering, table, table.to_draft.size)
    text = np.flatnonzero(table.to_draft >= 0)[-2000:].astype(np.int32)

    def round_() -> None:
        read = text.copy()  # another text each round, as far as anybody can tell
        for n in range(GUESSES):
            context.score([Want(read, tuple(text[:n].tolist()))])

    return round_


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    print("target, draft: tokens, shared; a guess, of it the row; one gather and one fill instead (us)")
    for target, draft in PAIRS:
        table = translation(*(read_file(folder / f"ggml-vocab-{name}.gguf") for name in (target, draft)))
        order, row = RowOrder(table.to_draft), Answering(table.to_target.size).rows[0]
        room = order.rows(1)[0]
        source, unknown = np.maximum(table.to_draft, 0).astype(np.intp), np.flatnonzero(table.to_draft < 0)
        plain = np.empty_like(room)

        def one_gather(
            row: Any = row, source: Any = source, plain: Any = plain, unknown: Any = unknown
        ) -> None:
            np.take(row, source, out=plain, mode="clip")
            plain[unknown] = -np.inf

        each = microseconds(guessing(table), ROUNDS // GUESSES) / GUESSES
        of_row = microseconds(lambda order=order, row=row, room=room: order.put(row, room), ROUNDS)  # type: ignore[misc]
        before = microseconds(one_gather, ROUNDS)
        print(
            f"{target}, {draft}: {table.to_draft.size:,} and {table.to_target.size:,}, {table.shared:.0%}; "
            f"{each:.1f}, {of_row:.1f}; {before:.1f}"
        )


if __name__ == "__main__":
    main()
