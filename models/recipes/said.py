"""Let the target speak: its own continuations of training prompts, with the distribution at every token.

The draft learns from these (Leviathan-style drafts agree best on the target's own text). The text is made
by llama.cpp from the exported file, so that the draft learns what the shipped target says, quantisation
included. Half of it is greedy, half is sampled at temperature 0.8.

A shard holds flat arrays over all tokens of all texts: `ids`; `length` and `prompt` for each text; and for
each token the TOP most likely next tokens (`top_ids`, uint16) with their probabilities at temperature 1
(`top_p`, float16; all zero where the target was not asked, which is inside prompts).
"""

import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from recipes import corpus, marks
from recipes import tokenizer as tok
from recipes.native import Native

TOP = 24
SLOTS = 48
SHARES = {"code": 2.0, "fim": 2.0, "docs": 0.5}
PROMPT_LIMIT = 200  # tokens
TEXT_LIMIT = 440


@dataclass(slots=True)
class Text:
    """Hold one continuation while it grows."""

    ids: list[int]
    prompt: int
    temperature: float
    top_ids: list[NDArray[np.uint16]] = field(default_factory=list)
    top_p: list[NDArray[np.float16]] = field(default_factory=list)


def prompt_of(document: corpus.Document, tokenizer: Tokenizer, rng: random.Random) -> list[int] | None:
    """Cut a document where the target is to go on; None if that is too far in."""
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
    if (
        not ids
        or len(ids) > PROMPT_LIMIT
        and document.kind not in {"tool", "fim"}
        or len(ids) > TEXT_LIMIT - 40
    ):
        return None
    return ids


def choose(logits: NDArray[np.float32], temperature: float, rng: np.random.Generator) -> int:
    """Draw the next token; temperature 0 takes the most likely."""
    if temperature == 0:
        return int(logits.argmax())
    return int((logits / temperature + rng.gumbel(size=logits.shape)).argmax())


def note(text: Text, logits: NDArray[np.float32]) -> None:
    """Keep the most likely next tokens of one row (V)."""
    best = np.argpartition(logits, -TOP)[-TOP:]
    weights = np.exp(logits - logits.max())
    text.top_ids.append(best.astype(np.uint16))
    text.top_p.append((weights[best] / weights.sum()).astype(np.float16))


def speak(native: Native, prompts: Iterator[list[int]], ends: set[int], seed: int) -> Iterator[Text]:
    """Continue prompts, up to SLOTS at a time, and yield each text when it ends."""
    rng = np.random.default_rng(seed)
    live: dict[int, Text] = {}
    count = 0
    while True:
        entries: list[tuple[int, int, int, bool]] = []
        for slot in range(SLOTS):
            if slot in live:
                text = live[slot]
                entries.append((text.ids[-1], len(text.ids) - 1, slot, True))
            elif len(entries) < 512 and (ids := next(prompts, None)):
                live[slot] = Text(ids, len(ids), 0.0 if count % 2 else 0.8)
                count += 1
                entries += [(t, i, slot, i == len(ids) - 1) for i, t in enumerate(ids)]
        if not entries:
            return
        rows = native.evaluate(entries)
        for row, slot in zip(rows, [e[2] for e in entries if e[3]], strict=True):
            text = live[slot]
            note(text, row)
            text.ids.append(choose(row, text.temperature, rng))
            if text.ids[-1] in ends or len(text.ids) >= TEXT_LIMIT:
                native.forget(0, slot)
                yield live.pop(slot)


def write_shard(path: Path, texts: list[Text]) -> None:
    """Write texts as flat arrays, whole or not at all."""
    total = sum(len(t.ids) for t in texts)
    top_ids = np.zeros((total, TOP), np.uint16)
    top_p = np.zeros((total, TOP), np.float16)
    start = 0
    for text in texts:
        first = start + text.prompt - 1  # the row of the last prompt token says what comes next
        top_ids[first : first + len(text.top_ids)] = text.top_ids
        top_p[first : first + len(text.top_p)] = text.top_p
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


def make_shard(
    path: Path, target: Path, tokenizer: Tokenizer, number: int, tokens: int, threads: int = 1
) -> None:
    """Make one shard of about so many tokens, from the prompts of epoch `number`."""
    ends = {tok.token_id(tokenizer, marks.TURN_END), tok.token_id(tokenizer, marks.END_OF_TEXT)}
    done: list[Text] = []
    size = 0
    with Native(target, context=512, threads=threads, sequences=SLOTS) as native:
        for text in speak(native, prompts(tokenizer, number), ends, number):
            done.append(text)
            size += len(text.ids)
            if size >= tokens:
                break
    write_shard(path, done)
