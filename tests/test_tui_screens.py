"""What the app's screens show and do, on a fake endpoint: panel, tint, race, sessions, help, sizes, keys."""

from __future__ import annotations

import os
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from fake_endpoint import FAKE, FakeEndpoint, round_of
from test_tui_chat import on_a_loop
from textual.widgets import Input, OptionList
from tiny_projector import png
from tui_driver import Driven, driven, strips_of

from edgespec.client.answer import Span
from edgespec.core.values import BreakEven
from edgespec.errors import EndpointError, EngineDiedError
from edgespec.pairs.found import Found
from edgespec_tui.app import ChatApp
from edgespec_tui.screens.race_screen import RaceScreen
from edgespec_tui.sessions.conversation import Conversation
from edgespec_tui.sessions.sessions import Sessions
from edgespec_tui.settings.settings import Settings
from edgespec_tui.widgets.answer_body import AnswerSegment, CodeFence, Prose
from edgespec_tui.widgets.live_figures import LiveFigures
from edgespec_tui.widgets.notice_line import NoticeLine
from edgespec_tui.widgets.panel import PanelState, SpeculationPanel
from edgespec_tui.widgets.transcript import SHOWN
from edgespec_tui.widgets.turn_view import AnswerView, TurnView

SNAPSHOTS = Path(__file__).parent / "snapshots"
ANSWER = """Reading line by line is **cheap**:

```python
with path.open() as lines:
    longest = max(lines, key=len)
```

- `open` gives text
- `with` closes it, also after an error

| way | memory |
|---|---|
| iterate | one line |

That is all."""


# --- snapshots: the characters of the main screens at three sizes


def steady(text: str) -> str:
    """Returns a screen without what differs from run to run: speeds, the sparkline, the width of gaps."""
    text = re.sub(r"[\u2581-\u2588]+", "", text)
    text = re.sub(r"\d+\.\d+ tok/s", "N tok/s", text)
    text = re.sub(r"\d+\.\d+x? times|\d+\.\d\d (?=times)", "N ", text)
    text = re.sub(r" +\d+\.\d s ", " N s ", text)
    text = re.sub(r"measured +\d+\.\d+x", "measured Nx", text)
    return "\n".join(re.sub(r" {2,}", "  ", line).rstrip() for line in text.splitlines()) + "\n"


SIZES = ((80, 24), (120, 36), (200, 50))


async def compare(it: Driven, name: str) -> None:
    """Compares a screen with how it looked, at each size; it is resized, and not begun anew."""
    for width, height in SIZES:
        await it.pilot.resize_terminal(width, height)
        await it.pilot.pause()
        file = SNAPSHOTS / f"{name}-{width}x{height}.txt"
        if os.environ.get("UPDATE_SNAPSHOTS"):
            await it.pilot.pause(0.5)
            file.parent.mkdir(exist_ok=True)
            file.write_text(steady(it.text()))
        await it.until(lambda: steady(it.text()) == file.read_text(), seconds=2.0, fails=False)  # noqa: B023
        assert steady(it.text()) == file.read_text(), (
            f"{file.stem} looks different; UPDATE_SNAPSHOTS=1 takes it as right"
        )


@on_a_loop
async def test_the_main_screens_look_as_they_did_at_three_sizes() -> None:
    endpoint = FakeEndpoint(answers=[ANSWER], info=replace(FAKE, embedded=True), tok_per_s=2000)
    async with driven(ChatApp(endpoint), size=SIZES[0]) as it:
        await compare(it, "empty")
        await it.ask("How do I find the longest line of a file?")
        await it.until(lambda: "N tok/s" in steady(it.text()))
        await compare(it, "answered")


# --- panel and tint


