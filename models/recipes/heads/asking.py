"""The prompts for SmolLM2 when a head is trained for it.

Most questions are its own (`self_asked.py`). Added are `edgespec_models/distill/questions.py` and
those of Spec-Bench with even numbers (figures are reported on the odd half alone, see `spec_bench.py`). All
are rendered with the chat template of the model's file.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

from edgespec_models.distill import questions
from edgespec_models.distill.native import Native
from edgespec_models.distill.questions import Turns
from edgespec_models.distill.saying import TEMPERATURES, Saying
from recipes.heads import spec_bench
from recipes.heads.self_asked import SelfAsked
from recipes.heads.spec_bench import SpecBenchQuestion
from recipes.template import compiled

if TYPE_CHECKING:
    from edgespec_models.distill.target_file import TargetFile  # which imports torch

SHARES = {"bench": 28, **questions.SHARES}


def asked(seed: int | str, bench: list[SpecBenchQuestion]) -> Iterator[Turns]:
    """Yield questions without end, kinds by SHARES."""
    for _, turns in questions.questions(seed, shares=SHARES, own={"bench": [q.turns for q in bench]}):
        yield turns


TEXTS = 256  # a shard
PROMPT = 640  # tokens
LIMIT = 192  # new tokens
CONTEXT = PROMPT + LIMIT


def rendered(target: Native, turns: Turns, template: str) -> list[int]:
    """Return the prompt of the first turn as tokens."""
    messages = [{"role": "user", "content": turns[0]}]
    return target.tokenise(compiled(template).render(messages=messages, add_generation_prompt=True))


def training(
    target: Native, template: str, bench: list[SpecBenchQuestion], number: int | str
) -> list[Saying]:
    """Return the prompts of a shard."""
    prompts = (rendered(target, turns, template) for turns in asked(number, bench))
    short = islice((p for p in prompts if len(p) <= PROMPT), TEXTS)
    return [Saying(p, TEMPERATURES[i % len(TEMPERATURES)], LIMIT) for i, p in enumerate(short)]


def of_all(target: Native, template: str, bench: list[SpecBenchQuestion]) -> list[Saying]:
    """Return each question twice, greedy and at temperature 1; none whose prompt is too long."""
    prompts = (rendered(target, q.turns, template) for q in bench)
    return [Saying(p, temperature, LIMIT) for p in prompts if len(p) <= PROMPT for temperature in (0.0, 1.0)]


def ends(target: TargetFile) -> set[int]:
    """Return the tokens that end a text: SmolLM2's `<|endoftext|>`, and the end of a turn."""
    return {0, int(target.text("tokenizer.ggml.eos_token_id"))}


def self_asked(target: Native, template: str, bench: list[SpecBenchQuestion]) -> SelfAsked:
    """Return how the target asks itself; none of its questions repeats a reported or a watched one."""
    mark = "@@@"
    text = compiled(template).render(
        messages=[{"role": "user", "content": mark}], add_generation_prompt=False
    )

    def prompt(question: str) -> list[int] | None:
        ids = rendered(target, [question], template)
        return ids if len(ids) <= PROMPT else None

    def text_of(ids: list[int]) -> str:
        return target.detokenise(ids, special=True).decode(errors="replace")

    apart = [turn for q in bench if q not in spec_bench.training(bench) for turn in q.turns]
    return SelfAsked(target.tokenise(text[: text.index(mark)]), text_of, prompt, apart, LIMIT)
