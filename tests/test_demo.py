"""`edgespec demo`: what it is made of, what it shows in any window, and that it is measured and not told."""

from __future__ import annotations

import asyncio
import functools
import re
import shutil
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from fake_endpoint import FakeEndpoint
from textual.widgets import Digits, Static
from tui_driver import driven, strips_of

from edgespec.client.answer import AnswerOptions
from edgespec.commands.cli import main
from edgespec.errors import EdgeSpecError
from edgespec.local.attach import OnProgress, Progress
from edgespec.pairs import grown
from edgespec.pairs.grown import Cost, costs_of, first_that_fits
from edgespec.system.config import cache_folder
from edgespec.system.other_programs import Others
from edgespec_tui import demo_app
from edgespec_tui.app import ChatApp
from edgespec_tui.demo_app import DemoApp
from edgespec_tui.endpoint.endpoint import Endpoint
from edgespec_tui.screens import demo
from edgespec_tui.screens.demo import (
    DemoScreen,
    about_cost,
    in_markdown,
    new_race,
    prepared,
    questions,
    quoted,
    result,
    sameness,
)
from edgespec_tui.screens.race import ALIKE, LaneAnswer, Race

GB = 10**9
BIG, SMALL = Cost("0.6B-F16", 1_256_000_000, 1_256_000_000), Cost("0.14B-F16", 292_000_000, 292_000_000)
FAST = FakeEndpoint(answers=["some words to say " * 20], tok_per_s=6000, plain_tok_per_s=3000)
SLOW = FakeEndpoint(answers=["some words to say " * 20], tok_per_s=1, plain_tok_per_s=1)


def on_a_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(*args: object, **kwargs: object) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **kwargs), 30))

    return run


async def ready(
    on_progress: OnProgress, answers: Endpoint, error: EdgeSpecError | None = None
) -> tuple[Endpoint, str]:
    """A preparation that says how far it is, and has an endpoint."""
    on_progress(Progress("loading", "making a pair", 0.5))
    await asyncio.sleep(0.3)
    if error:
        raise error
    return answers, about_cost(BIG)


def demo_of(endpoint: Endpoint, *, seconds: float = 0.3, error: EdgeSpecError | None = None) -> DemoScreen:
    return DemoScreen(seconds=seconds, prepare=lambda on_progress: ready(on_progress, endpoint, error))


# --- what it is made of


def test_the_cost_is_the_first_that_leaves_room_on_the_disk_and_in_memory() -> None:
    def chosen(disk: float, memory: float, *costs: Cost) -> Cost | None:
        return first_that_fits(costs or (BIG, SMALL), disk=round(disk * GB), memory=round(memory * GB))

    assert chosen(50, 8) is BIG
    assert chosen(2, 8) is SMALL and chosen(50, 2) is SMALL
    assert chosen(1, 8) is None and chosen(50, 1) is None
    made = Cost("0.6B-F16", BIG.size, 0)
    assert chosen(0.1, 8, made) is made, "it is on the disk already"
    assert "no room" in about_cost(None) and "no room for one of 0.6B" in about_cost(SMALL)
    assert about_cost(BIG).startswith("The embedded pair, as slow as a model of 0.6B parameters.")


def test_what_a_cost_takes_is_known_without_making_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGESPEC_CACHE_DIR", str(tmp_path / "not/there"))
    big, small = costs_of(demo.COSTS)
    assert big.missing == big.size == pytest.approx(BIG.size, rel=0.01) and small.size < big.size / 4
    assert grown.free_disk() > 0
    grown.folder().mkdir(parents=True)
    (grown.folder() / "target-0.6B-F16-0123456789ab.gguf").touch()
    assert 0 < costs_of(demo.COSTS)[0].missing < big.size / 10, "the draft is still to be made"


