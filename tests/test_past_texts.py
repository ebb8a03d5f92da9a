"""Why tokens of a prompt are evaluated again: what differs, who can change it, nothing of other owners."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from test_prefixes import REQUEST
from test_scheduler import FakePair

from edgespec.core.values import Broken, Started
from edgespec.engine.engine import Engine
from edgespec.engine.past_texts import LEAST, MOST, SHOWN, PastTexts
from edgespec.llama.cuts import Cuts, cuts_of
from edgespec.llama.model import Model

Tokens = NDArray[np.int32]


def piece(token: int) -> bytes:
    return b"%04d" % token


def spell(tokens: Sequence[int]) -> str:
    return "".join(f"{token:04d}" for token in tokens)


def text(seed: int, n: int) -> Tokens:
    return np.random.default_rng(seed).integers(0, 9999, n).astype(np.int32)


SYSTEM, FIRST, THOUGHT, ANSWER, NEXT = (text(i, n) for i, n in enumerate((900, 80, 100, 90, 30)))


def joined(*parts: Tokens) -> Tokens:
    return np.concatenate(parts)


def past(owner: str = "") -> PastTexts:
    found = PastTexts(piece)
    prompt = joined(SYSTEM, FIRST)
    found.add(joined(prompt, THOUGHT, ANSWER), prompt.size, owner)
    return found


def test_what_goes_on_and_what_is_new_need_no_reason() -> None:
    prompt = joined(SYSTEM, FIRST, THOUGHT, ANSWER, NEXT)
    assert past().explain(prompt, prompt.size - NEXT.size, "") is None
    other = joined(SYSTEM, text(9, 500))
    assert past().explain(other, SYSTEM.size, "") is None, "a sub-agent"
    assert past().explain(text(8, 600), 0, "") is None, "another conversation"
    assert past().explain(text(8, 5), 0, "") is None


def test_a_text_that_goes_on_and_repeats_itself_is_new() -> None:
    """A tool that gave the same result ten times was said to have found no room each time."""
    found = past()
    prompt = joined(SYSTEM, FIRST, THOUGHT, ANSWER, ANSWER)
    assert found.explain(prompt, prompt.size - ANSWER.size, "") is None
    why = found.explain(prompt, FIRST.size, "")
    assert why and why.cause == "room" and why.again == SYSTEM.size + THOUGHT.size + ANSWER.size


def test_a_thought_that_a_template_drops_is_the_templates() -> None:
    prompt, shared = joined(SYSTEM, FIRST, ANSWER, NEXT), SYSTEM.size + FIRST.size
    why = past().explain(prompt, shared, "")
    assert why and why.cause == "template" and why.at == shared
    assert (why.was, why.now) == (spell(THOUGHT[:20].tolist())[:SHOWN], spell(ANSWER[:20].tolist())[:SHOWN])
    assert LEAST < why.again <= ANSWER.size + NEXT.size


def test_a_changed_beginning_is_the_clients() -> None:
    prompt = joined(text(7, 3), SYSTEM[3:], FIRST, THOUGHT, ANSWER, NEXT)
    why = past().explain(prompt, 0, "")
    assert why and why.cause == "client" and why.at == 0 and why.ahead == 0
    assert why.again > 0.8 * prompt.size
    edited = joined(SYSTEM[:500], text(6, 5), SYSTEM[505:], FIRST)
    why = past().explain(edited, 500, "")
    assert why and why.cause == "client" and why.at == 500 and why.ahead == 2000


def test_what_was_held_and_is_no_longer_had_no_room() -> None:
    prompt = joined(SYSTEM, FIRST, THOUGHT, ANSWER, NEXT)
    why = past().explain(prompt, 0, "")
    assert why == Broken(why.again if why else 0, prompt.size - NEXT.size, "", "", "room")


def test_nothing_is_shown_of_another_owners_text() -> None:
    prompt = joined(SYSTEM, FIRST, ANSWER, NEXT)
    assert past(owner="a").explain(prompt, SYSTEM.size, "b") is None
    assert past(owner="a").explain(prompt, SYSTEM.size, "a")


def test_few_texts_are_remembered() -> None:
    found = PastTexts(piece)
    for i in range(3 * MOST):
        found.add(joined(SYSTEM, text(i, 5)), 900, "")
        found.add(joined(SYSTEM, text(i, 5), NEXT), 900, "")
    assert len(found._texts) == MOST, "a longer one takes the place of its beginning"


def test_the_engine_reports_where_tokens_were_and_why_others_are_read_again() -> None:
    engine = Engine(
        FakePair(slots=1, n_vocab=8, n_ctx=4096, cells=4096), slots=1, cache_ram=10**7, past=PastTexts(piece)
    )
    rng = np.random.default_rng(1)
    first, other = (rng.integers(0, 8, 300).astype(np.int32) for _ in range(2))
    edited = first.copy()
    edited[20:40] = (edited[20:40] + 1) % 8
    found = list[Started]()
    for prompt in (first, first, other, first, edited):
        engine.submit("r", prompt, REQUEST)
        while not engine.idle:
            found += [one for one in engine.step() if isinstance(one, Started)]
    assert [one.origin for one in found] == ["slot", "slot", "slot", "memory", "slot"]
    assert [one.broken and one.broken.at for one in found] == [None, None, None, None, 20]


def test_a_prompt_that_was_cancelled_while_it_was_read_was_not_evaluated_before() -> None:
    known = PastTexts(piece)
    pair = FakePair(slots=1, n_vocab=8, n_ctx=8192, cells=8192)
    engine = Engine(pair, slots=1, cache_ram=10**7, past=known)
    prompt = np.random.default_rng(2).integers(0, 8, 6000).astype(np.int32)
    engine.submit("r", prompt, REQUEST)
    engine.step()
    engine.cancel("r")
    while not engine.idle:
        engine.step()
    assert known.explain(prompt, 0, "") is None
    engine.submit("r", prompt, REQUEST)
    while not engine.idle:
        engine.step()
    assert known.explain(prompt, 0, "") is not None


# ---- its own tokens for what comes back --------------------------------------------------------------------


@pytest.fixture(scope="module")
def vocabulary(tiny_target: Path) -> Iterator[tuple[Model, Cuts]]:
    with Model(tiny_target) as model:
        yield model, cuts_of(model, special=True)


USER, BACK = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n", "<|im_end|>\n"


def letters(model: Model, text: str) -> list[int]:
    """Returns tokens that the tokeniser would not choose."""
    return [token for one in text for token in tokens_of(model, one)]


def tokens_of(model: Model, text: str) -> list[int]:
    return list(model.tokenize(text.encode(), special=True, add_bos=False).tolist())


def remembered(model: Model, *words: str, owner: str = "") -> tuple[PastTexts, list[int], str]:
    """Returns a conversation whose answers have odd tokens, its tokens and its text."""
    found, tokens, text = PastTexts(lambda token: model.piece(token, special=True)), list[int](), ""
    for i, answer in enumerate(words):
        prompt = USER.format(f"hello there {i}")
        tokens += tokens_of(model, prompt)
        n, text = len(tokens), text + prompt + answer
        tokens += letters(model, answer)
        found.add(np.array(tokens, np.int32), n, owner, replays=True)
        back = tokens_of(model, BACK)
        tokens, text = tokens + back, text + BACK
    return found, tokens[: -len(back)], text[: -len(BACK)]


def again(past: PastTexts, model: Model, cuts: Cuts, text: str, owner: str = "") -> list[int]:
    """Returns the tokens of a text that comes back."""
    raw = text.encode()
    found, n = past.replayed(raw, owner, model.control, cuts)
    assert b"".join(model.piece(token, special=True) for token in found.tolist()) == raw[:n]
    return [*found.tolist(), *tokens_of(model, text[len(raw[:n].decode()) :])]


def test_an_answer_that_comes_back_has_its_own_tokens(vocabulary: tuple[Model, Cuts]) -> None:
    """One token that the tokeniser splits otherwise, and all behind it was evaluated again."""
    model, cuts = vocabulary
    past, tokens, text = remembered(model, "the weather is fine", "and so it stays")
    more = BACK + USER.format("why?")
    assert again(past, model, cuts, text + more) == [*tokens, *tokens_of(model, more)]
    assert tokens_of(model, text + more) != [*tokens, *tokens_of(model, more)], "or nothing was tested"
    edited = text[: text.rindex("hello")] + "another question" + more
    first = USER.format("hello there 0")
    found = again(past, model, cuts, edited)
    own = [*tokens_of(model, first), *letters(model, "the weather is fine")]
    rest = edited[len(first + "the weather is fine") :]
    assert found == [*own, *tokens_of(model, rest)], "the first answer"


def test_what_differs_stays_as_it_was_sent(vocabulary: tuple[Model, Cuts]) -> None:
    model, cuts = vocabulary
    past, _, text = remembered(model, "the weather is fine  ")
    for changed in (text[:-3] + "d" + BACK, text.replace("weather", "heather") + BACK, text + "and more"):
        assert again(past, model, cuts, changed) == tokens_of(model, changed)
    trimmed = text.rstrip() + BACK
    own = [*tokens_of(model, USER.format("hello there 0")), *letters(model, "the weather is fine")]
    assert again(past, model, cuts, trimmed) == [*own, *tokens_of(model, BACK)], "the template trims it"


def test_nobody_gets_another_owners_tokens(vocabulary: tuple[Model, Cuts]) -> None:
    model, cuts = vocabulary
    past, _, text = remembered(model, "the weather is fine", owner="a")
    assert again(past, model, cuts, text + BACK, "b") == tokens_of(model, text + BACK)
    assert again(past, model, cuts, text + BACK, "a") != tokens_of(model, text + BACK)


def test_prompts_of_token_ids_are_no_pattern_for_texts(vocabulary: tuple[Model, Cuts]) -> None:
    model, cuts = vocabulary
    past, tokens = PastTexts(lambda token: model.piece(token, special=True)), letters(model, "abc def")
    past.add(np.array([*tokens, *letters(model, "x")], np.int32), len(tokens), "")
    assert again(past, model, cuts, f"abc defx{BACK}") == tokens_of(model, f"abc defx{BACK}")
