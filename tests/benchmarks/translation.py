"""What a translated guess costs beside the draft's evaluation, with real vocabularies: microseconds a token.

    python tests/benchmarks/translation.py FOLDER    # of ggml-vocab-NAME.gguf, such as llama.cpp's models/

The draft answers from memory, so that everything timed is translation and sampling: a text of 2,000 tokens,
four guesses after it, each made a distribution as the request wants it. Beside it the same guesses of this
draft for a target of its own vocabulary: the difference is what translation costs.
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
from edgespec.sampling.sampler import Sampler, Sampling
from edgespec.sampling.translated_sampler import TranslatedSampler
from edgespec_models.gguf.header import read_file
from edgespec_models.gguf.translation import Translation, translation

PAIRS = (
    ("llama-bpe", "qwen2"),
    ("qwen2", "llama-bpe"),
    ("phi-3", "qwen2"),
    ("llama-bpe", "llama-spm"),
)
REQUESTS = {
    "greedy": Sampling(temperature=0),
    "T=0.8, top-p 0.95": Sampling(temperature=0.8, top_k=0, top_p=0.95, min_p=0.0),
    "the same, repeat penalty 1.1": Sampling(0.8, top_k=0, top_p=0.95, min_p=0.0, repeat_penalty=1.1),
    "T=1, nothing cut": Sampling(temperature=1, top_k=0, top_p=1, min_p=0.0),
}
GUESSES, ROUNDS = 4, 40


class Answering:
    """A draft whose rows are there already; it gives one after another."""

    def __init__(self, rows: Any) -> None:
        self.model = SimpleNamespace(n_vocab=rows.shape[1])
        self.settings = SimpleNamespace(n_rows=4, n_seq=1)
        self.n_ctx = 8192
        self.rows, self.turn = rows, 0

    def score(self, wants: Sequence[Want]) -> list[Rows]:
        self.turn = (self.turn + 1) % 4
        return [self.rows[self.turn : self.turn + 1] for want in wants]


def microseconds(what: Callable[[], object]) -> float:
    """Returns the processor time of a guess: the least of 15 times ROUNDS, for what else runs only adds."""
    found = []
    for _ in range(15):
        began = time.process_time()
        for _ in range(ROUNDS):
            what()
        found.append((time.process_time() - began) / ROUNDS / GUESSES * 1e6)
    return min(found)


def guessing(context: Any, sampler: Sampler, text: Any, tail: Any) -> Callable[[], object]:
    """Returns a round: four guesses behind one text."""

    def round_() -> None:
        read = text.copy()  # another text each round, as far as anybody can tell
        for n in range(GUESSES):
            sampler(context.score([Want(read, tail[:n])])[0][0], text)

    return round_


def some_rows(shared: Any, n_vocab: int) -> Any:
    """Returns logits as text has them (Zipf's law: the likeliest has half, 30 have 0.95): (4, n_vocab).

    The thousand likeliest are tokens that both have, as nearly all of a text are.
    """
    rng, row = np.random.default_rng(1), -1.8 * np.log(np.arange(1, n_vocab + 1))
    rows = np.empty((4, n_vocab), np.float32)
    for into in rows:
        order = rng.permutation(n_vocab)
        likely = np.isin(order, rng.permutation(shared)[:1000])
        into[np.concatenate((order[likely], order[~likely]))] = row
    return rows


def times(table: Translation, sampling: Sampling) -> tuple[float, float]:
    """Returns the microseconds of a guess: translated, and for a target of the draft's vocabulary."""
    n_target, n_draft = table.to_draft.size, table.to_target.size
    rows = some_rows(np.flatnonzero(table.to_target >= 0), n_draft)
    answering: Any = Answering(rows)
    context = TranslatedContext(answering, table, n_target)
    text = np.flatnonzero(table.to_draft >= 0)[-2000:].astype(np.int32)
    tail = tuple(text[:GUESSES].tolist())
    sampler = TranslatedSampler(context.shared, sampling)
    for row in rows:
        context.shared.take_out(row)  # so that what is cut off is the same for both
    both = (
        guessing(context, sampler, text, tail),
        guessing(Answering(rows), Sampler(sampling, n_draft), text, tail),
    )
    found = [[microseconds(one) for one in both] for _ in range(2)]  # in turn
    return min(one for one, _ in found), min(one for _, one in found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    print("target, draft (tokens): request: a guess, one that is not translated, difference (us)")
    for target, draft in PAIRS:
        table = translation(*(read_file(folder / f"ggml-vocab-{name}.gguf") for name in (target, draft)))
        sizes = f"{table.to_draft.size:,} and {table.to_target.size:,}"
        for name, sampling in REQUESTS.items():
            ours, plain = times(table, sampling)
            print(f"{target}, {draft} ({sizes}): {name}: {ours:.1f}, {plain:.1f}, {ours - plain:.1f}")


if __name__ == "__main__":
    main()
