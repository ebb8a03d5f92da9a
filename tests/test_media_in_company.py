"""Pictures beside other streams keep to the room of an evaluation, and the fault of one is nobody else's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import test_heads
from drawn_media import drawn
from fakes import Remembering
from numpy.typing import NDArray
from test_scheduler import GREEDY, FakePair, Told, run

from edgespec.core.drafters import Drafting, NoDrafter, certain
from edgespec.core.loop import Rows, Want
from edgespec.core.media import cells
from edgespec.core.request import Request
from edgespec.core.values import Draft, Emitted, Failed
from edgespec.core.verify import Rule
from edgespec.engine.engine import STUCK, Engine
from edgespec.engine.pair import MOST_ROWS, Pair
from edgespec.errors import EngineError, FatalDecodeError
from edgespec.pairs.settings import PairSettings
from edgespec.sampling.sampler import Distribution, Sampling

TOKEN_S = 0.02  # 20 tokens of a prompt are read in a pause
SLOW = {n: TOKEN_S * n for n in (1, 8, 63, 512)}
Tokens = NDArray[np.int32]


def text(seed: int, n: int) -> Tokens:
    return np.random.default_rng(seed).integers(0, 8, n).astype(np.int32)


def picture(n: int) -> Tokens:
    return cells(b"picture", n, n)


def slow(pair: FakePair) -> Engine:
    """Returns an engine on a machine that reads prompts slowly."""
    return Engine(pair, slots=pair.slots, clock=lambda: TOKEN_S * pair.target.evaluated)


def asked_beside(pair: FakePair, others: int, prompt: Tokens, request: Request) -> Told:
    """Asks while others are being answered; no evaluation of several may have more rows than it has room."""
    engine, told = slow(pair), Told()
    for i in range(others):
        engine.submit(str(i), text(i, 5), replace(request, max_tokens=60))
    while len(told.rounds) < others:
        told.take(engine.step())
    engine.submit("picture", prompt, replace(request, max_tokens=4))
    run(engine, told)
    assert not told.failed
    together = [call for call in pair.target.calls if len(call) > 1]
    assert together and all(sum(n for n, _ in call.values()) <= MOST_ROWS for call in together)
    return told


@pytest.mark.parametrize("others", [1, 2, 3])
@pytest.mark.parametrize("drafter", ["none", "auto"])
def test_a_picture_next_to_others_ends_neither_them_nor_itself(drafter: str, others: int) -> None:
    """On a slow machine a picture lengthened the part of a prompt that joins an evaluation, past its room.

    With two running answers nobody was let in, and the next step was the same, for ever. With one, prices
    of further rows were looked up outside their table, and every answer was lost.
    """
    for before, n in ((0, 200), (9, 64), (15, 60), (30, 40), (3, 15), (70, 1)):
        pair = FakePair(slots=4, points=SLOW, drafter=drafter, order=1)
        told = asked_beside(
            pair, others, np.concatenate([text(7, before), picture(n), text(8, 30)]), Request(GREEDY)
        )
        assert all(told.finish(id) == "length" for id in told.rounds)


class Blurting(NoDrafter):
    """Draws 40 guesses without asking."""

    def draft(self, tokens: Tokens, limit: int, rule: Rule) -> Drafting:
        n, q = min(limit, 40), certain(0)
        return Draft((0,) * n, (q,) * n, "lookup")
        yield


@pytest.mark.parametrize("others", [1, 3])
def test_long_guesses_next_to_a_prompt_that_is_read_keep_nobody_out(others: int) -> None:
    """Where nobody's guesses fitted beside the part of a prompt, none took part, and the step came again."""
    pair = FakePair(slots=4, points=SLOW, order=1, drafter=Blurting())
    told = asked_beside(pair, others, text(9, 200), Request(GREEDY))
    assert all(told.finish(id) == "length" for id in told.rounds)


