"""One answer at a time: questions that wait, edits, answers that continue, messages if there is none."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
from fake_endpoint import FAKE, FakeEndpoint
from PIL import Image
from test_tui_chat import Slow, on_a_loop
from textual.widgets import Static
from tui_driver import Driven, driven

from edgespec.client.answer import AnswerOptions, Ended, Reading, StreamedRound
from edgespec.core.values import BreakEven, Round
from edgespec.errors import EndpointError, EngineDiedError
from edgespec.local.attach import OnProgress, Progress
from edgespec.memory.recommended import recommended
from edgespec_models.shelf.store import Store
from edgespec_tui.app import ChatApp
from edgespec_tui.endpoint.endpoint import Message, StreamEvent
from edgespec_tui.screens import answer_queue
from edgespec_tui.screens.model_shelf import Shelf
from edgespec_tui.sessions.conversation import Conversation
from edgespec_tui.sessions.sessions import Sessions
from edgespec_tui.settings.waits import Waits
from edgespec_tui.widgets import attached_resources, live_figures
from edgespec_tui.widgets.attached_files import with_files
from edgespec_tui.widgets.notice_line import NoticeLine
from edgespec_tui.widgets.panel import odds_shown
from edgespec_tui.widgets.prompt_input import PromptInput
from edgespec_tui.widgets.question import QuestionText
from edgespec_tui.widgets.turn_view import AnswerView, TurnView
from edgespec_tui.widgets.welcome import Welcome


class Reads(FakeEndpoint):
    """An endpoint that has read a part of the prompt, and goes on when it is let."""

    let = asyncio.Event()

    async def answer(
        self, messages: Sequence[Message], options: AnswerOptions
    ) -> AsyncGenerator[StreamEvent, None]:
        assert options.progress and options.body(messages, ours=True)["return_progress"]
        yield StreamedRound(Round((), "", 0, 0, ()), 0.0, reading=Reading(5300, 1300, 300, 2.5))
        await self.let.wait()
        async for event in super().answer(messages, options):
            yield event


class Held(FakeEndpoint):
    """An endpoint whose answers end when they are let."""

    let = asyncio.Event()

    async def answer(
        self, messages: Sequence[Message], options: AnswerOptions
    ) -> AsyncGenerator[StreamEvent, None]:
        async for event in super().answer(messages, options):
            if isinstance(event, Ended):
                await self.let.wait()
            yield event


class Calls(FakeEndpoint):
    """A server of another kind whose model calls a tool, or says nothing."""

    finish = "tool_calls"

    async def answer(
        self, messages: Sequence[Message], options: AnswerOptions
    ) -> AsyncGenerator[StreamEvent, None]:
        yield StreamedRound(Round((), "", 0, 0, ()), 0.0)
        yield Ended(self.finish)


@pytest.mark.parametrize("finish, expected", [("tool_calls", "called a tool"), ("stop", "without an answer")])
@on_a_loop
async def test_an_answer_without_text_says_why_there_is_none(finish: str, expected: str) -> None:
    """Its place stayed empty."""
    endpoint = Calls()
    endpoint.finish = finish
    async with driven(ChatApp(endpoint)) as it:
        await it.ask("one")
        assert expected in it.shown("AnswerView .note")


@on_a_loop
async def test_a_long_prompt_says_how_far_it_has_been_read_and_how_long_the_rest_takes() -> None:
    """For minutes, nothing moved."""
    Reads.let = asyncio.Event()
    async with driven(ChatApp(Reads(answers=["An answer."]))) as it:
        await it.say("one")
        await it.until(
            lambda: (
                "reading the prompt: 1,300 of 5,300 tokens, about 10 s left" in it.shown("AnswerView .note")
            )
        )
        Reads.let.set()
        await it.until(lambda: "An answer." in it.text() and not it.chat.answering)
        assert "reading the prompt" not in it.shown("AnswerView .note")


def test_what_is_left_of_a_prompt_is_stated_only_where_it_is_known() -> None:
    assert Reading(900, 300, 300, 0.1).sentence() == "reading the prompt: 300 of 900 tokens"
    assert Reading(900, 800, 0, 0.8).sentence() == "reading the prompt: 800 of 900 tokens"


@on_a_loop
async def test_a_question_asked_during_an_answer_waits_for_its_end() -> None:
    """Enter cut the answer that was being made, without asking."""
    Held.let = asyncio.Event()
    endpoint = Held(answers=["word " * 60, "second", "third"])
    async with driven(ChatApp(endpoint)) as it:
        await it.say("one")
        await it.until(lambda: "word word" in it.text())
        await it.say("two")
        await it.say("three")
        await it.until(lambda: "next  two" in it.text() and "three" in it.text())
        assert it.chat.answering and len(endpoint.asked) == 1
        Held.let.set()
        await it.until(lambda: len(it.texts()) == 6 and not it.chat.answering)
        assert it.texts()[::2] == ["one", "two", "three"] and len(it.texts()[1].split()) == 60
        await it.until(lambda: "next  " not in it.text(), "nothing waits any more")
        assert endpoint.cancelled == 0


@on_a_loop
async def test_what_waits_is_taken_back_and_comes_back_where_the_answer_is_stopped() -> None:
    Held.let = asyncio.Event()
    async with driven(ChatApp(Held(answers=["word " * 60]))) as it:
        for question in ("one", "two", "three"):
            await it.say(question)
        await it.until(lambda: len(it.chat.answers.waiting) == 2)
        await it.pilot.press("up")
        assert it.chat.prompt.text == "three" and "next  two" in it.text()
        await it.pilot.press("!", "escape")
        await it.until(lambda: not it.chat.answering)
        assert it.chat.prompt.text == "two\nthree!" and "next  " not in it.text()
        assert it.texts()[0] == "one" and len(it.texts()) == 2


@on_a_loop
async def test_where_an_answer_fails_what_waits_comes_back() -> None:
    endpoint = FakeEndpoint(answers=[EndpointError("The server is busy.", status=503)])
    async with driven(ChatApp(endpoint), ready=True) as it:
        await it.say("one")
        it.chat.answers.waiting.append(QuestionText("two"))
        it.chat.answers._give_back()
        assert it.chat.prompt.text == "two"
        await it.until(lambda: not it.chat.answering)
        assert it.text().count("The server is busy.") == 1, "said once"
        assert "Ctrl+R asks again" in it.text()


@on_a_loop
async def test_a_refused_question_offers_nothing_that_cannot_help() -> None:
    refused = EndpointError("m has no chat template: name one", status=400, code="no_chat_template")
    async with driven(ChatApp(FakeEndpoint(answers=[refused]))) as it:
        await it.ask("one")
        assert it.text().count("has no chat template") == 1
        assert "asks again" not in it.text() and "F9" not in it.text()


@on_a_loop
async def test_the_question_after_one_that_failed_is_reported_alone() -> None:
    """Two user messages in a row are refused by strict templates."""
    endpoint = FakeEndpoint(answers=["fine", EndpointError("No."), "back"])
    async with driven(ChatApp(endpoint)) as it:
        for question in ("one", "two", "three"):
            await it.ask(question)
        assert endpoint.asked[-1][0] == (
            Message("user", "one"),
            Message("assistant", "fine"),
            Message("user", "three"),
        )


@on_a_loop
async def test_escape_while_the_engine_loads_ends_the_waiting() -> None:
    """ "the engine is being loaded" stayed under the answer for good."""
    endpoint = Slow()
    endpoint.let = asyncio.Event()
    async with driven(ChatApp(endpoint), ready=False) as it:
        await it.say("early")
        assert "waiting for the engine" in it.text()
        await it.pilot.press("escape")
        await it.until(lambda: not it.chat.answering)
        await it.until(lambda: "waiting for the engine" not in it.text() and "interrupted" in it.text())
        endpoint.let.set()
        await it.until(lambda: it.app.context.engine.state == "ready")
        assert not endpoint.asked


@on_a_loop
async def test_what_an_answer_waits_for_goes_when_it_comes_and_the_context_is_counted_once() -> None:
    """ "reading the prompt" stayed under the text; the last answer was counted twice."""
    endpoint = FakeEndpoint(answers=["word " * 80], tok_per_s=200)
    async with driven(ChatApp(endpoint)) as it:
        await it.say("one two three")
        await it.until(lambda: "word word" in it.text())
        assert "reading the prompt" not in it.text()
        await it.until(lambda: not it.chat.answering)
        await it.until(lambda: f"{5 + 81:,} of 4,096" in it.shown("#panel-rows"))


# --- edits and continuing


@on_a_loop
async def test_an_answer_goes_on_from_where_it_ended() -> None:
    endpoint = FakeEndpoint(answers=["It begins", " and goes on."])
    async with driven(ChatApp(endpoint)) as it:
        await it.ask("tell")
        await it.say("/continue")
        await it.until(lambda: it.texts() == ["tell", "It begins and goes on."])
        assert endpoint.asked[-1][0] == (Message("user", "tell"), Message("assistant", "It begins"))
        assert len(it.chat.conversation.turns) == 2 and "It begins and goes on." in it.text()
        assert sum(n for _, n in it.chat.conversation.path()[-1].runs) == len("It begins and goes on.")


@on_a_loop
async def test_an_answer_is_edited_kept_next_to_the_old_one_and_continued() -> None:
    endpoint = FakeEndpoint(answers=["Wrong.", " Indeed."])
    async with driven(ChatApp(endpoint)) as it:
        await it.ask("tell")
        await it.pilot.press("alt+a")
        assert it.chat.prompt.text == "Wrong." and "Editing" in it.text()
        it.chat.prompt.fill("Right.")
        await it.pilot.press("enter")
        await it.until(lambda: it.texts() == ["tell", "Right."])
        assert "2 of 2" in it.text() and len(endpoint.asked) == 1 and it.chat.prompt.text == ""
        await it.pilot.press("alt+c")
        await it.until(lambda: it.texts() == ["tell", "Right. Indeed."])


@pytest.mark.slow
@on_a_loop
async def test_nothing_is_continued_where_there_is_nothing() -> None:
    async with driven(ChatApp(FakeEndpoint(answers=[EngineDiedError("It was killed.")]))) as it:
        await it.say("/continue")
        await it.notified("There is no answer yet.")
        await it.ask("tell")
        await it.say("/continue")
        await it.notified("no answer to continue")


# --- other servers, other windows


@on_a_loop
async def test_a_server_without_speculation_is_offered_nothing_of_it() -> None:
    """F4 said "Speculation off" and did nothing; the footer kept Speculation, Race and Tint."""
    info = replace(FAKE, speculates=False, draft=None, plain_s=None)
    async with driven(ChatApp(FakeEndpoint(info=info, answers=[EndpointError("Busy.", status=503)]))) as it:
        footer = it.text().splitlines()[-1]
        assert "Help" in footer and not any(word in footer for word in ("Speculation", "Race", "Tint"))
        await it.pilot.press("f4")
        assert it.chat.speculation
        await it.say("/speculation off")
        await it.notified("reports no speculation data")
        await it.ask("go")
        assert "Ctrl+R asks again" in it.text() and "F9" not in it.text()


@pytest.mark.slow
@on_a_loop
async def test_what_no_longer_fits_is_stated_in_words() -> None:
    """It was dimmed, and nothing was said."""
    info = replace(FAKE, n_ctx=200)
    async with driven(ChatApp(FakeEndpoint(answers=["word " * 60], info=info))) as it:
        for question in ("one", "two", "three", "four"):
            await it.ask(question)
        assert "the model no longer sees the oldest" in it.text()


@on_a_loop
async def test_a_chat_in_which_only_settings_were_set_is_not_kept(tmp_path: Path) -> None:
    """It stood among the sessions as "Untitled"."""
    from edgespec_tui.sessions.sessions import Sessions

    sessions = Sessions(tmp_path, on_notice=lambda sentence: pytest.fail(sentence))
    try:
        async with driven(ChatApp(FakeEndpoint(), sessions=sessions, first=Conversation())) as it:
            await it.say("/set seed 1234567")
            await it.notified("seed is 1234567")
            assert sessions.searched().result() == []
            await it.ask("go")
            assert [one.talk.title for one in sessions.searched().result()] == ["go"]
            assert sessions.newest().result().seed == 1234567  # type: ignore[union-attr]
    finally:
        sessions.close()


@pytest.mark.slow
@on_a_loop
async def test_what_people_should_know_of_a_model_is_stated_once() -> None:
    endpoint = FakeEndpoint(info=replace(FAKE, model="m", chatml=True))
    async with driven(ChatApp(endpoint)) as it:
        await it.notified("m has no chat template: it is talked to in ChatML")
        await it.ask("go")
        await it.pilot.press("f9")
        await it.until(lambda: endpoint.restarts == 1 and it.app.context.engine.state == "ready")
        assert not it.app._notices and len(it.chat.query_one(NoticeLine).sentences) <= 1


class Returning(FakeEndpoint):
    """An endpoint whose engine is being loaded again."""

    let = asyncio.Event()

    async def count(self, messages: Sequence[Message], *, on_wait: OnProgress = lambda _: None) -> int | None:
        on_wait(Progress("loading", "waiting for the engine: it is loading big", 0.45))
        await self.let.wait()
        return await super().count(messages)


@on_a_loop
async def test_a_question_says_what_it_waits_for() -> None:
    """It was said to be thinking, while the engine was loaded again."""
    Returning.let = asyncio.Event()
    async with driven(ChatApp(Returning())) as it:
        await it.say("one")
        await it.until(lambda: "waiting for the engine: it is loading big, 45%" in it.text())
        Returning.let.set()
        await it.until(lambda: len(it.texts()) == 2 and not it.chat.answering and "An answer." in it.text())


class Silent(FakeEndpoint):
    """An endpoint that says a few words and then nothing."""

    async def answer(
        self, messages: Sequence[Message], options: AnswerOptions
    ) -> AsyncGenerator[StreamEvent, None]:
        async for event in super().answer(messages, options):
            if isinstance(event, Ended):
                await asyncio.Event().wait()
            yield event


@on_a_loop
async def test_an_engine_that_says_nothing_is_shown_as_such() -> None:
    """A stalled one showed its last speed, or "thinking", for ever."""
    silent = Silent(answers=["word " * 60], tok_per_s=500)
    async with driven(ChatApp(silent, waits=Waits(silent_s=0.3))) as it:
        await it.say("one")
        await it.until(lambda: "nothing from the engine for" in it.text())
        await it.until(lambda: "tok/s" not in it.shown("#panel-rows"))
        await it.until(lambda: "Stop" in it.text().splitlines()[-1])
        await it.pilot.press("escape")
        await it.until(lambda: "Stop" not in it.text().splitlines()[-1], "it stayed in the footer")
        await it.until(lambda: same_speed(it), "panel and turn said different speeds")


def same_speed(it: Driven) -> bool:
    found = re.findall(r"speed +([\d.]+ tok/s)", it.shown("#panel-rows"))
    return bool(found) and f"tokens · {found[0]}" in it.text()


@on_a_loop
async def test_an_answer_that_the_engines_end_cut_off_does_not_say_for_good_that_it_comes_back() -> None:
    error = EndpointError("The engine died; it is being started again", status=503, retry_s=0.5)
    async with driven(ChatApp(FakeEndpoint(answers=[error]))) as it:
        await it.ask("one")
        await it.until(lambda: "The engine died" in it.text() and "being started again" not in it.text())


@on_a_loop
async def test_a_chat_is_writable_once_the_other_window_has_gone(tmp_path: Path) -> None:
    """It stayed read-only, and said that it is open in another window, until it was opened again."""
    first, second = (Sessions(tmp_path, on_notice=print) for _ in range(2))
    said = Conversation()
    said.add("user", "there")
    first.save(said)
    first.searched().result(10)
    assert said.id is not None
    shown = second.loaded(said.id).result(10)
    soon = Waits(regain_s=0.05)
    async with driven(ChatApp(FakeEndpoint(), sessions=second, first=shown, waits=soon)) as it:
        await it.until(lambda: "read only" in it.text())
        said.add("user", "and more", parent=said.head)
        first.save(said)
        first.close()
        await it.until(lambda: "and more" in it.text() and "read only" not in it.text())
        await it.ask("now here")
        assert it.texts()[-2:] == ["now here", "An answer."]
    second.close()


@on_a_loop
async def test_a_question_is_saved_before_its_files_are_read_and_its_pictures_delay_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a small copy was made, for seconds, the question existed nowhere."""
    reads, draws = threading.Event(), threading.Event()

    def slowly(question: QuestionText) -> object:
        assert reads.wait(10)
        return with_files(question)

    monkeypatch.setattr(attached_resources, "with_files", slowly)
    monkeypatch.setattr(answer_queue, "thumbnail_of", lambda _: draws.wait(10) and "1 AAAAAAAA")
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    saved = Sessions(tmp_path / "saved", on_notice=lambda _: None)
    async with driven(ChatApp(FakeEndpoint(), sessions=saved)) as it:
        it.chat.prompt.post_message(PromptInput.Sent(QuestionText(f"see @{tmp_path}/a.png")))
        talk = it.chat.conversation
        await it.until(lambda: talk.id is not None and "see @" in talk.draft["text"], "it is saved")
        reads.set()
        await it.until(lambda: it.texts()[1:] == ["An answer."], "the answer waits for no picture")
        draws.set()
        turn = it.chat.conversation.path()[0]
        await it.until(lambda: "AAAA" in str(it.chat.conversation.turns[turn.id].settings["thumbnails"]))


