"""Turn documents into token windows, and keep the token files of the work folder.

Work folder: `tokenizer.json`, `epoch-N.npy` (uint16 tokens of the shuffled documents, one after another)
and `held-out-KIND.npy`. All are made when first needed and written whole or not at all.
"""

import random
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from edgespec_models.kept_file import replacing, write_whole
from edgespec_train.recipes import corpus, marks
from edgespec_train.recipes import tokenizer as tok

Tokens = NDArray[np.uint16]


def write_array(path: Path, array: NDArray[np.generic]) -> None:
    with replacing(path) as aside, aside.open("wb") as file:
        np.save(file, array)


def prepare_tokenizer(work: Path) -> Tokenizer:
    """Load the vocabulary, or learn it from the first epoch."""
    path = work / "tokenizer.json"
    if not path.exists():
        control = re.compile("|".join(map(re.escape, marks.SPECIAL)))
        documents = [d for d in corpus.epoch(0) if d.kind not in {"tool", "fim", "think"}]
        pieces = (part for d in documents for part in control.split(d.text) if part)
        write_whole(path, tok.train_tokenizer(pieces).to_str())
    return Tokenizer.from_file(str(path))


def encode(tokenizer: Tokenizer, texts: list[str]) -> Tokens:
    """Return the tokens of all texts, one after another."""
    batches = (tokenizer.encode_batch_fast(texts[i : i + 512]) for i in range(0, len(texts), 512))
    return np.concatenate([np.asarray(e.ids, np.uint16) for batch in batches for e in batch])


def epoch_tokens(work: Path, tokenizer: Tokenizer, number: int) -> Tokens:
    """Return the tokens of a training epoch."""
    path = work / f"epoch-{number}.npy"
    if not path.exists():
        write_array(path, encode(tokenizer, [d.text for d in corpus.epoch(number)]))
    return np.asarray(np.load(path), np.uint16)


def held_out_tokens(work: Path, tokenizer: Tokenizer) -> dict[str, Tokens]:
    """Return the held-out tokens by kind of text."""
    if not (work / "held-out-code.npy").exists():
        documents = corpus.held_out()
        for kind in ("docs", "body", "fim", "tool", "think", "code"):
            texts = [d.text for d in documents if d.kind == kind]
            write_array(work / f"held-out-{kind}.npy", encode(tokenizer, texts))
    return {p.stem.removeprefix("held-out-"): np.load(p) for p in sorted(work.glob("held-out-*.npy"))}


def windows(tokens: Tokens, length: int, batch: int, seed: int) -> Iterator[NDArray[np.int64]]:
    """Yield batches (batch, length + 1) that cover the tokens once, in an order fixed by the seed."""
    rng = random.Random(f"windows {seed}")
    offset = rng.randrange(length)
    starts = list(range(offset, len(tokens) - length - 1, length))
    rng.shuffle(starts)
    for i in range(0, len(starts) - batch + 1, batch):
        yield np.stack([tokens[s : s + length + 1] for s in starts[i : i + batch]]).astype(np.int64)
