"""Keep a target's texts, with its hidden states and its likely next tokens at every position.

A draft learns from these. A shard holds flat arrays over all tokens of all texts: `ids`; for each text
`length`, `prompt` and `temperature`; for each token `states` (F, float16), what the target's layers made of
it, and the TOP most likely next tokens at temperature 1, best first (`top_ids`, `top_p`). A text's last token
has neither: nothing was asked after it; prompts have states only.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgespec_models.kept_file import replacing

TOP = 32
Ids = NDArray[np.unsignedinteger[Any]]  # of 16 bits, or 32 where the vocabulary is large


def id_type(vocab: int) -> type[np.uint16] | type[np.uint32]:
    """Return the smallest type that holds all ids of a vocabulary."""
    return np.uint16 if vocab <= 1 << 16 else np.uint32


@dataclass(frozen=True, slots=True)
class RecordedText:
    """Hold one text of n tokens, of which the first `prompt` were given."""

    ids: Ids  # (n,)
    prompt: int
    temperature: float
    states: NDArray[np.float16]  # (n - 1, F); F is 0 where a draft needs none
    top_ids: Ids  # (n - prompt, TOP): the rows that chose the tokens
    top_p: NDArray[np.float16]


def write(path: Path, texts: list[RecordedText]) -> None:
    """Write texts as flat arrays, whole or not at all."""
    total = sum(len(t.ids) for t in texts)
    states = np.zeros((total, texts[0].states.shape[1]), np.float16)
    top_ids, top_p = np.zeros((total, TOP), texts[0].top_ids.dtype), np.zeros((total, TOP), np.float16)
    start = 0
    for text in texts:
        end = start + len(text.ids) - 1
        states[start:end] = text.states
        top_ids[end - len(text.top_ids) : end] = text.top_ids
        top_p[end - len(text.top_p) : end] = text.top_p
        start = end + 1
    arrays = {
        "ids": np.concatenate([t.ids for t in texts]),
        "length": np.asarray([len(t.ids) for t in texts]),
        "prompt": np.asarray([t.prompt for t in texts]),
        "temperature": np.asarray([t.temperature for t in texts], np.float32),
        "states": states,
        "top_ids": top_ids,
        "top_p": top_p,
    }
    with replacing(path) as aside, aside.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)


def read(path: Path) -> Iterator[RecordedText]:
    """Yield the texts of a shard."""
    with np.load(path) as shard:
        ids, states, top_ids, top_p = (shard[name] for name in ("ids", "states", "top_ids", "top_p"))
        lengths, prompts, temperatures = shard["length"], shard["prompt"], shard["temperature"]
    ends = np.cumsum(lengths)
    for end, length, prompt, temperature in zip(ends, lengths, prompts, temperatures, strict=True):
        start, last, first = int(end - length), int(end) - 1, int(end - length + prompt) - 1
        yield RecordedText(
            ids[start:end],
            int(prompt),
            float(temperature),
            states[start:last],
            top_ids[first:last],
            top_p[first:last],
        )


def ids_of(path: Path) -> Iterator[Ids]:
    """Yield the tokens of the texts of a shard, without the rest."""
    with np.load(path) as shard:
        ids, lengths = shard["ids"], shard["length"]
    yield from np.split(ids, np.cumsum(lengths)[:-1])


def written(path: Path) -> int:
    """Return how many tokens of a shard the target wrote itself."""
    with np.load(path) as shard:
        return int(shard["length"].sum() - shard["prompt"].sum())


TEMPERATURES = (0.0, 1.0, 0.7, 0.0, 0.9, 1.0, 0.0, 0.8)  # in turn, over the prompts


@dataclass(frozen=True, slots=True)
class PromptToRecord:
    """Ask for at most `limit` tokens after a prompt."""

    tokens: list[int]
    temperature: float
    limit: int
    answer: tuple[int, ...] = ()  # that the target wrote earlier: it is read, and nothing new is written


def most_frequent(shards: list[Path], count: int, vocab: int) -> NDArray[np.int64]:
    """Return the most frequent tokens, in the order of their ids; ties go to the lower id."""
    seen: Counter[int] = Counter()
    for shard in shards:
        for text in read(shard):
            seen.update(text.ids[text.prompt :].tolist())
            seen.update(text.top_ids[:, 0].tolist())
    order = sorted(range(vocab), key=lambda token: (-seen[token], token))
    return np.sort(np.asarray(order[:count], np.int64))


def numbers_of(kept: NDArray[np.int64], vocab: int) -> NDArray[np.int64]:
    """Return the head's own number of every token of the target, -1 if it has none."""
    numbers = np.full(vocab, -1, np.int64)
    numbers[kept] = np.arange(len(kept))
    return numbers
