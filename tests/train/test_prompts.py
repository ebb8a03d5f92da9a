"""The shipped held-out prompts: enough of every kind, small, and in no training file. No torch."""

import json
from collections import Counter

from edgespec_models import tiny
from edgespec_train.recipes import marks, prompts, sources
from edgespec_train.recipes.template import render


def shipped():
    return prompts.read(tiny.held_out_prompts_path())


def test_there_are_enough_of_every_kind():
    path = tiny.held_out_prompts_path()
    counts = Counter(p["kind"] for p in shipped())
    assert set(counts) == set(prompts.COUNTS) and min(counts.values()) >= 12 and counts.total() >= 60
    assert path.stat().st_size < 60_000


def test_prompts_are_what_the_template_makes_of_the_messages():
    for prompt in shipped():
        if "messages" in prompt:
            assert prompt["prompt"] == render(prompt["messages"], add_generation_prompt=True)
        assert json.loads(json.dumps(prompt)) == prompt


def test_no_prompt_of_code_stands_in_a_training_file():
    trained = "\n".join(
        f.text for f in sources.read_files() if not sources.is_held_out(sources.group_of(f.module))
    )
    for prompt in shipped():
        if prompt["kind"] == "code":
            body = "\n".join(line for line in prompt["prompt"].split("\n") if not line.startswith("# "))
            assert body.strip() not in trained
        elif prompt["kind"] == "fim":
            before, after = prompt["prompt"].removeprefix(marks.FIM_PREFIX).split(marks.FIM_SUFFIX)
            longer = max(before, after.removesuffix(marks.FIM_MIDDLE), key=len)
            assert longer not in trained
