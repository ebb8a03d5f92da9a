"""What SmolLM2 is asked when a head listens to it, in the kinds of Spec-Bench.

To the questions of `edgespec_models/distill/questions.py` come those of Spec-Bench with even numbers (figures
are reported on the odd half alone, see `spec_bench.py`). All are rendered with the chat template of the
model's file.
"""

from collections.abc import Iterator
from itertools import islice

from edgespec_models.distill import questions
from edgespec_models.distill.hidden import Hidden
from edgespec_models.distill.listen import TEMPERATURES, Saying
from edgespec_models.distill.questions import Turns
from recipes.heads.spec_bench import Question
from recipes.template import compiled

SHARES = {"bench": 28, **questions.SHARES}


def asked(seed: int, bench: list[Question]) -> Iterator[Turns]:
    """Yield questions without end, kinds by SHARES."""
    for _, turns in questions.questions(seed, shares=SHARES, own={"bench": [q.turns for q in bench]}):
        yield turns


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
    prompts = (rendered(target, turns, template) for turns in asked(number, bench))
    short = islice((p for p in prompts if len(p) <= PROMPT), TEXTS)
    return [Saying(p, TEMPERATURES[i % len(TEMPERATURES)], LIMIT) for i, p in enumerate(short)]
