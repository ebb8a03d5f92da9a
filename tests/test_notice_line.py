"""Short-lived messages move nothing, whatever the window's size, and stay readable."""

from __future__ import annotations

import pytest
from fake_endpoint import FakeEndpoint
from test_tui_chat import on_a_loop
from tui_driver import Driven, driven

from edgespec_tui.app import ChatApp
from edgespec_tui.widgets.notice_line import NoticeBlock, NoticeLine
from edgespec_tui.widgets.prompt_input import PromptInput
from edgespec_tui.widgets.turn_view import TurnView

SIZES = ((120, 40), *(pytest.param(size, marks=pytest.mark.slow) for size in ((80, 24), (60, 20))), (50, 15))
LONG = "/tmp/notes.txt has 9,388,608 bytes, and 8,388,608 is the most for files in one question"


def places(it: Driven) -> list[object]:
    """Returns where the turns and the input are."""
    return [widget.region for widget in it.chat.query("TurnView, PromptInput, Transcript")]


@pytest.mark.sample(1)
@pytest.mark.parametrize("size", SIZES, ids=str)
@on_a_loop
async def test_a_message_moves_nothing_when_it_comes_or_goes(size: tuple[int, int]) -> None:
    """It took lines of the transcript: a click at that moment hit another thing."""
    async with driven(ChatApp(FakeEndpoint(answers=["word " * 80])), size=size) as it:
        await it.ask("go")
        assert it.chat.query(TurnView)
        before, shown = places(it), it.text()
        block = it.chat.query_one(NoticeBlock)
        line, prompt = it.chat.query_one(NoticeLine), it.chat.query_one(PromptInput)
        for sentence in ("Copied the turn.", LONG):
            it.chat.tell(sentence, "error")
            await it.until(lambda: line.region.bottom == prompt.region.y + 1 or block.region.height > 1)
            assert places(it) == before
            words = " ".join(it.text().replace("╭─", "").replace("─", "").replace("╮", "").split())
            assert all(word in words for word in sentence.split())
            assert it.text().splitlines()[-3] == shown.splitlines()[-3], "what is written stays in view"
            if block.display:  # it lay over the figures of the answer, and in the border of the input
                assert not line.display and block.region.y == it.chat.query_one("#talk").region.y
                assert it.text().splitlines()[-8:] == shown.splitlines()[-8:] and "tok/s" in shown
            await it.pilot.click(NoticeBlock if block.display else NoticeLine)
            await it.until(lambda: it.text() == shown)


@on_a_loop
async def test_a_short_message_covers_no_text() -> None:
    """It stands on the input's border."""
    async with driven(ChatApp(FakeEndpoint(answers=["word " * 80])), size=(80, 24)) as it:
        await it.ask("go")
        shown = it.text().splitlines()
        it.chat.tell("Copied the turn.")
        await it.until(lambda: "Copied" in it.text())
        changed = [old for old, new in zip(shown, it.text().splitlines(), strict=True) if old != new]
        assert len(changed) == 1 and set(changed[0].strip()) == set("╭─╮")


@on_a_loop
async def test_a_message_that_is_reported_again_stays_its_whole_time() -> None:
    """It ended when the first one would have ended."""
    async with driven(ChatApp(FakeEndpoint())) as it:
        line = it.chat.query_one(NoticeLine)
        line.tell("again", "error")
        first = line.sentences[0]
        line.tell("again", "error")
        line._end(first)
        assert len(line.sentences) == 1