@pytest.mark.slow
@on_a_loop
async def test_the_panel_tells_what_speculation_does_and_one_line_does_where_it_is_narrow() -> None:
    async with driven(ChatApp(FakeEndpoint(answers=["some words " * 30], tok_per_s=200))) as it:
        await it.ask("say")
        panel = it.shown("#panel-rows")
        for words in (
            "tok/s",
            "of guesses",
            "tokens",
            "4 by draft model",
            "of 4,096",
            "5.4 GB",
            "in distribution",
        ):
            assert words in panel
        assert "1.60x plain speed\nestimated" in it.shown("#panel-lead") and "draft model" in it.shown(
            "#origins"
        )
        await it.pilot.resize_terminal(80, 24)
        await it.until(lambda: "1.60x estimated" in it.text().splitlines()[-2])
        assert not it.chat.query_one("#panel-rows").display
        await it.pilot.press("f2")
        await it.until(lambda: "estimated" not in it.text().splitlines()[-2])


def origin_at(it: Driven, word: str) -> str | None:
    """Returns the background of a word on the screen."""
    for strip in strips_of(it.app):
        for segment in strip:
            if word in segment.text and segment.style and segment.style.bgcolor:
                return segment.style.bgcolor.name
    return None


@on_a_loop
async def test_each_word_is_tinted_by_who_produced_it_also_inside_markdown() -> None:
    rounds = [
        round_of(Span("guessed ", "model"), Span("**boldly**", "lookup"), drafted=2),
        round_of(Span(" itself", "target"), drafted=1),
    ]
    async with driven(ChatApp(FakeEndpoint(answers=[rounds]))) as it:
        await it.ask("go")
        plain = origin_at(it, "guessed")
        assert origin_at(it, "boldly") == plain
        await it.pilot.press("f3")
        await it.until(lambda: origin_at(it, "guessed") != plain)
        model, lookup = origin_at(it, "guessed"), origin_at(it, "boldly")
        assert len({model, lookup, origin_at(it, "itself")}) == 3
        await it.pilot.press("f3")
        await it.until(lambda: origin_at(it, "guessed") == plain)


def long_talk(turns: int) -> Conversation:
    talk = Conversation(title="long")
    for i in range(turns):
        turn = talk.add("user" if i % 2 == 0 else "assistant", f"turn number {i}.\n\n" * 5, parent=talk.head)
        talk.change(replace(turn, finish="stop" if i % 2 else None))
    return talk


@on_a_loop
async def test_a_long_answer_and_a_long_chat_are_few_widgets_and_nothing_is_lost() -> None:
    talk = long_talk(40)
    long = "".join(f"Paragraph {i} of it.\n\n" for i in range(150))
    async with driven(ChatApp(FakeEndpoint(answers=[long]), first=talk)) as it:
        assert len(it.chat.query(TurnView)) == SHOWN and "36 earlier turns" in str(
            it.chat.query_one("#earlier").label  # type: ignore[attr-defined]
        )
        await it.ask("at length")
        assert it.texts()[-1] == long and len(it.texts()) == 42
        assert "Paragraph 149" in it.text() and len(it.chat.query(AnswerSegment)) < 10
        it.chat.transcript.scroll_home(animate=False)
        await it.until(lambda: it.chat.transcript.scroll_y <= 0)
        for _ in range(4):
            await it.pilot.press("pageup")
            await it.until(lambda: not any(one.group == "earlier" for one in it.app.workers))
            it.chat.transcript.scroll_home(animate=False)
        await it.until(lambda: len(it.chat.query(AnswerSegment)) > 9, "more of what is above")


@on_a_loop
async def test_what_comes_faster_than_it_is_drawn_is_few_widgets_and_its_end_is_shown() -> None:
    """At 1,000 tokens a second each drawing had more to draw than the last, and memory grew with it."""
    async with driven(ChatApp(FakeEndpoint(answers=["An answer."]))) as it:
        await it.ask("go")
        answer = it.chat.query_one(AnswerView)
        much = "".join(f"Line {i} of it.\n\n```python\nx = {i}\n```\n\n" for i in range(300))
        await answer.feed(much, "", [("model", len(much))])
        assert len(answer.query(AnswerSegment)) == 2 and len(answer.query(CodeFence)) < 20
        await it.until(lambda: "x = 299" in it.text() and "Line 299" in it.text())
        assert answer.bodies[0].has_more


