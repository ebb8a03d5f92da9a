"""With the shipped pair: eight streams at once write what each writes alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from real.embedded import BYTE_IDENTICAL, LOGITS_DIFFER_AT_MOST, held_out_prompts, pair_files
from same_bytes import byte_identical

from edgespec.commands.verify.equality import first_difference
from edgespec.core.loop import Want
from edgespec.core.request import Request
from edgespec.core.values import Emitted, Failed
from edgespec.core.verify import uniforms
from edgespec.engine.engine import Engine
from edgespec.engine.pair import Pair
from edgespec.llama.context import Context
from edgespec.sampling.sampler import Sampling

GREEDY = Sampling(temperature=0)
UNCUT = Sampling(temperature=0.7, top_p=1.0, min_p=0.0)  # no threshold that a token could fall below
STREAMS = 8
TILED = 64  # prompts from this length on are evaluated by a kernel whose sums depend on the place of cells
# Measured where the byte-identical profile holds: of prompts below 64 tokens all 128 texts are those alone
# (8 streams, greedy and seeded, lengths as the controller chooses and 4; caches f16); of longer ones 125.


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with Pair(*pair_files(), replace(BYTE_IDENTICAL, slots=STREAMS, n_ctx=1024, remember=False)) as pair:
        yield pair


def run(pair: Pair, asked: Mapping[str, tuple[NDArray[np.int32], Request]]) -> dict[str, list[int]]:
    """Returns the tokens of each; all are there from the beginning."""
    engine = Engine(pair, slots=pair.slots)
    for id, (prompt, request) in asked.items():
        engine.submit(id, prompt, request)
    found: dict[str, list[int]] = {id: [] for id in asked}
    while not engine.idle:
        for one in engine.step():
            assert not isinstance(one, Failed), one
            if isinstance(one, Emitted):
                found[one.id] += one.round.tokens
    return found


def alone(pair: Pair, prompt: NDArray[np.int32], request: Request) -> list[int]:
    """Returns the tokens of plain decoding with nothing beside it."""
    pair.forget()
    rounds = pair.generate(prompt, replace(request, drafter="none"))
    return [token for round_ in rounds for token in round_.tokens]


def short_prompts(pair: Pair) -> list[NDArray[np.int32]]:
    found = [
        pair.prompt_tokens(p["prompt"], special=True)[: TILED - 8 - i]
        for i, p in enumerate(held_out_prompts(STREAMS))
    ]
    return found


def requests(pair: Pair, n_tokens: int = 40) -> dict[str, tuple[NDArray[np.int32], Request]]:
    asked = {}
    for i, prompt in enumerate(short_prompts(pair)):
        request = Request(UNCUT if i % 2 else GREEDY, n_tokens, seed=i)
        asked[str(i)] = prompt, request
    return asked


def test_eight_streams_without_a_draft_are_each_alone_byte_for_byte(pair: Pair) -> None:
    settings = pair.target_context.settings
    identical = byte_identical(pair.target, settings, short_prompts(pair)[0], STREAMS)
    if not identical:
        pytest.skip("this machine does not have the byte-identical profile")
    asked = {id: (p, replace(r, drafter="none")) for id, (p, r) in requests(pair).items()}
    pair.forget()
    found = run(pair, asked)
    assert found == {id: alone(pair, *asked[id]) for id in asked}


@pytest.mark.sample(1)
@pytest.mark.parametrize("length", [None, 4])
def test_eight_streams_that_draft_are_each_alone_byte_for_byte(pair: Pair, length: int | None) -> None:
    """Cells of rejected guesses stay taken while others run: each text lies in the order of its tokens.

    Before they did, one text of eight and more differed in a third of the runs.
    """
    if not byte_identical(pair.target, pair.target_context.settings, short_prompts(pair)[0], STREAMS):
        pytest.skip("this machine does not have the byte-identical profile")
    asked = {id: (p, replace(r, draft_length=length)) for id, (p, r) in requests(pair).items()}
    pair.forget()
    found = run(pair, asked)
    assert any(pair.target_context.held(s).size for s in range(STREAMS))
    assert all(in_order(pair.target_context, s) for s in range(STREAMS))
    assert found == {id: alone(pair, *asked[id]) for id in asked}


def in_order(context: Context, s: int) -> bool:
    """Do the cells of a sequence lie in the order of its tokens? Its saved state lists them as they lie."""
    n = context.held(s).size
    words = context.save(s).state[: 16 + 12 * n].view(np.int32)
    assert words[3] == n
    return bool((words[4::3] == np.arange(n)).all())


def compare(
    pair: Pair,
    asked: Mapping[str, tuple[NDArray[np.int32], Request]],
    found: Mapping[str, list[int]],
) -> None:
    """Fails where a text differs from the one alone for no reason of arithmetic."""
    for id, (prompt, request) in asked.items():
        expected = alone(pair, prompt, request)
        at = first_difference(expected, found[id])
        if at is not None:
            tokens = np.concatenate([prompt, np.array(expected[:at], np.int32)])
            choice = expected[at : at + 1] + found[id][at : at + 1]
            assert distance(pair, tokens, request, choice) <= 2 * LOGITS_DIFFER_AT_MOST


def distance(pair: Pair, tokens: NDArray[np.int32], request: Request, choice: Sequence[int]) -> float:
    """Returns how far apart two choices are, in logits (an end: none)."""
    if len(choice) < 2:
        return 0.0
    with Context(pair.target, replace(pair.target_context.settings, n_seq=1)) as context:
        row = context.score([Want(tokens)])[0][0].astype(np.float64)
    score = row[list(choice)]
    if request.sampling.temperature:
        race = -np.log(uniforms(request.seed or 0, 0, tokens.size, np.array(choice, np.int64)))
        score = score - request.sampling.temperature * np.log(race)
    return abs(float(score[0] - score[1]))


def test_a_prompt_in_pieces_is_the_prompt_as_a_whole(pair: Pair) -> None:
    """Read over three steps, and beside a stream that goes on meanwhile."""
    text = " ".join(p["prompt"] for p in held_out_prompts(40))
    prompt = pair.prompt_tokens(text, special=True)[:900]
    request = Request(GREEDY, 20, seed=1)
    pair.forget()
    assert run(pair, {"long": (prompt, request)})["long"] == alone(pair, prompt, request)


def test_the_next_turn_evaluates_what_is_new(pair: Pair) -> None:
    prompt = short_prompts(pair)[0]
    request = Request(GREEDY, 20)
    pair.forget()
    answer = run(pair, {"a": (prompt, request)})["a"]
    before = pair.contexts["target"].evaluated
    turn = np.concatenate([prompt, np.array([*answer, 5, 6, 7], np.int32)])
    run(pair, {"b": (turn, replace(request, max_tokens=1))})
    assert pair.contexts["target"].evaluated - before <= 5


def test_a_chat_that_lost_its_slot_goes_on_from_host_memory() -> None:
    """Two chats take turns in one slot, and say what they say where each keeps a slot of its own."""
    with Pair(*pair_files(), replace(BYTE_IDENTICAL, slots=2, n_ctx=1024, remember=False)) as pair:
        texts = [pair.prompt_tokens(p["prompt"] * 3, special=True)[:150] for p in held_out_prompts(2)]
        request = Request(GREEDY, 12, drafter="none")

        def played(engine: Engine) -> list[tuple[list[int], int]]:
            """Returns the answers, and how many tokens were read for each."""
            turns, told = list(texts), []
            pair.forget()
            for i in (0, 1, 0, 1):
                engine.submit("chat", turns[i], request)
                tokens: list[int] = []
                before = pair.contexts["target"].evaluated
                while not engine.idle:
                    for one in engine.step():
                        tokens += one.round.tokens if isinstance(one, Emitted) else ()
                told.append((tokens, pair.contexts["target"].evaluated - before))
                turns[i] = np.concatenate([turns[i], np.array([*tokens, 5, 6, 7], np.int32)])
            return told

        own_slots = played(Engine(pair, slots=2))
        from_memory = played(Engine(pair, slots=1, cache_ram=2**28))
        read_again = played(Engine(pair, slots=1))
        assert [tokens for tokens, _ in own_slots] == [tokens for tokens, _ in from_memory]
        for kept in (own_slots, from_memory):
            assert all(kept[i][1] < 20 < 80 <= read_again[i][1] for i in (2, 3)), (kept, read_again)


def test_a_small_cache_delays_streams_and_fails_none() -> None:
    """llama.cpp says itself that its cells have run out; whoever waits goes on where it stood."""
    settings = replace(BYTE_IDENTICAL, slots=4, n_ctx=256, cache_tokens=256, remember=False)
    cleared: list[int] = []

    def noted(s: int = 0) -> None:
        cleared.append(s)
        clear(s)

    with Pair(*pair_files(), settings) as pair:
        clear, pair.target_context.clear = pair.target_context.clear, noted
        ban = dict.fromkeys(pair.target.end_tokens, -np.inf)
        asked = {
            id: (p[:8], Request(Sampling(temperature=0, logit_bias=ban), 120))
            for id, (p, _) in list(requests(pair).items())[:4]
        }
        cleared.clear()
        found = run(pair, asked)
        assert cleared, "somebody had to wait"
        assert all(len(tokens) == 120 for tokens in found.values())
        compare(pair, asked, found)  # long texts, read again in other batches
