"""The prompts for the embedded target when a head is trained for it: from the recipe's own corpus.

Training prompts come from epochs that no other stage uses. Those watched during training come from the
held-out modules, without the prompts that ship: those are for the figures.
"""

import random
from itertools import islice
from pathlib import Path

from tokenizers import Tokenizer

from edgespec_models.distill.saying import TEMPERATURES, Saying
from recipes import corpus, prompts, said

FIRST_EPOCH = 30
TEXTS = 1024  # a shard
PROMPT = 112  # tokens; longer ones would be most of what is evaluated
LIMITS = (160,) * 9 + (560,)  # new tokens, in turn
CONTEXT = PROMPT + max(LIMITS)


def asked(found: list[list[int]]) -> list[Saying]:
    """Return prompts with their temperatures and limits, dealt in turn."""
    return [
        Saying(prompt, TEMPERATURES[i % len(TEMPERATURES)], LIMITS[i % len(LIMITS)])
        for i, prompt in enumerate(found)
    ]


def training(tokenizer: Tokenizer, number: int) -> list[Saying]:
    """Return the prompts of a shard."""
    short = (p for p in said.prompts(tokenizer, FIRST_EPOCH + number) if len(p) <= PROMPT)
    return asked(list(islice(short, TEXTS)))


def watched(tokenizer: Tokenizer, shipped: Path, count: int = 192) -> list[Saying]:
    """Return prompts from held-out modules, none of which ships."""
    rng = random.Random("watched")
    reported = [p["prompt"] for p in prompts.read(shipped)]
    documents = [d for d in corpus.held_out() if not any(text in d.text for text in reported)]
    rng.shuffle(documents)
    found = (said.prompt_of(d, tokenizer, rng) for d in documents)
    return asked(list(islice((p for p in found if p and len(p) <= PROMPT), count)))