@on_a_loop
async def test_what_is_selected_with_the_mouse_is_copied_as_it_was_written() -> None:
    said = "- first, in words that go on past the end of a row of this screen, so it is wrapped\n- second"
    async with driven(ChatApp(FakeEndpoint(answers=[said])), size=(60, 20)) as it:
        await it.ask("list")
        prose = it.chat.query_one(Prose)
        assert prose.region.height == 3
        await it.pilot.mouse_down(prose, offset=(2, 0))
        await it.pilot.hover(prose, offset=(5, 2))
        await it.pilot.mouse_up(prose, offset=(5, 2))
        await it.pilot.press("ctrl+c")
        copied = "first, in words that go on past the end of a row of this screen, so it is wrapped\n• seco"
        assert it.app.clipboard == copied


@pytest.mark.slow
@on_a_loop
async def test_a_code_block_shown_in_parts_is_copied_whole() -> None:
    code = "\n".join(f"line_{i} = {i}" for i in range(150))
    async with driven(ChatApp(FakeEndpoint(answers=[f"```python\n{code}\n```"]))) as it:
        await it.ask("code")
        fences = it.chat.query(CodeFence)
        assert len(fences) > 1
        fences.last().action_copy()
        await it.until(lambda: it.app.clipboard == code)


# --- race


@pytest.mark.slow
@on_a_loop
async def test_a_race_measures_the_speedup_shows_two_clocks_and_says_the_text_is_the_same() -> None:
    endpoint = FakeEndpoint(answers=["some **words** to say " * 12], tok_per_s=90, plain_tok_per_s=45)
    async with driven(ChatApp(endpoint)) as it:
        await it.pilot.press("f5")
        await it.notified("no question to race")
        await it.ask("say")
        await it.pilot.press("f5")
        await it.until(lambda: isinstance(it.app.screen, RaceScreen) and it.app.screen.measured, "a verdict")
        await it.pilot.pause()
        assert "faster with speculation, measured" in it.shown("#race-verdict")
        assert "some words to say" in it.text() and "**" not in it.text(), "Markdown is drawn"
        assert "Both texts are identical" in it.shown("#race-verdict")
        assert "this text was generated before" in it.shown("#race-verdict"), "the chat's answer, here"
        clocks = [str(clock.content) for clock in it.app.screen.query(".lane-clock")]
        assert len(clocks) == 2 and all("tok/s" in clock for clock in clocks)
        await it.pilot.resize_terminal(80, 24)
        await it.until(
            lambda: "Plain decoding" in it.text() and "With speculation" in it.text(), "both lanes"
        )
        assert [w.speculation for _, w in endpoint.asked[2:]] == [False, True]
        await it.pilot.press("escape")
        await it.until(lambda: "measured" in it.shown("#panel-lead"))
        assert it.chat.measured and it.chat.measured.speedup > 1.2
        assert len(it.texts()) == 2, "a race leaves the chat as it was"


@on_a_loop
async def test_a_question_with_a_picture_is_raced_with_it(tmp_path: Path) -> None:
    """Both lanes got the text alone, so a race showed another question than the chat would ask."""
    (picture := tmp_path / "a.png").write_bytes(png())
    endpoint = FakeEndpoint(answers=["some words to say " * 12], tok_per_s=900, plain_tok_per_s=450)
    async with driven(ChatApp(endpoint)) as it:
        it.chat.prompt.fill(f"what is @{picture}?")
        await it.pilot.press("f5")
        await it.until(lambda: isinstance(it.app.screen, RaceScreen) and it.app.screen.measured, "a verdict")
        assert {messages[-1].media for messages, _ in endpoint.asked} == {(str(picture),)}
        assert "[a.png: picture" in it.shown("#race-question")


