"""Which turns are left out of a prompt that would not fit."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import accumulate

import pytest
from fake_endpoint import FakeEndpoint

from edgespec.errors import PromptTooLongError
from edgespec_tui.sessions.context_fit import Fitting, fit, leave_out
from edgespec_tui.sessions.conversation import Conversation


def left_out(
    sizes: list[int], *, system: int = 10, n_ctx: int = 1000, answer: int = 250, before: int = 0
) -> int:
    """Lets `leave_out` ask about a path of questions and answers with these sizes; checks what it asks."""
    asked = []

    async def count(wanted: int) -> int:
        asked.append(wanted)
        return system + sum(sizes[wanted:])

    n = asyncio.run(leave_out(range(0, len(sizes), 2), count, n_ctx=n_ctx, answer=answer, before=before))
    assert len(asked) <= 3 + len(sizes).bit_length(), "every question costs a tokenization"
    return n


def test_nothing_is_left_out_of_what_fits_with_room_for_an_answer() -> None:
    assert left_out([100, 100, 540]) == 0
    assert left_out([100, 100, 541]) > 0


def test_whole_oldest_exchanges_go_until_half_of_the_context_is_free() -> None:
    sizes = [50, 150] * 4 + [50]
    assert left_out(sizes) == 4
    assert 10 + sum(sizes[4:]) <= 500 < 10 + sum(sizes[2:])


@pytest.mark.parametrize("n", range(1, 40))
def test_the_cut_is_the_earliest_that_will_do(n: int) -> None:
    sizes = [37, 61] * n + [20]
    cuts = [cut for cut in range(0, len(sizes), 2) if 10 + sum(sizes[cut:]) <= 500]
    assert left_out(sizes) == (0 if 10 + sum(sizes) <= 750 else cuts[0])


def test_what_was_left_out_stays_out_so_that_prompts_begin_alike() -> None:
    """Otherwise every turn would cut elsewhere, and evaluate its whole prompt again."""
    sizes = [50, 100] * 4
    cuts = []
    for _ in range(30):
        cuts.append(left_out([*sizes, 50], before=cuts[-1] if cuts else 0))
        sizes += [50, 100]
    changes = [a != b for a, b in zip(cuts, cuts[1:], strict=False)]
    assert cuts == list(accumulate(cuts, max)), "nothing comes back"
    assert cuts[-1] and sum(changes) <= 30 * 150 / 250 / 2 + 2, cuts


def test_a_long_last_question_is_reported_alone_and_one_that_does_not_fit_is_refused_with_both_counts() -> (
    None
):
    assert left_out([10, 10, 900]) == 2
    assert left_out([10, 10, 989]) == 2
    with pytest.raises(PromptTooLongError, match=r"1,000 tokens .* 1,000") as refusal:
        left_out([10, 10, 990])
    assert (refusal.value.n_prompt, refusal.value.n_ctx) == (1000, 1000)
    with pytest.raises(PromptTooLongError):
        left_out([990])


# ---- through an endpoint ----------------------------------------------------------------------------------


def talk_of(words: int, turns: int) -> Conversation:
    talk = Conversation(system="be kind")
    for i in range(turns):
        talk.add("user" if i % 2 == 0 else "assistant", f"t{i} " + "word " * (words - 1), parent=talk.head)
    return talk


def fitted(talk: Conversation, *, n_ctx: int | None, endpoint: FakeEndpoint | None = None) -> Fitting:
    assert talk.head is not None
    return asyncio.run(fit(endpoint or FakeEndpoint(), talk, talk.head, n_ctx=n_ctx))


def test_the_system_prompt_and_the_last_question_are_always_reported() -> None:
    talk = talk_of(20, 21)  # 22 tokens each with their frame, 4 of system prompt
    found = fitted(talk, n_ctx=200)
    assert found.messages[0].text == "be kind" and found.messages[-1].text.startswith("t20 ")
    assert found.messages[1].role == "user"
    assert found.left_out == tuple(range(1, 19)) and found.n_tokens == 4 + 3 * 22


def test_what_the_last_answer_was_made_without_stays_out() -> None:
    talk = talk_of(20, 7)
    talk.change(replace(talk.turns[6], settings={"left_out": 4}))
    assert fitted(talk, n_ctx=10_000).left_out == (1, 2, 3, 4)


def test_a_shown_branch_counts_and_not_the_others() -> None:
    talk = talk_of(20, 3)
    talk.add("user", "another " * 500, parent=2)
    talk.head = 3
    assert fitted(talk, n_ctx=200).left_out == ()


def test_an_endpoint_that_cannot_count_is_refused_nothing() -> None:
    class Counting(FakeEndpoint):
        async def count(self, messages: object, *, on_wait: object = None) -> int | None:
            return None

    long = talk_of(2000, 3)
    assert fitted(long, n_ctx=None, endpoint=Counting()).left_out == ()
    found = fitted(long, n_ctx=500, endpoint=Counting())
    assert found.left_out == (1, 2) and found.n_tokens is None


def test_a_question_without_an_answer_is_not_reported() -> None:
    """Two user messages in a row were told after a failed turn, which strict templates refuse."""
    talk = talk_of(5, 2)
    talk.change(replace(talk.turns[2], text=""))
    talk.add("user", "again?", parent=2)
    assert [message.role for message in fitted(talk, n_ctx=500).messages] == ["system", "user"]
