"""Keep the target's texts for training prompts, with its distribution at every position.

The draft learns from these (a draft agrees best on the target's own text). `chorus.py` makes the text, from
the file that ships, read back into torch.

A shard holds flat arrays over all tokens of all texts: `ids`; `length` and `prompt` for each text; and for
each token the TOP most likely next tokens, best first (`top_ids`, uint16), with their probabilities at
temperature 1 (`top_p`, float16; all zero at a text's last token, after which nothing was asked).
"""

import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from recipes import corpus, marks

TOP = 16
SHARES = {"code": 4.0, "fim": 5.0, "docs": 0.8, "body": 1.5, "talk": 0.2}
PROMPT_LIMIT = 230  # tokens


@dataclass(frozen=True, slots=True)
class Text:
    """Hold a prompt of so many tokens with its continuation, and the best next tokens (n - 1, TOP)."""

    ids: list[int]
    prompt: int
    temperature: float
    top_ids: NDArray[np.uint16]
    top_p: NDArray[np.float16]


def prompt_of(document: corpus.Document, tokenizer: Tokenizer, rng: random.Random) -> list[int] | None:
    """Cut a document where the target should continue; None if that is too far in."""
    text = document.text
    if document.kind == "fim":
        text = text[: text.index(marks.FIM_MIDDLE) + len(marks.FIM_MIDDLE)]
    elif document.kind == "code":
        lines = text.splitlines(keepends=True)
        first = 0 if rng.random() < 0.5 else rng.randrange(len(lines))
        text = "".join(lines[first : first + rng.randrange(3, 16)])
    else:
        mark = f"{marks.TURN_START}assistant\n"
        cuts = [i + len(mark) for i in range(len(text)) if text.startswith(mark, i)]
        text = text[: rng.choice(cuts)]
    ids = list(tokenizer.encode(text).ids)
    if not 0 < len(ids) <= PROMPT_LIMIT:
        return None
    return ids


def write_shard(path: Path, texts: list[Text]) -> None:
    """Write texts as flat arrays, whole or not at all."""
    total = sum(len(t.ids) for t in texts)
    top_ids = np.zeros((total, TOP), np.uint16)
    top_p = np.zeros((total, TOP), np.float16)
    start = 0
    for text in texts:
        top_ids[start : start + len(text.top_ids)] = text.top_ids
        top_p[start : start + len(text.top_p)] = text.top_p
        start += len(text.ids)
    aside = path.with_suffix(".part.npz")
    np.savez(
        aside,
        ids=np.concatenate([np.asarray(t.ids, np.uint16) for t in texts]),
        length=np.asarray([len(t.ids) for t in texts]),
        prompt=np.asarray([t.prompt for t in texts]),
        top_ids=top_ids,
        top_p=top_p,
    )
    os.replace(aside, path)


def prompts(tokenizer: Tokenizer, number: int) -> Iterator[list[int]]:
    """Yield training prompts of an epoch; SHARES says how many a document of each kind gives."""
    rng = random.Random(f"prompts {number}")
    for document in corpus.epoch(number):
        for _ in range(int(SHARES.get(document.kind, 1.0) + rng.random())):
            ids = prompt_of(document, tokenizer, rng)
            if ids:
                yield ids