@on_a_loop
async def test_a_race_ends_no_answer_that_is_being_written() -> None:
    """One key, pressed for its neighbour, cut off an answer of minutes."""
    async with driven(ChatApp(FakeEndpoint(answers=["some words " * 400], tok_per_s=50))) as it:
        await it.say("one")
        await it.until(lambda: "some words" in it.text())
        await it.pilot.press("f5")
        await it.notified("an answer is still being written: Esc stops it")
        assert it.chat.answering and it.app.screen is it.chat


@on_a_loop
async def test_where_nothing_is_guessed_panel_and_race_say_so_and_why() -> None:
    plain = [round_of(Span("word ", "target")) for i in range(60)]
    info = replace(FAKE, break_even=BreakEven(1.7, 0.2, 0.9, 0.7))
    async with driven(ChatApp(FakeEndpoint(answers=[plain], info=info, tok_per_s=2000))) as it:
        await it.ask("say")
        await it.until(lambda: "Two tokens cost 1.7 times one here" in it.shown("#panel-odds"))
        await it.pilot.press("f5")
        await it.until(lambda: "same way of writing" in it.text() and "9 times in 10" in it.text())
        assert isinstance(it.app.screen, RaceScreen) and it.app.screen.measured is None


@on_a_loop
async def test_all_of_why_is_shown_though_nothing_else_in_the_panel_has_grown() -> None:
    """Of `Two tokens cost 2.6 times one here, ...` the first line alone was seen."""
    info = replace(FAKE, break_even=BreakEven(1.7, 0.2, 0.9, 0.7))
    async with driven(ChatApp(FakeEndpoint(info=FAKE))) as it:
        await it.ask("say")
        panel, figures = it.chat.query_one(SpeculationPanel), LiveFigures()
        panel.show(figures, PanelState(info=info))
        await it.pilot.pause(0.2)
        assert not it.shown("#panel-odds")
        figures.over = True
        panel.show(figures, PanelState(info=info))
        await it.pilot.pause(0.2)
        assert panel.query_one("#panel-odds").size.height > 3


@on_a_loop
async def test_a_narrow_window_says_once_why_nothing_is_guessed() -> None:
    """Only the panel said it, where there are 120 columns."""
    plain = [round_of(Span("word ", "target")) for i in range(60)]
    info = replace(FAKE, break_even=BreakEven(1.7, 0.2, 0.9, 0.7))
    async with driven(ChatApp(FakeEndpoint(answers=[plain], info=info, tok_per_s=2000)), size=(80, 24)) as it:
        await it.ask("say")
        await it.notified("Guesses hardly pay with this pair here: F2 shows why.")
        assert "Two tokens" not in it.text(), "a lecture, before any benefit"
        await it.pilot.press("f2")
        await it.until(lambda: "Two tokens cost 1.7 times one here" in it.text(), "the reason")
        assert "60 tokens" in it.text() and "Ask something" in it.text(), "answer and input stay in view"
        await it.pilot.press("f2")
        await it.until(lambda: "Two tokens" not in it.text() and "context" not in it.text(), "no panel")
        await it.pilot.press("f2")
        await it.until(lambda: "context" in it.text().splitlines()[-2], "a line")
        line = it.chat.query_one(NoticeLine)
        line.sentences.clear()
        await it.ask("again")
        assert not line.sentences


@on_a_loop
async def test_the_palette_offers_a_found_model_only_where_one_was_found() -> None:
    async with driven(ChatApp(FakeEndpoint())) as it:
        offered = {entry.title for entry in it.app.get_system_commands(it.app.screen)}
        assert "New" in offered and "Use found model" not in offered
        it.app.offers.found = cast(Found, SimpleNamespace())
        assert "Use found model" in {entry.title for entry in it.app.get_system_commands(it.app.screen)}


