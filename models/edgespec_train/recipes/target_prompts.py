"""Choose what the target continues: cuts of the corpus, from epochs that no other stage uses.

Held-out prompts come from the held-out modules, without those that ship: these are for the figures.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from tokenizers import Tokenizer

from edgespec_models import tiny
from edgespec_train import recorded, shards
from edgespec_train.progress import Log
from edgespec_train.recipes import corpus, marks, prompts
from edgespec_train.recipes import tokenizer as tok
from edgespec_train.recorded import TEMPERATURES, PromptToRecord, RecordedText

SHARES = {"code": 4.0, "fim": 5.0, "docs": 0.8, "body": 1.5, "talk": 0.2}


def prompt_of(document: corpus.Document, tokenizer: Tokenizer, rng: random.Random) -> list[int]:
    """Cut a document where the target should continue."""
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
    return list(tokenizer.encode(text).ids)


def of_epoch(tokenizer: Tokenizer, number: int) -> Iterator[list[int]]:
    """Yield training prompts of an epoch; SHARES says how many a document of each kind gives."""
    rng = random.Random(f"prompts {number}")
    for document in corpus.epoch(number):
        for _ in range(int(SHARES.get(document.kind, 1.0) + rng.random())):
            yield prompt_of(document, tokenizer, rng)


def held_out_prompts(tokenizer: Tokenizer, shipped: Path) -> Iterator[list[int]]:
    """Yield prompts from held-out modules, none of which ships."""
    rng = random.Random("held-out")
    reported = [p["prompt"] for p in prompts.read(shipped)]
    documents = [d for d in corpus.held_out() if not any(text in d.text for text in reported)]
    rng.shuffle(documents)
    for document in documents:
        yield prompt_of(document, tokenizer, rng)


@dataclass(frozen=True, slots=True)
class Wanted:
    """Say how much a target is to write, and after which prompts."""

    tokens: int  # that it writes
    first_epoch: int  # of the prompts
    longest: int  # tokens of a prompt
    limits: tuple[int, ...]  # new tokens, in turn
    texts: int = 1024  # a shard
    held_out: int = 192  # texts

    def prompts(self, found: Iterator[list[int]], count: int) -> list[PromptToRecord]:
        """Return so many prompts that are short enough; temperatures and limits are dealt in turn."""
        some = islice((prompt for prompt in found if 0 < len(prompt) <= self.longest), count)
        return [
            PromptToRecord(prompt, TEMPERATURES[i % len(TEMPERATURES)], self.limits[i % len(self.limits)])
            for i, prompt in enumerate(some)
        ]


def record_texts(
    work: Path, tokenizer: Tokenizer, wanted: Wanted, record: shards.Record, log: Log
) -> tuple[list[Path], list[RecordedText]]:
    """Let a target continue training prompts, in shards, and some of held-out modules; return both."""

    def held_out(number: int) -> list[PromptToRecord]:
        return wanted.prompts(held_out_prompts(tokenizer, tiny.held_out_prompts_path()), wanted.held_out)

    def training(number: int) -> list[PromptToRecord]:
        return wanted.prompts(of_epoch(tokenizer, wanted.first_epoch + number), wanted.texts)

    (apart,) = shards.record_goal(record, work, "held-out", held_out, 1, log)
    found = shards.record_goal(record, work, "recorded", training, wanted.tokens, log)
    return found, list(recorded.read(apart))


def ends_of(tokenizer: Tokenizer) -> set[int]:
    """Return the tokens after which there is nothing more to say."""
    return {tok.token_id(tokenizer, marks.TURN_END), tok.token_id(tokenizer, marks.END_OF_TEXT)}
