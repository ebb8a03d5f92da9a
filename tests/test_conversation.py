"""The tree of turns: no text is lost by writing it anew."""

from __future__ import annotations

from edgespec_tui.endpoint.endpoint import Message
from edgespec_tui.sessions.conversation import Conversation


def talked() -> Conversation:
    talk = Conversation(system="be kind")
    question = talk.add("user", "one?")
    answer = talk.add("assistant", "one.", parent=question.id)
    talk.add("user", "two?", parent=answer.id)
    return talk


def test_the_path_leads_from_the_first_turn_to_where_we_stand() -> None:
    assert [turn.text for turn in talked().path()] == ["one?", "one.", "two?"]
    assert Conversation().path() == []


def test_an_edited_turn_is_a_sibling_and_the_old_one_can_be_gone_back_to() -> None:
    talk = talked()
    edited = talk.add("user", "uno?", parent=None)
    assert [turn.text for turn in talk.path()] == ["uno?"]
    assert talk.siblings(edited.id) == [1, edited.id]
    talk.select(1)
    assert [turn.text for turn in talk.path()] == ["one?", "one.", "two?"], "with all that followed it"


def test_a_branch_holds_its_path_alone_and_changes_nothing_in_the_old() -> None:
    talk = talked()
    talk.add("assistant", "eins.", parent=1)
    branch = talk.branch(2)
    assert [turn.text for turn in branch.path()] == ["one?", "one."] and branch.id is None
    branch.add("user", "three?", parent=2)
    branch.sampling["temperature"] = 0.0
    assert len(talk.turns) == 4 and not talk.sampling


def test_an_endpoint_is_reported_the_system_prompt_and_what_has_text() -> None:
    talk = talked()
    talk.add("assistant", "", parent=3)
    system, first = Message("system", "be kind"), Message("user", "one?")
    assert talk.messages() == [system, first, Message("assistant", "one."), Message("user", "two?")]
    assert talk.messages(upto=1) == [system, first]
