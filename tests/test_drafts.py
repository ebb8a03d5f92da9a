"""What was written is kept: a question before its answer begins, one that waits, one that was never sent."""

from __future__ import annotations

import asyncio
from pathlib import Path

from fake_endpoint import FakeEndpoint
from test_answer_queue import Held
from test_tui_chat import Slow, on_a_loop
from tui_driver import driven

from edgespec_tui.app import ChatApp
from edgespec_tui.sessions.conversation import Conversation
from edgespec_tui.sessions.sessions import Sessions
from edgespec_tui.widgets.question import Insert, QuestionText, joined, question_of

PASTE = "a line\n" * 30


def newest(folder: Path) -> Conversation:
    """Returns what a new start would continue."""
    sessions = Sessions(folder, on_notice=print)
    found = sessions.newest().result(10)
    sessions.close()
    assert found is not None
    return found


@on_a_loop
async def test_a_question_is_saved_before_its_answer_begins(tmp_path: Path) -> None:
    """It was saved with the first half second of its answer: kill -9 lost it while the engine was loading."""
    endpoint = Slow()
    endpoint.let = asyncio.Event()
    sessions = Sessions(tmp_path, on_notice=print)
    async with driven(ChatApp(endpoint, sessions=sessions), ready=False) as it:
        await it.say("early")
        await it.say("and then?")
        await asyncio.wrap_future(sessions.searched())
        kept = newest(tmp_path)
        assert [turn.text for turn in kept.turns.values()][:1] == ["early"] and kept.title == "early"
        assert kept.draft == {"text": "and then?"}, "one that waits, too"
        it.app.exit()
    sessions.close()


@on_a_loop
async def test_what_was_not_asked_is_in_the_input_when_the_chat_is_opened_again(tmp_path: Path) -> None:
    """Quitting dropped it without a word, however it was done."""
    Held.let = asyncio.Event()
    sessions = Sessions(tmp_path, on_notice=print)
    async with driven(ChatApp(Held(answers=["word " * 9]), sessions=sessions)) as it:
        await it.say("one")
        await it.say("two")
        it.chat.prompt.fill(QuestionText(f"about {PASTE}", (Insert(6, 6 + len(PASTE), ""),)))
        await it.pilot.press("ctrl+q")
        await it.until(lambda: it.app._exit)
    assert it.app.unsent.text == f"two\nabout {PASTE}"
    sessions.close()
    again, kept = Sessions(tmp_path, on_notice=print), newest(tmp_path)
    async with driven(ChatApp(FakeEndpoint(), sessions=again, first=kept)) as it:
        assert it.chat.prompt.text.startswith("two\nabout [pasted text 1: 30 lines]")
        await it.notified("is in the input again")
        await it.pilot.press("enter")
        await it.until(lambda: it.texts()[-2:] == [f"two\nabout {PASTE}", "An answer."])
        it.app.exit()
    again.close()
    assert newest(tmp_path).draft == {}


@on_a_loop
async def test_a_new_chat_that_was_only_begun_is_kept_by_its_first_words(tmp_path: Path) -> None:
    sessions = Sessions(tmp_path, on_notice=print)
    async with driven(ChatApp(FakeEndpoint(), sessions=sessions)) as it:
        it.chat.prompt.fill("half a thought")
        it.app.exit()
    sessions.close()
    kept = newest(tmp_path)
    assert (kept.title, kept.draft, kept.turns) == ("half a thought", {"text": "half a thought"}, {})


@on_a_loop
async def test_what_is_written_goes_with_the_window_to_another_chat(tmp_path: Path) -> None:
    sessions = Sessions(tmp_path, on_notice=print)
    begun = Conversation(draft={"text": "from before"})
    begun.add("user", "one")
    sessions.save(begun)
    async with driven(ChatApp(FakeEndpoint(), sessions=sessions, first=begun)) as it:
        await it.pilot.press("ctrl+n")
        await it.until(lambda: not it.chat.conversation.turns)
        assert it.chat.prompt.text == "from before"
        it.chat.prompt.clear_all()
    sessions.close()
    assert newest(tmp_path).draft == {}


@on_a_loop
async def test_a_chat_is_called_by_what_was_typed_of_its_question(tmp_path: Path) -> None:
    """A chat begun with /read was called by the beginning of the file."""
    (tmp_path / "notes.md").write_text("notes of a file\n")
    async with driven(ChatApp(FakeEndpoint())) as it:
        await it.say(f"/read {tmp_path / 'notes.md'}")
        await it.until(lambda: "[pasted text 1" in it.chat.prompt.text)
        await it.pilot.press(*"why", "enter")
        await it.until(lambda: len(it.texts()) == 2)
        assert it.chat.conversation.title == "why" and "notes of a file" in it.texts()[0]


def test_questions_are_joined_with_their_pastes() -> None:
    one, two = QuestionText("ab", (Insert(1, 2, "m"),)), QuestionText("cde", (Insert(0, 2, "n"),))
    both = joined([one, QuestionText(""), two])
    assert both == QuestionText("ab\ncde", (Insert(1, 2, "m"), Insert(3, 5, "n")))
    assert both.folded() == "am\nne" and both.title() == "a e"
    assert question_of(both.draft()["text"], both.draft()) == both
    assert QuestionText(" \n").draft() == {}