@pytest.mark.slow
@on_a_loop
async def test_a_race_that_fails_says_why_and_leaves_again() -> None:
    endpoint = FakeEndpoint(answers=["fine", EndpointError("The server is busy.")])
    async with driven(ChatApp(endpoint)) as it:
        await it.ask("say")
        await it.say("/race")
        await it.until(lambda: "The server is busy." in it.text())
        await it.pilot.press("escape")
        await it.until(lambda: it.app.screen is it.chat)


# --- sessions


@on_a_loop
async def test_chats_are_found_opened_renamed_deleted_and_brought_back(tmp_path: Path) -> None:
    sessions = Sessions(tmp_path, on_notice=lambda sentence: pytest.fail(sentence))
    try:
        async with driven(
            ChatApp(FakeEndpoint(answers=["About files.", "About sorting."]), sessions=sessions)
        ) as it:
            await it.ask("files?")
            await it.pilot.press("ctrl+n")
            await it.ask("sorting?")
            await it.pilot.press("ctrl+n", "ctrl+o")
            options = it.app.screen.query_one(OptionList)
            await it.until(lambda: options.option_count == 2)
            await it.until(
                lambda: f"1 question · {FAKE.model} · About files." in it.text(), "chats told apart"
            )
            await it.pilot.press(*"about f")
            await it.until(lambda: options.option_count == 1 and "About files." in it.text())
            await it.pilot.press("f2")
            it.app.screen.query_one("#sessions-title", Input).value = "My files"
            await it.pilot.press("enter")
            await it.until(lambda: "My files" in it.text())
            await it.pilot.press("delete")
            await it.until(lambda: options.option_count == 0 and "Deleted 'My files'" in it.text())
            await it.pilot.press("ctrl+z")
            await it.until(lambda: options.option_count == 1 and "is back" in it.text())
            await it.pilot.press("enter")
            await it.until(lambda: it.texts() == ["files?", "About files."])
            assert it.chat.conversation.title == "My files"
    finally:
        sessions.close()


# --- the mouse


@pytest.mark.slow
@on_a_loop
async def test_all_that_is_done_with_a_turn_is_done_with_the_mouse() -> None:
    """Words below a turn are buttons; they did nothing once, and moved away from the pointer."""
    answers = ["<think>hm, so</think>First.", "Second.", EngineDiedError("The engine was killed."), "Back."]
    endpoint = FakeEndpoint(answers=answers)
    async with driven(ChatApp(endpoint, first=long_talk(9)), size=(100, 34)) as it:
        it.chat.transcript.scroll_home(animate=False)
        await it.click("earlier turns")
        await it.until(lambda: len(it.chat.query(TurnView)) == 9, "what is above")
        await it.ask("really?")
        assert len(it.chat.query(TurnView)) == SHOWN and "hm, so" not in it.text()
        await it.click("Thought")
        await it.until(lambda: "hm, so" in it.text(), "the reasoning")
        await it.click("First.")
        await it.click("copy")
        assert it.app.clipboard == "First."
        await it.click("r again")
        await it.until(lambda: "Second." in it.text() and not it.chat.answering)
        await it.click("<")
        await it.until(lambda: "1 of 2" in it.text() and "First." in it.text())
        await it.click("really?")
        await it.click("e edit")
        await it.until(lambda: it.chat.prompt.text == "really?", "the question, to be edited")
        await it.pilot.press("enter")
        await it.until(lambda: "F9 restarts" in it.text() and not it.chat.answering, "the engine's end")
        await it.click("F9 restarts the engine")
        await it.until(lambda: endpoint.restarts == 1 and it.app.context.engine.state == "ready")
        await it.click("Again")  # of the footer
        await it.until(lambda: it.texts()[-1] == "Back.")
        old = it.chat.conversation
        await it.click("really?")
        await it.click("b branch")
        await it.until(lambda: it.chat.conversation is not old and it.texts()[-1] == "really?")


