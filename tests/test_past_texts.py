"""Why tokens of a prompt are evaluated again: what differs, who can change it, nothing of other owners."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from test_prefixes import REQUEST
from test_scheduler import FakePair

from edgespec.core.values import Broken, Started
from edgespec.engine.engine import Engine
from edgespec.engine.past_texts import LEAST, MOST, SHOWN, PastTexts

Tokens = NDArray[np.int32]


def spell(tokens: Sequence[int]) -> str:
    return "".join(f"{token:04d}" for token in tokens)


def text(seed: int, n: int) -> Tokens:
    return np.random.default_rng(seed).integers(0, 9999, n).astype(np.int32)


SYSTEM, FIRST, THOUGHT, ANSWER, NEXT = (text(i, n) for i, n in enumerate((900, 80, 100, 90, 30)))


def joined(*parts: Tokens) -> Tokens:
    return np.concatenate(parts)


def past(owner: str = "") -> PastTexts:
    found = PastTexts(spell)
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
    found = PastTexts(spell)
    for i in range(3 * MOST):
        found.add(joined(SYSTEM, text(i, 5)), 900, "")
        found.add(joined(SYSTEM, text(i, 5), NEXT), 900, "")
    assert len(found._texts) == MOST, "a longer one takes the place of its beginning"


def test_the_engine_reports_where_tokens_were_and_why_others_are_read_again() -> None:
    engine = Engine(
        FakePair(slots=1, n_vocab=8, n_ctx=4096, cells=4096), slots=1, cache_ram=10**7, spell=spell
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