@on_a_loop
async def test_esc_stops_the_reading_of_files_and_the_question_is_in_the_input_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a disk that does not answer, Esc did nothing."""
    reads = threading.Event()

    def slowly(question: QuestionText) -> object:
        reads.wait(10)
        return with_files(question)

    monkeypatch.setattr(attached_resources, "with_files", slowly)
    async with driven(ChatApp(FakeEndpoint())) as it:
        it.chat.prompt.post_message(PromptInput.Sent(QuestionText("see @/net/a.txt")))
        await it.until(lambda: it.chat.answers.files is not None)
        await it.pilot.press("escape")
        await it.notified("stopped before its files were read")
        assert it.chat.prompt.text == "see @/net/a.txt" and it.texts() == []
        reads.set()
        await it.ask("two")
        assert it.texts()[-1] == "An answer."


@on_a_loop
async def test_the_line_below_a_finished_answer_stays() -> None:
    """It was replaced by "nothing from the engine for 12 s" while pictures or the next question waited."""
    async with driven(ChatApp(FakeEndpoint(), waits=Waits(silent_s=-1.0))) as it:
        await it.ask("one")
        it.chat.answers.tell_silence()
        await it.pilot.pause()
        assert "nothing from the engine" not in it.text()


@on_a_loop
async def test_a_chat_that_another_window_has_is_not_changed_by_a_command() -> None:
    """/rename and /system reported success, and nothing was saved."""
    async with driven(ChatApp(FakeEndpoint())) as it:
        it.chat.conversation.read_only = True
        for line in ("/rename other", "/system Be brief."):
            await it.say(line)
            await it.notified("is open in another window")
        assert it.chat.conversation.title != "other" and not it.chat.conversation.system


@pytest.mark.slow
@on_a_loop
async def test_two_steps_through_versions_type_nothing() -> None:
    """The second bracket went into the input."""
    async with driven(ChatApp(FakeEndpoint(answers=["one", "two", "three"]))) as it:
        await it.ask("say")
        for answer in ("two", "three"):
            await it.pilot.press("ctrl+r")
            await it.until(lambda answer=answer: it.texts()[-1] == answer and not it.chat.answering)
        it.chat.transcript.query(AnswerView).last().focus()
        await it.pilot.press("[", "[")
        await it.until(lambda: it.texts()[-1] == "one")
        assert it.chat.prompt.text == ""


def test_a_short_answer_does_not_say_that_guesses_do_not_pay() -> None:
    """Beside 92 % accepted: every answer under 50 tokens counted as no gain."""
    figures = live_figures.LiveFigures(plain_s=0.02, over=True)
    figures.drafted, figures.accepted, figures.n_tokens = 12, 11, 20
    info = replace(FAKE, break_even=BreakEven(1.9, 0.2, 0.9, 0.8))
    assert odds_shown(figures, info) == ""


@on_a_loop
async def test_the_welcome_is_short() -> None:
    """It listed fourteen keys."""
    async with driven(ChatApp(FakeEndpoint(info=replace(FAKE, embedded=True)))) as it:
        lines = [one for one in it.chat.query_one(Welcome).query(Static) if one.display]
        assert sum(len(str(one.content).splitlines()) for one in lines) <= 6


@on_a_loop
async def test_a_deletion_is_undone_after_the_list_was_left(tmp_path: Path) -> None:
    """The list forgot it when it was left."""
    saved = Sessions(tmp_path, on_notice=lambda _: None)
    async with driven(ChatApp(FakeEndpoint(), sessions=saved)) as it:
        await it.ask("first words")
        await it.pilot.press("ctrl+n")
        await it.until(lambda: not it.texts())
        await it.pilot.press("ctrl+o")
        await it.until(lambda: "first words" in it.text())
        await it.pilot.press("f8")
        await it.until(lambda: "Deleted" in it.text())
        await it.pilot.press("escape", "ctrl+o")
        await it.until(lambda: "There are no chats yet" in it.text())
        await it.pilot.press("ctrl+z")
        await it.until(lambda: "is back" in it.text())


@on_a_loop
async def test_the_welcome_names_the_pair_that_gains_here_and_one_key_pulls_it(tmp_path: Path) -> None:
    best, pulled = recommended(16 * 10**9, 500 * 10**9, 4), list[str]()
    assert best is not None

    class Noting(Shelf):
        def begin_pull(self, what: str) -> Any:
            pulled.append(what)

    shelf = Noting(Store(tmp_path), recommended=lambda: best)
    async with driven(
        ChatApp(FakeEndpoint(info=replace(FAKE, embedded=True)), shelf=shelf, look_after_s=0.2)
    ) as it:
        await it.until(lambda: f"Alt+P   {best.sentence[:20]}" in it.text())
        await it.pilot.press("alt+p")
        await it.notified("is being pulled")
        assert pulled == [best.name]


@pytest.mark.sample(2)
@on_a_loop
@pytest.mark.parametrize("way", ["new", "older", "branch", "models", "demo"])
async def test_no_key_ends_an_answer_that_is_being_written(
    way: Literal["new", "older", "branch", "models", "demo"],
) -> None:
    """A new chat, another version, a branch or another model ended it unasked."""
    endpoint = FakeEndpoint(answers=["first", "second", "word " * 40])
    async with driven(ChatApp(endpoint)) as it:
        await it.ask("one")
        await it.pilot.press("ctrl+r")
        await it.until(lambda: it.texts() == ["one", "second"])
        endpoint.tok_per_s = 1
        await it.pilot.press(*"two", "enter")
        await it.until(lambda: it.chat.answering)
        talk = it.chat.conversation
        answer = it.chat.conversation.path()[1]
        if way == "new":
            await it.pilot.press("ctrl+n")
        elif way == "models":
            it.app._choose_model("another")
        elif way == "demo":
            await it.pilot.press("f12")
        else:
            it.chat.post_message(TurnView.Wanted(way, answer.id))
        await it.notified("An answer is still being written: Esc stops it, then you can")
        assert it.chat.answering and it.chat.conversation is talk and it.app.screen is it.chat
        await it.pilot.press("escape")
        await it.until(lambda: not it.chat.answering)