@pytest.mark.slow
@on_a_loop
async def test_lists_and_screens_are_used_with_the_mouse(tmp_path: Path) -> None:
    sessions = Sessions(tmp_path, on_notice=lambda sentence: pytest.fail(sentence))
    try:
        async with driven(ChatApp(FakeEndpoint(answers=["About files."]), sessions=sessions)) as it:
            await it.ask("files?")
            await it.pilot.press("ctrl+n")
            await it.click("Chats")
            await it.click("files?")
            await it.until(lambda: it.app.screen is it.chat and it.texts() == ["files?", "About files."])
            await it.click("Help")
            await it.click("Back")
            await it.until(lambda: it.app.screen is it.chat)
            await it.click("Tint")
            assert it.chat.transcript.tinted
            await it.click("palette")
            await it.pilot.press(*"Copy answer")
            await it.click("Copy the last answer")
            await it.until(lambda: it.app.clipboard == "About files.")
    finally:
        sessions.close()


# --- keys, themes, no colours


@pytest.mark.slow
@on_a_loop
async def test_keys_are_remapped_and_help_shows_where_they_went() -> None:
    settings = Settings(keys={"chat.tint": "f12"}, theme="edgespec-light")
    async with driven(ChatApp(FakeEndpoint(), settings=settings)) as it:
        assert it.app.theme == "edgespec-light"
        await it.pilot.press("f3")
        assert not it.chat.transcript.tinted
        await it.pilot.press("f12")
        assert it.chat.transcript.tinted
        await it.pilot.press("f1")
        await it.until(lambda: "f12" in it.text() and "f3 " not in it.text())


def marked_texts(it: Driven) -> list[str]:
    """Returns what the transcript shows in reverse, but for its scrollbar."""
    region = it.chat.transcript.region
    strips = strips_of(it.app)[region.y : region.bottom]
    return [
        text
        for strip in strips
        for text, style, _ in strip
        if style and style.reverse and text.strip().isascii() and text.strip()
    ]


@on_a_loop
async def test_words_are_found_in_the_open_chat_and_scrolled_to() -> None:
    """Only the list of chats could be searched: who looked for a place in a long chat scrolled."""
    long = "\n\n".join(f"Paragraph {n} of the answer." for n in range(60))
    answers = [long, "A Needle here.", *["another"] * 4]
    async with driven(ChatApp(FakeEndpoint(answers=answers)), size=(100, 24)) as it:
        for n in range(6):
            await it.ask(f"question {n}")
        assert "Needle" not in it.text()
        await it.pilot.press("alt+w", *"needle")
        await it.until(lambda: "1 of 1: A Needle here." in it.text() and " A Needle here." in it.text())
        await it.until(lambda: marked_texts(it) == ["Needle"], "the place is marked")
        await it.pilot.press(*["backspace"] * 6, *"paragraph 3")
        await it.until(lambda: "11 of 11" in it.text() and "Paragraph 39 of" in it.text(), "the newest")
        await it.pilot.press("enter")
        await it.until(lambda: "10 of 11" in it.text() and "Paragraph 38 of" in it.text(), "the one above")
        await it.until(lambda: marked_texts(it).count("Paragraph 3") > 3, "all that are in view are marked")
        await it.pilot.press("down", "down")
        await it.until(lambda: "1 of 11" in it.text() and "Paragraph 3 of" in it.text(), "round and round")
        await it.pilot.press("x")
        await it.until(lambda: "Nothing found." in it.text())
        await it.pilot.press("escape", *"typed")
        await it.until(lambda: it.chat.prompt.text == "typed" and "Nothing found" not in it.text())
        assert not it.chat.answering and len(it.texts()) == 12 and not marked_texts(it)


