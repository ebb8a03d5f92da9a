"""Choose what the target is asked to continue: cuts of the corpus, from epochs that no other stage uses.

Prompts on which a training is watched come from the held-out modules, without those that ship: these are for
the figures.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from tokenizers import Tokenizer

from edgespec_models import tiny
from edgespec_models.distill import gather, heard
from edgespec_models.distill.heard import TEMPERATURES, Heard, Saying
from edgespec_models.distill.progress import Log
from recipes import corpus, marks, prompts
from recipes import tokenizer as tok

SHARES = {"code": 4.0, "fim": 5.0, "docs": 0.8, "body": 1.5, "talk": 0.2}
WATCHED = 192  # texts


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


def held_out(tokenizer: Tokenizer, shipped: Path) -> Iterator[list[int]]:
    """Yield prompts from held-out modules, none of which ships."""
    rng = random.Random("watched")
    reported = [p["prompt"] for p in prompts.read(shipped)]
    documents = [d for d in corpus.held_out() if not any(text in d.text for text in reported)]
    rng.shuffle(documents)
    for document in documents:
        yield prompt_of(document, tokenizer, rng)


@dataclass(frozen=True, slots=True)
class Wanted:
    """Say how much a target is to write, and after which prompts."""

    said: int  # tokens that it writes
    first_epoch: int  # of the prompts
    longest: int  # tokens of a prompt
    limits: tuple[int, ...]  # new tokens, in turn
    texts: int = 1024  # a shard

    def sayings(self, found: Iterator[list[int]], count: int) -> list[Saying]:
        """Return so many prompts that are short enough; temperatures and limits are dealt in turn."""
        some = islice((prompt for prompt in found if 0 < len(prompt) <= self.longest), count)
        return [
            Saying(prompt, TEMPERATURES[i % len(TEMPERATURES)], self.limits[i % len(self.limits)])
            for i, prompt in enumerate(some)
        ]


def hear(
    work: Path, tokenizer: Tokenizer, wanted: Wanted, speak: gather.Speak, log: Log
) -> tuple[list[Path], list[Heard]]:
    """Let a target continue training prompts, in shards, and some of held-out modules; return both."""

    def watched(number: int) -> list[Saying]:
        return wanted.sayings(held_out(tokenizer, tiny.held_out_prompts_path()), WATCHED)

    def training(number: int) -> list[Saying]:
        return wanted.sayings(of_epoch(tokenizer, wanted.first_epoch + number), wanted.texts)

    (watch,) = gather.gather(speak, work, "watched", watched, 1, log)
    return gather.gather(speak, work, "heard", training, wanted.said, log), list(heard.read(watch))


def ends_of(tokenizer: Tokenizer) -> set[int]:
    """Return the tokens after which there is nothing more to say."""
    return {tok.token_id(tokenizer, marks.TURN_END), tok.token_id(tokenizer, marks.END_OF_TEXT)}
