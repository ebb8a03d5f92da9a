"""The chat screen on a fake endpoint: asking, stopping, editing, versions, branches, copying, commands."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
from fake_endpoint import FAKE, FakeEndpoint
from textual.widgets import Collapsible
from tui_driver import driven

from edgespec.client.answer import Info
from edgespec.errors import EndpointError, EngineDiedError
from edgespec_models.shelf import catalogue
from edgespec_tui.app import ChatApp
from edgespec_tui.endpoint.model_notes import EMBEDDED, STARTER, note_of
from edgespec_tui.sessions.conversation import Conversation
from edgespec_tui.settings.settings import Settings
from edgespec_tui.widgets.transcript import SHOWN
from edgespec_tui.widgets.turn_view import AnswerView

CODE = "Take this:\n\n```python\nprint(1)\n```\n\nand go."


def on_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        asyncio.run(test(*arguments, **named))

    return run


@on_a_loop
async def test_a_question_is_answered_and_the_figures_stand_below() -> None:
    said = "It is **so**, and so." + " And so on." * 20
    async with driven(ChatApp(FakeEndpoint(answers=[said]))) as it:
        await it.pilot.press(*"Is it?", "enter")
        await it.until(lambda: it.texts() == ["Is it?", said])
        await it.until(lambda: "1.60x estimated" in it.text())
        assert "It is so, and so." in it.text(), "Markdown is drawn"
        assert it.chat.conversation.title == "Is it?" and "Is it?" in it.text().splitlines()[0]


class Slow(FakeEndpoint):
    """An endpoint whose engine is there when it is let."""

    async def start(self) -> Info:
        await self.let.wait()
        return self.info

    let: asyncio.Event


@on_a_loop
async def test_what_is_typed_before_the_engine_is_there_is_asked_when_it_is() -> None:
    endpoint = Slow()
    endpoint.let = asyncio.Event()
    async with driven(ChatApp(endpoint), ready=False) as it:
        await it.say("early")
        assert len(it.texts()) == 2 and "for the engine to load" in it.text() and not endpoint.asked
        endpoint.let.set()
        await it.until(lambda: it.texts() == ["early", "An answer."])
        await it.until(lambda: it.chat.conversation.path()[1].model == FAKE.model)


@on_a_loop
async def test_keys_typed_fast_before_enter_are_all_sent() -> None:
    """Enter was a priority binding once, and overtook letters that came in the same packet."""
    async with driven(ChatApp(FakeEndpoint())) as it:
        from textual import events

        for key in "hello":
            it.app.post_message(events.Key(key, key))
        it.app.post_message(events.Key("enter", "\r"))
        await it.until(lambda: it.texts()[:1] == ["hello"])


@on_a_loop
async def test_escape_stops_and_keeps_what_came() -> None:
    endpoint = FakeEndpoint(answers=["word " * 500], tok_per_s=100)
    async with driven(ChatApp(endpoint)) as it:
        await it.say("talk")
        await it.until(lambda: "word word" in it.text())
        await it.pilot.press("escape")
        await it.until(lambda: not it.chat.answering)
        answer = it.chat.conversation.path()[-1]
        assert answer.finish == "cancelled" and 2 < len(answer.text.split()) < 400
        assert endpoint.cancelled == 1 and "interrupted" in it.text()


@on_a_loop
async def test_answering_again_keeps_the_old_answer_as_a_version() -> None:
    async with driven(ChatApp(FakeEndpoint(answers=["first", "second"]))) as it:
        await it.ask("say")
        await it.pilot.press("ctrl+r")
        await it.until(lambda: it.texts() == ["say", "second"])
        await it.until(lambda: not it.chat.answering)
        await it.until(lambda: "2 of 2" in it.text())
        view = it.chat.transcript.query_one(AnswerView)
        view.focus()
        await it.pilot.press("[")
        await it.until(lambda: it.texts() == ["say", "first"] and "1 of 2" in it.text())


@on_a_loop
async def test_a_question_too_can_be_answered_again() -> None:
    """The key asked for the answer before it as if that were a question, and did nothing on the first one."""
    endpoint = FakeEndpoint(answers=["one", "two", "three"])
    async with driven(ChatApp(endpoint)) as it:
        await it.ask("first")
        await it.ask("second")
        it.chat.transcript.query("QuestionView").last().focus()
        await it.pilot.press("r")
        await it.until(lambda: it.texts() == ["first", "one", "second", "three"])
        assert [m.text for m in endpoint.asked[-1][0]] == ["first", "one", "second"]


@on_a_loop
async def test_an_edited_question_is_asked_in_the_place_of_the_old() -> None:
    endpoint = FakeEndpoint(answers=["one", "two", "three"])
    async with driven(ChatApp(endpoint)) as it:
        await it.ask("first")
        await it.ask("second")
        it.chat.transcript.query("QuestionView").first().focus()
        await it.pilot.press("e")
        assert it.chat.prompt.text == "first" and "Editing" in it.text()
        await it.pilot.press("!", "enter")
        await it.until(lambda: it.texts() == ["first!", "three"])
        assert [m.text for m in endpoint.asked[-1][0]] == ["first!"]
        await it.until(lambda: not it.chat.answering)
        assert "Editing" not in it.text()


@on_a_loop
async def test_an_edit_is_reported_until_it_ends() -> None:
    """Ctrl+R took the sentence away and left the edit: the next question took the place of the old one."""
    async with driven(ChatApp(FakeEndpoint(answers=["one", "two", "three"]))) as it:
        await it.ask("first")
        await it.pilot.press("ctrl+b", "ctrl+r")
        await it.until(lambda: it.texts() == ["first", "two"] and not it.chat.answering)
        assert it.chat.answers.editing is not None and "Editing" in it.text()
        await it.pilot.press("escape")
        assert it.chat.answers.editing is None and "Editing" not in it.text()


@pytest.mark.slow
@on_a_loop
async def test_escape_leaves_an_edit() -> None:
    async with driven(ChatApp(FakeEndpoint())) as it:
        await it.ask("first")
        await it.pilot.press("ctrl+b")
        assert it.chat.prompt.text == "first"
        await it.pilot.press("escape")
        assert it.chat.prompt.text == "" and it.chat.answers.editing is None and "Editing" not in it.text()


@pytest.mark.slow
@on_a_loop
async def test_a_branch_is_a_chat_of_its_own() -> None:
    async with driven(ChatApp(FakeEndpoint(answers=["one", "two"]))) as it:
        await it.ask("first")
        await it.ask("second")
        old = it.chat.conversation
        it.chat.transcript.query(AnswerView).first().focus()
        await it.pilot.press("b")
        await it.until(lambda: it.chat.conversation is not old)
        assert it.texts() == ["first", "one"] and len(old.turns) == 4


@pytest.mark.slow
@on_a_loop
async def test_code_questions_and_answers_are_copied_with_one_key() -> None:
    async with driven(ChatApp(FakeEndpoint(answers=[CODE]))) as it:
        await it.pilot.press("f6")
        await it.notified("no code")
        await it.ask("code?")
        await it.pilot.press("f6")
        assert it.app.clipboard == "print(1)"
        await it.pilot.press("f7")
        assert it.app.clipboard == CODE
        await it.pilot.press("alt+q")
        assert it.app.clipboard == "code?"
        it.chat.query_one("CodeFence").focus()
        it.app.copy_to_clipboard("")
        await it.pilot.press("c")
        await it.pilot.pause()
        assert it.app.clipboard == "print(1)"
        it.app.copy_to_clipboard("")
        await it.pilot.click("CodeFence", offset=(3, 0))
        await it.pilot.pause()
        assert it.app.clipboard == "print(1)", "with the mouse, too"


@pytest.mark.slow
@on_a_loop
async def test_reasoning_is_folded_and_opens_with_a_key() -> None:
    async with driven(ChatApp(FakeEndpoint(answers=["<think>hm, so</think>\n\nYes."]))) as it:
        await it.ask("is it?")
        answer = it.chat.conversation.path()[-1]
        assert (answer.reasoning.strip(), answer.text) == ("hm, so", "Yes.")
        fold = it.chat.query_one(Collapsible)
        assert fold.collapsed and "hm, so" not in it.text() and "Thought" in it.text()
        await it.pilot.press("f8")
        await it.pilot.pause()
        assert not fold.collapsed and "hm, so" in it.text()
        await it.ask("next")
        assert all("hm" not in m.text for m in it.app.context.engine.endpoint.asked[-1][0])


@pytest.mark.slow
@on_a_loop
async def test_speculation_is_turned_off_and_on_within_a_chat() -> None:
    endpoint = FakeEndpoint(answers=["word " * 60])
    async with driven(ChatApp(endpoint)) as it:
        await it.ask("with")
        await it.pilot.press("f4")
        await it.ask("without")
        await it.say("/speculation on")
        await it.ask("with")
        assert [options.speculation for _, options in endpoint.asked] == [True, False, True]
        assert "estimated" in it.text()


@on_a_loop
async def test_settings_of_a_chat_reach_the_endpoint_and_wrong_ones_are_refused() -> None:
    endpoint = FakeEndpoint()
    async with driven(ChatApp(endpoint)) as it:
        for line in ("/set temperature 0.2", "/set seed=7", "/set max_tokens 9", "/system Be brief."):
            await it.say(line)
        await it.ask("now")
        messages, options = endpoint.asked[0]
        assert options.sampling == {"temperature": 0.2} and (options.seed, options.max_tokens) == (7, 9)
        assert messages[0].text == "Be brief."
        for line, said in (
            ("/set temperature hot", "temperature is 'hot': it must be a number from 0 to 100"),
            ("/set top_p 2", "top_p is '2': it must be a number from 0 to 1"),
            ("/set warmth 1", "'warmth' is not a setting"),
            ("/nonsense", "/nonsense is not a command"),
            ("/read /no/such/file", "cannot be read"),
        ):
            await it.say(line)
            await it.notified(said)
            assert it.chat.prompt.text == line, "it can be mended"
        assert len(endpoint.asked) == 1


@pytest.mark.slow
@on_a_loop
async def test_a_file_is_read_into_the_question(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text("a = 1\n" * 50)
    endpoint = FakeEndpoint()
    async with driven(ChatApp(endpoint)) as it:
        await it.say(f"/read {tmp_path / 'x.py'}")
        assert it.chat.prompt.text == "[pasted text 1: 53 lines]"
        await it.pilot.press("enter")
        await it.until(lambda: endpoint.asked)
        assert endpoint.asked[0][0][0].text.startswith("x.py:\n```py\na = 1\n")


@on_a_loop
async def test_when_the_engine_dies_the_conversation_stays_and_one_key_starts_it() -> None:
    endpoint = FakeEndpoint(answers=["fine", EngineDiedError("The engine [1] was killed."), "back"])
    async with driven(ChatApp(endpoint)) as it:
        await it.ask("one")
        await it.ask("two")
        assert it.text().count("The engine [1] was killed.") == 1 and "fine" in it.text()
        await it.ask("still there?")
        await it.until(
            lambda: "no answer: there is no engine" in it.text() and "F9 restarts the engine" in it.text()
        )
        await it.pilot.press("f9")
        await it.until(lambda: endpoint.restarts == 1 and it.app.context.engine.state == "ready")
        assert "was killed. The conversation" not in it.text()
        await it.pilot.press("ctrl+r")
        await it.until(lambda: it.texts()[-1] == "back")


@pytest.mark.slow
@on_a_loop
async def test_an_engine_that_cannot_start_says_why_and_questions_wait_for_it() -> None:
    endpoint = FakeEndpoint(start_error=EndpointError("There is no room for the model."))
    async with driven(ChatApp(endpoint)) as it:
        assert "There is no room for the model." in it.text()
        await it.ask("anyone?")
        assert it.texts() == ["anyone?", ""]
        await it.pilot.press("f9")
        await it.until(lambda: it.app.context.engine.state == "ready")
        await it.pilot.press("ctrl+r")
        await it.until(lambda: it.texts()[-1] == "An answer.")


@pytest.mark.slow
@on_a_loop
async def test_a_first_start_says_what_answers_and_how_to_get_a_real_model() -> None:
    async with driven(ChatApp(FakeEndpoint(info=replace(FAKE, embedded=True)))) as it:
        assert "ships with EdgeSpec" in it.text() and "edgespec pull" in it.text()
        assert "Try     What does `os.path.join` do?" in it.text()


@pytest.mark.slow
@on_a_loop
async def test_the_model_that_many_begin_with_is_stated_to_be_small_and_often_wrong() -> None:
    info = replace(FAKE, model=catalogue.STARTER, draft=None)
    async with driven(ChatApp(FakeEndpoint(info=info))) as it:
        assert "135 million parameters" in it.text() and "often wrong" in it.text()
        assert "Try     " in it.text() and "edgespec pull" in it.text()


def test_only_models_that_nobody_chose_are_described() -> None:
    file = Path(catalogue.find(catalogue.STARTER).target.file).stem
    assert note_of(FAKE) is None and note_of(replace(FAKE, model=file)) is STARTER
    assert note_of(replace(FAKE, model=file, speculates=False)) is None, "another server's name of a model"
    assert all(len(f"Try     {ask}") <= 56 for note in (STARTER, EMBEDDED) for ask in note.asks), "60 columns"


@pytest.mark.slow
@on_a_loop
async def test_an_endpoint_that_tells_no_rounds_is_stated_to_be_one() -> None:
    info = replace(FAKE, speculates=False, draft=None, plain_s=None)
    async with driven(ChatApp(FakeEndpoint(info=info))) as it:
        assert "reports no speculation data" in it.text() and "accepted" not in it.text()


@pytest.mark.slow
@pytest.mark.parametrize("key", ["up", "down"])
def test_the_history_gives_questions_back(key: str) -> None:
    async def story() -> None:
        async with driven(ChatApp(FakeEndpoint())) as it:
            await it.ask("one")
            await it.ask("two\nlines")
            prompt = it.chat.prompt
            await it.pilot.press(*"new", "up")
            assert prompt.text == "two\nlines"
            await it.pilot.press("up", "up")
            assert prompt.text == "one"
            if key == "down":
                await it.pilot.press("down")
                assert prompt.text == "two\nlines"
                await it.pilot.press("down")
                assert prompt.text == "new"

    asyncio.run(story())


@on_a_loop
async def test_a_chat_that_is_gone_on_with_is_scrolled_to_its_end() -> None:
    """Filling the transcript moved it to the top once, which was taken for scrolling to what is above."""
    talk = Conversation()
    for i in range(10):
        said = talk.add(
            "user" if i % 2 == 0 else "assistant", f"turn {i}\n\n" + "word " * 90, parent=talk.head
        )
        talk.change(replace(said, finish="stop"))
    async with driven(ChatApp(FakeEndpoint(), first=talk), size=(80, 24)) as it:
        shown = it.chat.transcript
        await it.until(lambda: shown.max_scroll_y > 0 and shown.scroll_y == shown.max_scroll_y, "the end")
        assert len(shown.query(AnswerView)) == SHOWN // 2, "what is above comes when it is scrolled to"
        for _ in range(12):
            await it.pilot.press("pageup")
        await it.until(lambda: len(shown.query(AnswerView)) == 5, "what is above")


@on_a_loop
async def test_panel_and_tint_begin_as_the_settings_say() -> None:
    settings = Settings(panel=False, tint=True)
    async with driven(ChatApp(FakeEndpoint(), settings=settings), size=(130, 28)) as it:
        assert not it.chat.query_one("#panel").display and it.chat.transcript.tinted
        await it.pilot.press("f2")
        await it.notified("appears with the first answer")
        await it.ask("go")
        await it.pilot.press("f3")
        assert it.chat.query_one("#panel").display and not it.chat.transcript.tinted
