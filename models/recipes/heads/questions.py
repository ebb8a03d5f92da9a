"""What SmolLM2 is asked when a head listens to it, in the kinds of Spec-Bench.

Prompts come from three places: the half of Spec-Bench with even numbers (figures are reported on the odd
half alone, see `spec_bench.py`), the documentation of packages that are installed here and of the standard
library, and questions made from templates. All are rendered with the chat template of the model's file.
"""

import importlib.metadata
import random
import re
from collections.abc import Iterator
from functools import cache
from itertools import islice
from pydoc_data.topics import topics as reference

from recipes.heads import topics as words
from recipes.heads.hidden import Hidden
from recipes.heads.listen import TEMPERATURES, Saying
from recipes.heads.spec_bench import Question
from recipes.template import compiled

SHARES = {"bench": 28, "topic": 30, "fact": 6, "code": 8, "sum": 12, "german": 5, "text": 11}
OVER_TEXT = [
    "Summarize: {}",
    "Summarize the following text in two sentences.\n\n{}",
    "{}\n\nWhat is this about?",
    "Read the text and list its main points.\n\n{}",
    "{}\n\nExplain this in simple words.",
]
Turns = list[str]


@cache
def passages() -> tuple[str, ...]:
    """Return paragraphs of prose from documentation, some 200 to 1,500 characters each."""
    texts = [str(reference[name]) for name in sorted(reference)]
    for package in sorted(importlib.metadata.distributions(), key=lambda d: str(d.metadata["Name"]).lower()):
        texts.append(package.read_text("METADATA") or "")
    found = []
    for text in texts:
        for part in re.split(r"\n\s*\n", text):
            plain = " ".join(part.split())
            letters = sum(c.isalpha() or c == " " for c in plain)
            if len(plain) >= 200 and letters > 0.88 * len(plain) and "http" not in plain:
                found.append(plain[:1500])
    return tuple(found)


def asked(kind: str, rng: random.Random, bench: list[Question]) -> Turns:
    """Make one question, or several turns, of a kind of SHARES."""
    if kind == "bench":
        return rng.choice(bench).turns
    if kind == "topic":
        topic, other = rng.sample(words.TOPICS, 2)
        return [rng.choice(words.FORMS).format(topic, other=other)]
    if kind == "fact":
        return [rng.choice(words.FACTS).format(work=rng.choice(words.WORKS), land=rng.choice(words.LANDS))]
    if kind == "code":
        return [
            rng.choice(words.CODE_FORMS).format(rng.choice(words.CODE), lang=rng.choice(words.CODE_LANGUAGES))
        ]
    if kind == "sum":
        a, b = rng.sample(words.NAMES, 2)
        j, k, n, m = (rng.randrange(*span) for span in ((2, 7), (2, 12), (5, 30), (30, 200)))
        made = rng.choice(words.SUMS).format(a=a, b=b, things=rng.choice(words.THINGS), j=j, k=k, n=n, m=m)
        return [made]
    if kind == "german":
        who, did, what = (
            rng.choice(part) for part in (words.GERMAN_WHO, words.GERMAN_DID, words.GERMAN_WHAT)
        )
        return [f"Translate German to English: {who} {did} , {what} ."]
    passage = rng.choice(passages())
    if rng.random() < 0.3:
        context = "\n".join(rng.sample(passages(), 2))[:1800]
        return [f"{context}\n\nAnswer from the text above: {rng.choice(words.FORMS[:7]).format('it')}"]
    return [rng.choice(OVER_TEXT).format(passage)]


def questions(seed: int, bench: list[Question]) -> Iterator[Turns]:
    """Yield questions without end, kinds by SHARES."""
    rng = random.Random(f"questions {seed}")
    kinds, weights = list(SHARES), list(SHARES.values())
    while True:
        yield asked(rng.choices(kinds, weights)[0], rng, bench)


TEXTS = 256  # a shard
PROMPT = 640  # tokens
LIMIT = 256  # new tokens
CONTEXT = PROMPT + LIMIT


def rendered(target: Hidden, turns: Turns, template: str) -> list[int]:
    """Return the prompt of the first turn as tokens."""
    messages = [{"role": "user", "content": turns[0]}]
    return target.tokenise(compiled(template).render(messages=messages, add_generation_prompt=True))


def training(target: Hidden, template: str, bench: list[Question], number: int) -> list[Saying]:
    """Return what is asked in a shard."""
    prompts = (rendered(target, turns, template) for turns in questions(number, bench))
    short = islice((p for p in prompts if len(p) <= PROMPT), TEXTS)
    return [Saying(p, TEMPERATURES[i % len(TEMPERATURES)], LIMIT) for i, p in enumerate(short)]
