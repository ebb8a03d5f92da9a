"""The prompts of a model whose head is trained: never those of reported figures."""

import json
from itertools import islice

import pytest

from edgespec_models.distill import questions
from recipes.heads import asking, spec_bench

CATEGORIES = {"writing": 81, "coding": 121, "translation": 161, "summarization": 241, "qa": 321, "rag": 481}


@pytest.fixture
def bench(tmp_path):
    lines = [
        json.dumps({"question_id": first + i, "category": name, "turns": [f"{name} question {first + i}?"]})
        for name, first in CATEGORIES.items()
        for i in range(10)
    ]
    path = tmp_path / "question.jsonl"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return spec_bench.read(path)


def test_the_parts_of_spec_bench_share_nothing_and_have_every_kind(bench):
    training, reported = spec_bench.training(bench), spec_bench.reported(bench)
    watched = spec_bench.watched(bench)
    numbers = [q.number for part in (training, reported, watched) for q in part]
    assert sorted(numbers) == sorted(q.number for q in bench) and watched
    assert {q.kind for q in training} == {q.kind for q in reported} == {q.kind for q in bench}
    assert {q.kind for q in bench if q.number < 161} == {"chat"}


def test_the_real_file_has_as_many_questions_of_every_kind_in_each_part(test_data):
    read = spec_bench.read(test_data / "spec_bench.jsonl")
    parts = ((spec_bench.training, 35), (spec_bench.watched, 5), (spec_bench.reported, 40))
    for part, count in parts:
        kinds = [q.kind for q in part(read)]
        assert {kind: kinds.count(kind) for kind in kinds} == dict.fromkeys(
            ("chat", "translation", "summarization", "qa", "math_reasoning", "rag"), count
        )


def test_no_question_that_trains_is_one_that_is_reported(bench):
    reported = {turn for q in spec_bench.reported(bench) for turn in q.turns}
    asked = [turn for turns in islice(asking.asked(3, spec_bench.training(bench)), 400) for turn in turns]
    assert not reported & set(asked)
    assert any(turn.startswith("Translate German") for turn in asked)
    assert len(set(asked)) > 250


def test_a_shard_asks_the_same_every_time_and_others_ask_other_things(bench):
    first, again, other = (list(islice(asking.asked(seed, bench), 50)) for seed in (1, 1, 2))
    assert first == again and first != other


def test_passages_are_prose():
    passages = questions.passages()
    assert len(passages) > 200
    assert all(200 <= len(text) <= 1500 and "\n" not in text for text in passages)
