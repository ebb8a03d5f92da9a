"""Read Spec-Bench (https://github.com/hemingkx/Spec-Bench) and keep its halves apart.

Questions with even numbers may train, except every eighth of them, on which a training is watched; figures
are reported on the odd ones only. Each category numbers its questions without gaps, so all parts have every
kind alike.
"""

import json
from dataclasses import dataclass
from pathlib import Path

CHAT = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")


@dataclass(frozen=True, slots=True)
class SpecBenchQuestion:
    number: int
    kind: str  # one of six: "chat" stands for the eight categories of MT-bench
    turns: list[str]


def read(path: Path) -> list[SpecBenchQuestion]:
    """Return all questions of the file."""
    lines = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
    kinds = dict.fromkeys(CHAT, "chat")
    return [
        SpecBenchQuestion(q["question_id"], kinds.get(q["category"], q["category"]), q["turns"])
        for q in lines
    ]


def training(questions: list[SpecBenchQuestion]) -> list[SpecBenchQuestion]:
    """Return the questions that a head may be trained on."""
    return [q for q in questions if q.number % 2 == 0 and q.number % 16]


def watched(questions: list[SpecBenchQuestion]) -> list[SpecBenchQuestion]:
    """Return those that show how a training goes: nothing is trained on them, and nothing reported."""
    return [q for q in questions if q.number % 16 == 0]


def reported(questions: list[SpecBenchQuestion]) -> list[SpecBenchQuestion]:
    """Return the half that figures are reported on; nothing is trained on it."""
    return [q for q in questions if q.number % 2 == 1]