@on_a_loop
async def test_a_search_ends_with_its_chat() -> None:
    """It stayed open above the next chat, searched the one before, and Esc in the input did not close it."""
    async with driven(ChatApp(FakeEndpoint(answers=["A Needle here."]))) as it:
        await it.ask("one")
        await it.pilot.press("alt+w", *"needle")
        await it.until(lambda: "1 of 1: A Needle here." in it.text())
        await it.pilot.press("ctrl+n")
        await it.until(lambda: "Needle" not in it.text() and "Search this chat" not in it.text())
        await it.pilot.press(*"next")
        await it.until(lambda: it.chat.prompt.text == "next")


@on_a_loop
async def test_help_begins_with_how_to_ask() -> None:
    """It began with the key that copies code; Enter was in its lower half."""
    async with driven(ChatApp(FakeEndpoint())) as it:
        await it.ask("one")
        await it.pilot.press("f1")
        await it.until(lambda: "While writing" in it.text(), "help")
        text = it.text()
        places = [
            text.index(words) for words in ("While writing", "Send", "In a chat", "Answer the last", "f12")
        ]
        assert places == sorted(places) and text[: places[0]].count("\n") < 3


@on_a_loop
async def test_the_palette_begins_with_what_is_used() -> None:
    """It began with the first in the alphabet."""
    async with driven(ChatApp(FakeEndpoint())) as it:
        await it.pilot.press("ctrl+p")
        options = it.app.screen.query_one(OptionList)
        await it.until(lambda: options.option_count > 20, "all entries")
        first = [str(options.get_option_at_index(i).prompt).split("\n")[0] for i in range(4)]
        assert first == ["Help", "New", "Chats", "Models"]
        told = [(entry.title, entry.help) for entry in it.app.get_system_commands(it.chat)]
        twice = [title for title, count in Counter(title for title, _ in told).items() if count > 1]
        assert not twice, "what several keys do is one entry"
        assert ("Race", "Race plain decoding against speculation (f5, ^g)") in told


@on_a_loop
async def test_hands_that_save_are_reported_that_it_is_done(tmp_path: Path) -> None:
    """Ctrl+S switched speculation."""
    sessions = Sessions(tmp_path, on_notice=print)
    async with driven(ChatApp(FakeEndpoint(), sessions=sessions)) as it:
        await it.pilot.press("ctrl+s")
        await it.notified("This chat is saved as it goes")
        assert it.chat.speculation
    sessions.close()
    async with driven(ChatApp(FakeEndpoint())) as it:
        await it.pilot.press("ctrl+s")
        await it.notified("This chat is not saved")


@pytest.mark.slow
@on_a_loop
async def test_every_command_is_in_the_palette() -> None:
    async with driven(ChatApp(FakeEndpoint())) as it:
        names = {command.title for command in it.app.get_system_commands(it.chat)}
        for name in (
            "Race",
            "Tint",
            "Speculation",
            "Copy code",
            "New",
            "Chats",
            "Models",
            "Quit",
            "Panel",
        ):
            assert name in names


@pytest.mark.slow
@on_a_loop
async def test_without_colours_tints_are_still_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    async with driven(ChatApp(FakeEndpoint(answers=["a few words here"]))) as it:
        await it.ask("go")
        await it.pilot.press("f3")
        await it.pilot.pause()
        strips = strips_of(it.app)
        styles = {s.text.strip(): s.style for strip in strips for s in strip if s.style and "few" in s.text}
        assert any(style.underline for style in styles.values())


@pytest.mark.slow
@on_a_loop
async def test_ctrl_c_copies_stops_empties_and_then_ends() -> None:
    async with driven(ChatApp(FakeEndpoint(answers=["word " * 300], tok_per_s=100))) as it:
        await it.say("go")
        await it.until(lambda: it.chat.answering)
        await it.pilot.press("ctrl+c")
        await it.until(lambda: not it.chat.answering)
        await it.pilot.press(*"half", "ctrl+c")
        assert it.chat.prompt.text == "" and it.app.is_running
        await it.pilot.press("ctrl+c")
        await it.notified("again to quit")
        await it.pilot.press("ctrl+c")
        await it.until(lambda: it.app._exit)
