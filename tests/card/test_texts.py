"""Wherever the layers of target and draft are, texts are those of the processor, within the margin."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from card.places import LOGITS_DIFFER_AT_MOST, PLACES, PROCESSOR, Place, apart
from real.embedded import held_out_prompts, pair_files

from edgespec.commands.verify.equality import complaint, difference, first_difference, output
from edgespec.core.loop import Want
from edgespec.core.request import Request
from edgespec.core.values import Emitted, Failed
from edgespec.engine.engine import Engine
from edgespec.engine.pair import Pair
from edgespec.grammar.grammar import json_schema
from edgespec.llama.context import Context, ContextSettings
from edgespec.llama.model import Model
from edgespec.llama.self_test_child import MARGIN
from edgespec.pairs.settings import PairSettings
from edgespec.sampling.sampler import Sampling
from edgespec_models import tiny

N = 12  # tokens of a text
SETTINGS = PairSettings(n_ctx=512, threads=1, remember=False)
GREEDY = Request(Sampling(temperature=0), N, draft_length=4, drafter="model")
SEEDED = replace(GREEDY, sampling=Sampling(temperature=0.8, top_p=1.0, min_p=0.0), seed=7)
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def opened(place: Place, files: tuple[Path, Path | None] | None = None, **settings: object) -> Pair:
    wanted = replace(SETTINGS, n_gpu_layers=place.target, draft_gpu_layers=place.draft, **settings)  # type: ignore[arg-type]
    return Pair(*(files or pair_files()), wanted)


@pytest.fixture(scope="module")
def processor() -> Iterator[Pair]:
    with opened(PROCESSOR) as pair:
        yield pair


@pytest.fixture(scope="module", params=PLACES.values(), ids=list(PLACES))
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    with opened(request.param) as pair:
        yield pair


def test_layers_lie_where_they_were_asked_to(pair: Pair) -> None:
    """What was said of the draft's was passed over: it lay where the target did."""
    asked = pair.settings.n_gpu_layers, pair.settings.draft_gpu_layers
    assert pair.draft
    on_card = [model.layers.total() - model.layers["CPU"] for model in (pair.target, pair.draft)]
    assert on_card == [11 if asked[0] < 0 else asked[0], 3 if asked[1] else 0]


@pytest.mark.parametrize("layers", [-1, 4, 0])
@pytest.mark.parametrize("name", ["target", "draft"])
def test_logits_are_those_that_ship(name: str, layers: int) -> None:
    """One token at a time and in a batch, as the self-test compares them on the processor."""
    reference = tiny.reference_logits()
    path = tiny.target_path() if name == "target" else tiny.draft_path()
    n = len(reference.tokens)
    with Model(path, n_gpu_layers=layers) as model, Context(model, ContextSettings(64, n_rows=n)) as context:
        single = [context.score([Want(reference.tokens[: i + 1])])[0][0].copy() for i in range(n)]
        context.clear()
        batch = context.score([Want(reference.tokens, rows=n)])[0]
        for rows in (np.stack(single), batch):
            off = np.sqrt(np.square(rows[:, reference.columns] - reference.rows[name]).mean(axis=1))
            assert float(off.max()) <= MARGIN


@pytest.mark.parametrize("request_", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_texts_are_those_of_the_processor(pair: Pair, processor: Pair, request_: Request) -> None:
    found = []
    for prompt in held_out_prompts(3):
        tokens = pair.prompt_tokens(prompt["prompt"], special=True)[:48]
        there = output(processor, tokens, replace(request_, drafter="none"))
        found.append(apart(processor, there, pair, output(pair, tokens, request_)))
    assert complaint(found, identical=False, logits_differ_at_most=LOGITS_DIFFER_AT_MOST) is None


def test_guesses_are_accepted_and_change_no_text(pair: Pair) -> None:
    found, accepted = [], 0
    for prompt in held_out_prompts(2):
        tokens = pair.prompt_tokens(prompt["prompt"], special=True)[:48]
        plain, drafted = (
            output(pair, tokens, GREEDY if guess else replace(GREEDY, drafter="none"))
            for guess in (False, True)
        )
        accepted += drafted.accepted
        found.append(difference(pair.target, pair.target_context.settings, plain, drafted))
    assert complaint(found, identical=False, logits_differ_at_most=LOGITS_DIFFER_AT_MOST) is None
    assert accepted > 0


def test_a_text_under_a_schema_fits_it(processor: Pair) -> None:
    grammar = json_schema(PERSON)
    with opened(PLACES["all on the card"]) as pair:
        prompt = pair.chat_tokens([{"role": "user", "content": "Write a person as JSON."}])
        request = replace(GREEDY, grammar=grammar, max_tokens=40, draft_length=None, drafter="auto")
        text = output(pair, prompt, request)
        there = output(processor, prompt, replace(request, drafter="none"))
    assert text.text.startswith("{") and there.text.startswith("{")


def test_several_at_once_say_what_each_says_alone() -> None:
    """Behind evaluations of up to 49 tokens, timed at load, lavapipe of Mesa 22.3 ended its process: sets of
    descriptors still named buffers that llama.cpp had replaced by larger ones."""
    with opened(PLACES["all on the card"], slots=3) as pair:
        settings = pair.target_context.settings
        prompts = [pair.prompt_tokens(p["prompt"], special=True)[:32] for p in held_out_prompts(3)]
        requests = [GREEDY, SEEDED, replace(GREEDY, drafter="auto")]
        engine = Engine(pair, slots=3, costs=pair.costs())
        said: dict[str, list[int]] = {}
        for i, (prompt, request) in enumerate(zip(prompts, requests, strict=True)):
            engine.submit(str(i), prompt, request)
        while not engine.idle:
            for one in engine.step():
                assert not isinstance(one, Failed), one
                if isinstance(one, Emitted):
                    said.setdefault(one.id, []).extend(one.round.tokens)
        for i, (prompt, request) in enumerate(zip(prompts, requests, strict=True)):
            alone = output(pair, prompt, replace(request, drafter="none"))
            same = sum(a == b for a, b in zip(alone.tokens, said[str(i)], strict=False))
            assert len(said[str(i)]) == N
            if same < N:  # batches are of other shapes: what differs has to be of arithmetic
                at = first_difference(alone.tokens, said[str(i)]) or 0
                tokens = np.append(prompt, np.array(alone.tokens[:at], np.int32))
                with Context(pair.target, replace(settings, n_seq=1)) as context:
                    row = context.score([Want(tokens)])[0][0]
                    assert row[alone.tokens[at]] - row[said[str(i)][at]] < LOGITS_DIFFER_AT_MOST