def test_a_cache_folder_that_cannot_be_written_is_not_called_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The demo said that there was no room, and to check the space."""
    (cache := tmp_path / "cache").touch()
    monkeypatch.setenv("EDGESPEC_CACHE_DIR", str(cache))
    _, about = asyncio.run(prepared(lambda _: None, start=lambda wanted, on_progress: FAST))
    assert grown.free_disk() == 0
    assert f"{cache} cannot be written" in about and "room" not in about


def test_a_reader_of_the_demo_that_has_gone_ends_it_without_a_word(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`demo --plain | head -1` wrote a traceback for each line that nobody read, and raced to the end."""
    said: list[str] = []

    async def later(on_progress: OnProgress) -> tuple[Endpoint, str]:
        asyncio.get_running_loop().call_soon(on_progress, Progress("loading", "making a pair"))
        await asyncio.sleep(0.3)
        return FAST, ""

    def say(sentence: str) -> None:
        if said:
            raise BrokenPipeError
        said.append(sentence)

    with pytest.raises(BrokenPipeError):
        asyncio.run(demo_app.in_lines(5.0, prepare=later, say=say))
    assert said == [demo.ABOUT_LINES] and capsys.readouterr().err == ""


def test_the_questions_are_of_several_kinds_and_every_one_is_asked_before_any_is_asked_again() -> None:
    asked = questions()
    assert len(asked) >= 30 and asked[0] != asked[1]
    race = new_race(FakeEndpoint(), seconds=1, skip=5)
    assert race.questions[0] == asked[5] and len(race.questions) == len(asked) and race.is_greedy


def test_a_question_is_quoted_as_it_was_written() -> None:
    assert quoted("What is `__init__` for?\n\ncode") == "> What is `__init__` for?\n\n"
    assert quoted("What is a.__init__?") == "> What is a.\\_\\_init\\_\\_?\n\n"
    assert quoted("") == ""


def test_code_that_the_limit_cut_off_ends_before_the_next_question() -> None:
    cut, next_ = (
        LaneAnswer("One?", "```python\nx = ", [("model", 14)]),
        LaneAnswer("Two?", "y", [("target", 1)]),
    )
    text, runs = in_markdown([cut, next_])
    assert text == "> One?\n\n```python\nx = \n```\n\n> Two?\n\ny\n\n"
    assert sum(n for _, n in runs) == len(text) and text[8:22] == cut.text


def race_of(endpoint: FakeEndpoint) -> Race:
    race = new_race(endpoint, seconds=0.02)

    asyncio.run(race.run())
    return race