def test_steps_that_do_nothing_come_to_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that let nobody in repeated its step for ever; now one request pays, and others go on."""
    pair = FakePair(slots=2, drafter="none")
    engine, told, whole = slow(pair), Told(), Engine._fitting
    for id in "ab":
        engine.submit(id, text(1, 4), Request(GREEDY, 20))
    while len(told.rounds) < 2:
        told.take(engine.step())
    monkeypatch.setattr(
        Engine, "_fitting", lambda self, ready, rows: whole(self, ready, rows) * (len(ready) < 2)
    )
    run(engine, told)
    assert set(told.failed) == {"a"} and told.finish("b") == "length"
    assert f"in {STUCK} steps" in str(told.failed["a"].error) and told.steps < 3 * STUCK


# ---- one fault, one answer -----------------------------------------------------------------------------


def test_who_can_be_evaluated_goes_on_where_the_target_fails_for_another() -> None:
    """One sequence that llama.cpp could not evaluate ended all answers of its evaluation."""
    pair = FakePair(slots=3)
    engine, told = slow(pair), Told()
    asked = {id: text(i, 6) for i, id in enumerate("abc")}
    for id, prompt in asked.items():
        engine.submit(id, prompt, Request(GREEDY, 30))
    while len(told.rounds) < 3:
        told.take(engine.step())
    whole = pair.target.score

    def broken(wants: Sequence[Want]) -> list[Rows]:
        if any(want.seq == 1 for want in wants):
            raise FatalDecodeError("the backend failed")
        return whole(wants)

    pair.target.score = broken  # type: ignore[method-assign]
    run(engine, told)
    assert set(told.failed) == {"b"}
    for id in "ac":
        assert told.tokens(id) == pair.alone(asked[id], Request(GREEDY, 30))


def test_a_bug_that_one_answer_meets_ends_no_other(capfd: pytest.CaptureFixture[str]) -> None:
    """What was no error of EdgeSpec's own ended the engine, and every answer in it."""

    class Broken(Remembering):
        def __call__(self, row: Rows, history: Sequence[int] | Tokens = ()) -> Distribution:
            raise KeyError("a bug")

    pair, odd = FakePair(slots=2, drafter="none"), Sampling(temperature=0.5)
    pair.samplers[repr(odd)] = Broken(odd, pair.n_vocab)
    engine = slow(pair)
    engine.submit("good", text(1, 6), Request(GREEDY, 10))
    engine.submit("odd", text(2, 6), Request(odd, 10))
    told = run(engine)
    assert told.finish("good") == "length" and isinstance(told.failed["odd"].error, EngineError)
    assert "a fault of EdgeSpec's own (KeyError)" in str(told.failed["odd"].error)
    assert "a bug" in capfd.readouterr().err, "the log has more"


@pytest.mark.sample(1)
@pytest.mark.parametrize("write", [test_heads.mtp, test_heads.eagle], ids=lambda write: write.__name__)
def test_a_beginning_that_ends_with_a_picture_is_read_though_its_hidden_row_is_gone(
    write: Callable[[Path], tuple[Path, Path | None]], tmp_path: Path
) -> None:
    """Its last cell was to be read again, by itself: that request was refused at every retry."""
    target, head = write(tmp_path)
    settings = PairSettings(n_ctx=320, threads=1, slots=2, remember=False, flash_attention=False)
    seen = drawn(3, 64, causal=True, wide=False)
    beginning = np.concatenate([text(1, 40), seen.cells])
    with Pair(target, head, settings) as pair:
        context = pair.target_context
        context.media = {seen.cells.item(0): seen}
        said = []
        for gone in (False, True, True):
            engine, tokens = Engine(pair, slots=2), []
            engine.submit(
                "it",
                np.concatenate([beginning, text(5 + gone, 9)]),
                replace(test_heads.GREEDY, max_tokens=12),
            )
            if gone:  # as after a restoration from host memory
                context.cut(0, beginning.size)
                assert context._cells.hidden
                context._cells.hidden.cut(0, 0)
            while not engine.idle:
                for event in engine.step():
                    assert not isinstance(event, Failed), event.error
                    tokens += event.round.tokens if isinstance(event, Emitted) else ()
            said.append(tokens)
            if len(said) == 2:
                pair.forget()
        assert said[1] == said[2] and len(said[0]) == 12