def test_it_ends_with_what_was_measured_and_never_with_more() -> None:
    assert re.match(r"2\.\d\dx faster with speculation, measured here just now \(", result(race_of(FAST)))
    slower = FakeEndpoint(answers=["some words to say " * 20], tok_per_s=3000, plain_tok_per_s=6000)
    assert result(race_of(slower)).startswith("0.5")
    assert result(new_race(FAST, seconds=1)) == ALIKE, "nothing has run"
    unsure = race_of(FAST)
    for i, lane in enumerate(unsure.lanes.values()):
        lane.times, lane.tokens = [], []
        for n in range(40):
            lane.time(0.1 if n // 4 % 2 == i else 0.2, 1)
    assert re.match(r"\d\.\d\dx: no difference with speculation that this could show, ", result(unsure))
    assert sameness(race_of(FAST)).startswith("All answers are the same")
    race = Race(FAST, [], AnswerOptions())
    for lane, texts in zip(race.lanes.values(), (["one", "two and"], ["one", "too"]), strict=True):
        for text in texts:
            lane.begin()
            lane.answers[-1].text = text
    assert sameness(race).startswith("1 of 2 answers are the same")


@on_a_loop
async def test_a_preparation_that_is_given_up_writes_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, ended = asyncio.Event(), threading.Event()

    def make(spec: str, on_progress: Callable[[int, int], None]) -> tuple[Path, Path]:
        try:
            for done in range(3000):
                on_progress(done, 3000)
                time.sleep(0.01)
            raise AssertionError("it was not stopped")
        finally:
            ended.set()

    task = asyncio.create_task(prepared(lambda _: begun.set(), make=make))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.wait(5)


# --- on the screen


@pytest.mark.slow
@pytest.mark.sample(1)
@pytest.mark.parametrize("size", [(80, 24), (40, 12), (200, 60)])
@on_a_loop
async def test_the_demo_shows_a_sign_of_life_then_two_columns_then_a_result(size: tuple[int, int]) -> None:
    app = DemoApp(screen := demo_of(FAST))
    async with app.run_test(size=size) as pilot:

        def shown() -> str:
            return "\n".join(strip.text for strip in strips_of(app))

        for words in ("50%", "tokens", "measured here"):
            for _ in range(500):
                if words in re.sub(r"\s+", " ", shown()):
                    break
                await asyncio.sleep(0.02)
            else:
                raise AssertionError(f"no {words!r} in {shown()}")
        assert "Plain decoding" in shown() and "With speculation, 50% accepted" in shown()
        assert screen.conclusion and "measured here" in screen.conclusion[0]
        if size[1] >= 24:  # the speed-up was one bold word in a paragraph
            large = screen.query_one(Digits)
            assert large.display and large.value == screen.conclusion[0].split()[0] and "┌─┘" in shown()
        for _ in range(100):
            if " ".join(screen.conclusion[2].split()[:3]) in re.sub(r"\s+", " ", shown()):
                break
            await asyncio.sleep(0.02)
        else:
            raise AssertionError(f"no next step in {shown()}")
        await pilot.resize_terminal(60, 20)
        before = screen.conclusion
        await pilot.press("r")
        for _ in range(500):
            if screen.conclusion is not before:
                break
            await asyncio.sleep(0.02)
        assert screen.conclusion is not before, "it was measured again"
        await pilot.press("escape")
    assert app.return_code == 0


@on_a_loop
async def test_a_demo_that_cannot_be_prepared_says_why_and_is_left_like_any_other() -> None:
    app = DemoApp(demo_of(FAST, error=EdgeSpecError("the disk is full")))
    async with app.run_test(size=(80, 24)) as pilot:
        for _ in range(500):
            if "the disk is full" in str(app.screen.query_one("#race-verdict", Static).content):
                break
            await asyncio.sleep(0.02)
        else:
            raise AssertionError("no reason")
        await pilot.press("q")
    assert app.return_code == 0


@on_a_loop
async def test_in_a_chat_a_key_shows_the_demo_and_leaving_it_leaves_the_chat_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("edgespec_tui.screens.demo.DemoScreen", lambda next_step: demo_of(FAST, seconds=0.05))
    async with driven(ChatApp(FakeEndpoint())) as it:
        assert "F12" in it.shown("#welcome-asks")
        await it.pilot.press("f12")
        await it.until(lambda: "measured here" in it.text())
        await it.pilot.press("escape")
        await it.until(lambda: it.app.screen is it.chat)
        assert it.chat.measured is None, "it was another pair"


# --- without a screen


def test_without_a_terminal_the_demo_says_in_lines_what_it_shows(
    capsys: pytest.CaptureFixture[str],
) -> None:
    asyncio.run(demo_app.in_lines(0.05, prepare=lambda tell: ready(tell, FAST)))
    out = capsys.readouterr().out
    assert "Making a pair ..." in out and "as slow as a model of 0.6B" in out
    assert re.search(r"Plain decoding: 0\.\d s, \d+ tokens, .* tok/s; With speculation, 50% accepted: ", out)
    assert "x faster with speculation, measured here just now" in out and "edgespec import" in out


def test_on_a_busy_machine_the_lines_say_so_before_and_after_and_end_in_time(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """184 s, then "too few tokens", without a word on what kept the machine busy."""

    class Busy(Others):
        def cores(self) -> float:
            return 1.5

    shown = demo_app.in_lines(
        0.1, prepare=lambda tell: ready(tell, SLOW), others=Busy(), first_look_s=0, reading_s=0.1
    )
    asyncio.run(shown)
    out = capsys.readouterr().out
    assert "Other programs keep 1.5 cores busy" in out and "0 s at most" in out
    assert "Too few tokens to measure" in out or "Nothing was guessed" in out
    assert "Other programs kept 1.5 cores busy" in out


def test_a_time_that_makes_no_sense_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--seconds", "0"]) != 0
    assert "--seconds is 0: it must be from 1 to 600" in capsys.readouterr().err


@pytest.mark.slow
@on_a_loop
async def test_the_demo_runs_for_real() -> None:
    """At the embedded pair's own cost, so that nothing has to be made; its first start takes a while."""
    shutil.rmtree(cache_folder() / "pairs")
    shown: list[Progress] = []
    endpoint, about = await prepared(shown.append, costs=())
    try:
        race = new_race(endpoint, seconds=0.5)
        await race.run()
    finally:
        await endpoint.close()
    assert about == about_cost(None) and any(progress.fraction for progress in shown)
    plain, speculative = race.lanes["plain"], race.lanes["speculative"]
    assert min(plain.seconds, speculative.seconds) > 0.3 and plain.counts.drafted == 0
    assert plain.texts[0] == speculative.texts[0]
