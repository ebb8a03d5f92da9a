"""The values behind the screens, without a screen: segments, origins, reasoning, figures, races, commands."""

from __future__ import annotations

import asyncio
import gc
import random
import re
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from fake_endpoint import FAKE, FakeEndpoint, round_of

from edgespec.chat.families.deltas import AssembledTurn
from edgespec.client.answer import AnswerOptions, Ended, Span, StreamedRound
from edgespec.core.values import FREE, BreakEven, Round
from edgespec.errors import EndpointError, SettingError
from edgespec_tui.endpoint.endpoint import Message
from edgespec_tui.screens.race import Lane, Race, compared, drawn, together, verdict
from edgespec_tui.settings.slash_commands import parsed
from edgespec_tui.settings.themes import DARK_TINTS, LIGHT_TINTS
from edgespec_tui.widgets.answer_body import MARKS, TINTS, AnswerBody
from edgespec_tui.widgets.attached_files import read_file
from edgespec_tui.widgets.growing import LATEST_S, SHARE, SOONEST_S, DrawingPace
from edgespec_tui.widgets.live_figures import LiveFigures
from edgespec_tui.widgets.markdown_blocks import code_blocks, last_code, whole_block
from edgespec_tui.widgets.origins import part, spans
from edgespec_tui.widgets.panel import MeasuredSpeedUp, PanelState, bar, odds_against, one_line, rows_of
from edgespec_tui.widgets.quiet_moments import QuietMoments
from edgespec_tui.widgets.segments import MOST_BLOCKS, MOST_CHARACTERS, MOST_CODE_LINES, Segment
from edgespec_tui.widgets.turn_writer import ANSWER, known_finish

PARAGRAPHS = "".join(f"Paragraph {i} has **some** words in it.\n\n" for i in range(60))
LONG_CODE = "Before.\n\n```python\n" + "".join(f"line_{i} = {i}\n" for i in range(400)) + "```\n\nAfter.\n"
LONG_LIST = "".join(f"- item {i} of a list that goes on for long\n" for i in range(100))


# --- segments


def segments(text: str) -> list[Segment]:
    """Returns a text as the body of an answer cuts it."""
    return AnswerBody(text, (), tinted=False)._segments


@pytest.mark.parametrize("text", [PARAGRAPHS, LONG_CODE, LONG_LIST, "short", "", "one\n\ntwo"])
def test_segments_hold_the_whole_text_in_order(text: str) -> None:
    found = segments(text)
    assert "".join(segment.text for segment in found) == text
    starts = [segment.start for segment in found]
    assert starts == [sum(len(s.text) for s in found[:i]) for i in range(len(found))]


def test_each_segment_is_short_enough_to_be_drawn_anew_many_times_a_second() -> None:
    assert all(s.text.count("Paragraph") <= MOST_BLOCKS + 1 for s in segments(PARAGRAPHS)[:-1])
    code = segments(LONG_CODE)
    assert len(code) > 400 // MOST_CODE_LINES and all(s.text.count("\n") < 80 for s in code[:-1])
    assert len(segments(LONG_LIST)) > 8


def test_long_tables_and_paragraphs_are_cut_too_and_a_table_keeps_its_head() -> None:
    table = "| n | words |\n|---|---|\n" + "".join(f"| {i} | some words |\n" for i in range(100))
    assert [s.source.count("| n | words |") for s in segments(table)] == [1, 1, 1]
    words = "word " * 3000
    assert all(len(s.text) <= MOST_CHARACTERS and s.text.endswith("word ") for s in segments(words))


def test_a_cut_code_block_is_opened_again_and_all_of_it_is_code() -> None:
    shown = [
        line for s in segments(LONG_CODE) for block in code_blocks(s.source) for line in block.splitlines()
    ]
    assert shown == [f"line_{i} = {i}" for i in range(400)]


def test_a_part_of_a_code_block_is_copied_as_the_whole() -> None:
    shown = code_blocks(segments(LONG_CODE)[2].source)[0]
    assert whole_block(LONG_CODE, shown).count("\n") == 399
    assert whole_block("nothing", "x = 1") == "x = 1"


def test_the_newest_code_block_is_the_last_of_the_last_answer_that_has_one() -> None:
    answers = ["```\nold\n```", "```\na\n```\ntext\n~~~py\nb\n~~~", "no code"]
    assert last_code(answers) == "b" and last_code(["none"]) is None
    assert last_code(["```py\nstill being wri"]) == "still being wri"


# --- origins


def test_every_origin_has_a_colour_in_both_themes() -> None:
    """The panel's list had none for lookahead, nor for what a grammar demanded."""
    origins = {f"origin-{name}" for name in ("target", "grammar", "model", *FREE)}
    assert set(DARK_TINTS) == set(LIGHT_TINTS) == origins
    assert set(TINTS) == set(MARKS) == {"model", *FREE}


def test_a_part_of_runs_is_cut_at_both_ends() -> None:
    runs = (("model", 3), ("target", 2), ("lookup", 4))
    assert part(runs, 2, 7) == [("model", 1), ("target", 2), ("lookup", 2)]
    assert part(runs, 3, 3) == [] and part(runs, 0, 99) == list(runs)


def test_rendered_text_is_found_in_its_source_past_the_signs_of_markdown() -> None:
    source = "It is **so** and `code`"
    origins = ["model"] * 8 + ["target"] * 2 + ["model"] * 13  # "so" is the target's
    found, end = spans("It is so and code", source, origins)
    assert found == [(0, 6, "model"), (6, 8, "target"), (8, 17, "model")]
    assert source[end:] == "`"


def test_a_character_that_rendering_made_up_has_no_origin_and_loses_nobodys_place() -> None:
    found, _ = spans("• one", "- one", ["model"] * 5)
    assert found == [(1, 5, "model")]


# --- reasoning


def thought(pieces: list[str]) -> tuple[str, str]:
    parser, said = ANSWER.parser(None), AssembledTurn()
    for piece in pieces:
        said.add(parser.feed(piece))
    said.add(parser.finish())
    return said.reasoning, said.content


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_thinking_is_told_apart_however_the_text_is_cut(size: int) -> None:
    text = "<think>\nWell, <b> and </thin> so.\n</think>\n\nYes: <think> is a tag."
    pieces = [text[i : i + size] for i in range(0, len(text), size)]
    assert thought(pieces) == ("Well, <b> and </thin> so.", "Yes: <think> is a tag.")


def test_only_an_answer_that_begins_with_thinking_has_any() -> None:
    assert thought(["Say <think>", "x</think>"]) == ("", "Say <think>x</think>")
    assert thought(["<thi"]) == ("", "<thi")
    assert thought(["<think>cut off"]) == ("cut off", "")
    assert thought([" \n", "  Text"]) == ("", " \n  Text")


# --- figures


def streamed(at: float, n: int, *, drafted: int = 0, accepted: int = 0, gain: float = 1.0) -> StreamedRound:
    sources = (*("model",) * accepted, *("target",) * (n - accepted))
    return StreamedRound(Round(tuple(range(n)), "x" * n, drafted, accepted, sources, gain=gain), at)


def test_figures_are_those_of_their_definitions() -> None:
    figures = LiveFigures(plain_s=0.1, clock=lambda: 10.0)
    for at, n, drafted, accepted in ((10.5, 1, 0, 0), (11.0, 4, 4, 3), (11.5, 2, 4, 1), (12.0, 1, 4, 0)):
        figures.note(streamed(at, n, drafted=drafted, accepted=accepted, gain=1.4))
    assert figures.ttft_s == 0.5 and figures.n_tokens == 8
    assert figures.tok_per_s() == pytest.approx(7 / 1.5)
    assert figures.acceptance_rate == pytest.approx(4 / 12)
    assert figures.mean_accepted_length == pytest.approx((4 + 3) / 3)
    assert figures.speedup is None, "said of 9 tokens, it was anything from 0.3 to 790"
    for i in range(14):
        figures.note(streamed(12.5 + 0.5 * i, 3, drafted=4, accepted=2, gain=1.4))
    assert figures.n_tokens == 50 and figures.speedup == pytest.approx(0.1 * 49 / 8.5)
    assert figures.why() == "4 by draft model, 1.4x expected"
    assert figures.by_source == {"model": 4 + 28, "target": 4 + 14}


def test_plain_decoding_has_no_speedup_and_says_why_nothing_is_drafted() -> None:
    figures = LiveFigures(plain_s=0.1, speculation=False, clock=lambda: 0.0)
    figures.note(streamed(1.0, 1))
    figures.note(streamed(2.0, 1))
    assert figures.speedup is None and figures.why() == "off, as you chose"
    tried = LiveFigures(clock=lambda: 0.0)
    tried.note(streamed(1.0, 1))
    assert tried.why() == "none: plain decoding is faster now" and tried.speedup is None


def test_a_plain_token_costs_what_rounds_without_a_draft_cost_here() -> None:
    """The engine's own figure leaves out the way to the reader: a tiny pair was said to run at 0.15x."""
    figures = LiveFigures(plain_s=0.001, clock=lambda: 0.0)
    for i in range(21):
        figures.note(streamed(0.1 * i, 1))
    assert figures.speedup is None, "nothing was guessed"
    for i in range(10):
        figures.note(streamed(2.1 + 0.1 * i, 3, drafted=3, accepted=2, gain=2.0))
    assert figures.seen_plain_s == pytest.approx(0.1)
    assert figures.speedup == pytest.approx(0.1 * 50 / 3.0)


def test_what_is_kept_of_the_speed_does_not_grow_with_the_answer() -> None:
    figures = LiveFigures(clock=lambda: 0.0)
    for i in range(10_000):
        figures.note(streamed(i * 0.05, 1))
    assert len(figures.samples) <= 120 and len(figures._recent) < 100
    assert figures.now_per_s() == pytest.approx(20)


# --- races


def raced(plain: str, speculative: str) -> tuple[str, str]:
    return compared(plain, speculative, greedy=True), compared(plain, speculative, greedy=False)


def test_a_race_says_whether_both_wrote_the_same_and_explains_a_difference() -> None:
    assert raced("the same", "the same")[0] == "Both texts are identical."
    greedy, seeded = raced("one two three", "one two four")
    assert "same for 8 characters" in greedy and "'three'" in greedy and "'four'" in greedy
    assert "equally likely" in greedy and "almost a tie" in seeded
    assert "its end" in raced("longer text", "longer")[0]


def test_sampled_answers_of_a_race_get_a_seed() -> None:
    messages = [Message("user", "?")]
    assert drawn(FakeEndpoint(), messages, AnswerOptions(), rng=random.Random(1)).options.seed is not None
    greedy = AnswerOptions(sampling={"temperature": 0.0})
    assert drawn(FakeEndpoint(), messages, greedy, rng=random.Random(1)).options.seed is None
    assert drawn(FakeEndpoint(), messages, AnswerOptions(seed=5), rng=random.Random(1)).options.seed == 5


def test_a_second_race_says_something_new_unless_a_seed_was_wished_for() -> None:
    """The engine remembers what it said, so the same text again would flatter speculation."""
    messages, rng = [Message("user", "?")], random.Random(1)
    race = drawn(FakeEndpoint(), messages, AnswerOptions(), rng=rng)
    again = race.again(rng)
    assert again.name != race.name and again.options.seed != race.options.seed
    assert drawn(FakeEndpoint(), messages, AnswerOptions(seed=5), rng=rng).again(rng).options.seed == 5


def finished(race: Race) -> Race:
    """Returns a race that was run."""

    asyncio.run(race.run())
    return race


def test_both_lanes_are_asked_the_same_but_for_speculation() -> None:
    endpoint = FakeEndpoint(answers=["some words to say"])
    race = finished(drawn(endpoint, [Message("user", "?")], AnswerOptions(), rng=random.Random(1)))
    assert race.comparison().startswith("Both texts are identical")
    asked = [options for _, options in endpoint.asked]
    assert [options.speculation for options in asked] == [False, True]
    assert len({options.lane for options in asked}) == 2 and all(options.lane for options in asked)
    assert len({(options.seed, options.max_tokens) for options in asked}) == 1


def test_lanes_answer_several_questions_each_until_its_own_clock_has_run_out() -> None:
    endpoint = FakeEndpoint(answers=["some words to say " * 25], tok_per_s=30_000, plain_tok_per_s=10_000)
    questions = [[Message("user", str(i))] for i in range(9)]
    race = finished(Race(endpoint, questions, AnswerOptions(), longest_s=0.025))
    plain, speculative = race.lanes["plain"], race.lanes["speculative"]
    assert (len(plain.answers), len(speculative.answers)) == (3, 8)
    assert plain.seconds == pytest.approx(0.025, abs=0.001)
    assert [source for source, _ in speculative.answers[0].runs][:3] == ["model", "target", "model"]
    assert endpoint.cancelled == 2


def test_where_nothing_is_guessed_a_race_measures_no_speedup() -> None:
    one = round_of(Span("x", "target"))
    race = finished(drawn(FakeEndpoint([[one] * 60]), [], AnswerOptions(), rng=random.Random(1)))
    assert not race.guessed and race.measured() is None


def test_a_server_that_knows_no_lanes_cannot_race() -> None:
    """It would answer both at the same moment, and neither speed would be its own."""
    one = round_of(Span("x", "target"))

    class Older(FakeEndpoint):
        async def answer(
            self, messages: Sequence[Message], options: AnswerOptions
        ) -> AsyncGenerator[StreamedRound | Ended, None]:
            yield one

    with pytest.raises(EndpointError, match="older EdgeSpec"):
        finished(drawn(Older(), [], AnswerOptions(), rng=random.Random(1)))


def test_the_first_round_of_an_answer_is_not_timed() -> None:
    lane = Lane("plain")
    lane.begin()
    for i, seconds in enumerate((5.0, 0.5, 0.5, 1.0)):
        lane.note(
            StreamedRound(Round((1, 2), "ab", 0, 0, ("target",) * 2), 0.0, seconds=seconds), first=i == 0
        )
    assert lane.seconds == 2.0 and lane.counts.n_tokens == 8
    assert [lane.progress_at(s) for s in (0.4, 0.5, 1.9, 9.0)] == [(0.0, 0), (0.5, 2), (1.0, 4), (2.0, 6)]
    assert lane.tok_per_s() == pytest.approx(3.0)


def test_means_of_races_divide_to_the_mean_speedup() -> None:
    mean = together([MeasuredSpeedUp(20, 10, 0.1), MeasuredSpeedUp(8, 16, 0.1)])
    assert mean and mean.speedup == pytest.approx(1.0)
    assert together([]) is None


# --- where guesses hardly pay


def test_where_guesses_hardly_pay_it_is_stated_in_figures_and_what_would_change_it() -> None:
    told = odds_against(BreakEven(two=1.7, guess=0.2, least=0.898, least_free=0.703))
    assert told.startswith(
        "Two tokens cost 1.7 times one here, and a guess 20% of one: guesses have to be right 9 times in 10 "
        "to pay. With a draft that costs next to nothing, 7 times in 10."
    )
    assert "no guess can pay" in odds_against(BreakEven(8.0, 0.0, 1.0, 1.0))
    assert "nearly always" in odds_against(BreakEven(2.0, 0.0, 0.97, 0.97))
    assert odds_against(BreakEven(1.05, 0.05, 0.1, 0.05)) == odds_against(None) == ""


# --- commands


def test_a_line_is_a_command_only_where_it_begins_like_one() -> None:
    for line, name, rest in (("/set top_k 5", "/set", "top_k 5"), ("/exp a.md", "/export", "a.md")):
        found = parsed(line)
        assert found and (found[0].name, found[1]) == (name, rest)
    assert parsed("what is /set?") is None and parsed("/usr/bin/env python fails") is None
    with pytest.raises(SettingError, match="/s could be"):
        parsed("/s")
    with pytest.raises(SettingError, match="/nothing is not a command"):
        parsed("/nothing")


def test_a_file_with_fences_is_fenced_with_more(tmp_path: Path) -> None:
    file = tmp_path / "a.md"
    file.write_text("````\ncode\n````\n")
    assert read_file(str(file)) == "a.md:\n`````md\n````\ncode\n````\n`````\n"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("", "needs the name"),
        ("/no/such", "cannot be read"),
        (".", "cannot be read: it is a folder"),
        ("/dev/zero", "cannot be read: it is not a regular file"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused(name: str, expected: str) -> None:
    with pytest.raises(SettingError, match=expected):
        read_file(name)


def test_bytes_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "x.bin").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SettingError, match="is not a text file"):
        read_file(str(tmp_path / "x.bin"))


# --- quiet moments


@pytest.mark.slow
def test_cycles_are_collected_only_where_no_key_came_for_a_while() -> None:
    now = [0.0]
    moments = QuietMoments(clock=lambda: now[0])
    try:
        moments.key()
        gc.collect()  # tests before this one have left more than anybody types away
        assert moments.is_typing and not moments.look()
        now[0] = 5.0
        assert not moments.is_typing and moments.look()
        now[0] = 6.0
        assert not moments.look(), "it was done lately"
        moments.key()
        now[0] = 99.0
        assert moments.look(), "everything, twice a minute"
    finally:
        moments.end()


def ran(race: Race, plain: Sequence[float], speculative: Sequence[float]) -> Race:
    """Has both lanes run, with one token a round of so many seconds."""
    for runner, gaps in (("plain", plain), ("speculative", speculative)):
        for gap in gaps:
            race.lanes[runner].time(gap, 1)
    race.lanes["speculative"].counts.count(Round((1,), "x", 1, 1, ("model",)))
    return race


def new_race() -> Race:
    return Race(FakeEndpoint(), [], AnswerOptions())


def test_a_race_calls_a_difference_only_where_there_is_one() -> None:
    """False alarms: 1.7 % if t has 11 degrees of freedom; up to 16 of 400 pass."""
    rng = random.Random(5)

    def race(plain_s: float, speculative_s: float) -> str:
        plain, speculative = (
            [seconds * rng.gammavariate(9, 1 / 9) for _ in range(200)] for seconds in (plain_s, speculative_s)
        )
        return verdict(ran(new_race(), plain, speculative).measured(), "in this one race")

    alarms = sum("no difference" not in race(0.01, 0.01) for _ in range(400))
    assert alarms <= 16
    assert all(
        "faster with speculation, measured in this one race (1." in race(0.014, 0.01) for _ in range(20)
    )
    assert all("x the speed: slower with speculation" in race(0.01, 0.014) for _ in range(20))


def test_a_slow_phase_hits_both_lanes_and_leaves_the_result_as_sure_as_before() -> None:
    """Both run in turn: in each part of the time, the machine was equally slow for both."""
    rng = random.Random(1)

    def times(of: float) -> list[float]:
        gaps: list[float] = []
        while (at := sum(gaps)) < 3.0:
            gaps.append(of * (1 if at < 1.0 else 3) * rng.gammavariate(400, 1 / 400))
        return gaps

    race = ran(new_race(), times(0.012), times(0.01))
    measured = race.measured()
    assert measured and measured.speedup == pytest.approx(1.2, rel=0.05) and 0 < measured.error < 0.03


def test_several_races_are_reported_together_and_differ_as_much_as_they_do() -> None:
    races = [MeasuredSpeedUp(speed, 10, 0.01) for speed in (10, 13, 9)]
    shown = verdict(together(races), "in 3 races")
    assert re.match(r"1.05x: no difference with speculation .* in 3 races \(0.7", shown)
    assert verdict(together([]), "in no race").startswith("Too few tokens")
    assert ran(new_race(), [0.1] * 6, [0.1] * 6).measured() is None
    assert ran(new_race(), [0.1, 0.2] * 12, [0.2, 0.3] * 12).measured()


def test_drawing_takes_no_more_than_its_share_of_a_core_and_is_never_late() -> None:
    used = [0.0]
    pace = DrawingPace(clock=lambda: used[0])
    assert pace.pause() == SOONEST_S, "nothing is known yet"
    used[0] += SHARE * SOONEST_S / 2
    assert pace.pause() == SOONEST_S, "a fast machine"
    used[0] += SHARE * 0.25
    assert pace.pause() == pytest.approx(0.25), "a slow one"
    used[0] += 5.0
    assert pace.pause() == LATEST_S
    assert pace.pause() == SOONEST_S, "counted since it was asked last"


def test_two_tokens_have_no_speed() -> None:
    """They come at once: "13797.3 tok/s"."""
    figures = LiveFigures()
    for n, speed in ((1, None), (1, None), (1, 2 / 0.4)):
        figures.note(replace(round_of(*[Span("a ", "target")] * n), at=figures.n_tokens * 0.2))
        assert figures.tok_per_s() == speed


def test_a_bar_shows_how_full_the_context_is() -> None:
    """Only a number did: a chat whose beginning is left out next looked as one that has just begun."""
    assert [bar(share, 4) for share in (0.0, 0.01, 0.5, 0.99, 1.0, 1.5)] == [
        "░░░░", "█░░░", "██░░", "███░", "████", "████",
    ]  # fmt: skip
    state = PanelState(replace(FAKE, n_ctx=4096), used=2048)
    assert f"context {'█' * 4}{'░' * 4} 50%" in str(one_line(None, state))
    assert ("", "█" * 10 + "░" * 10) in rows_of(None, state)


def test_ends_that_the_app_has_no_word_for_are_ends() -> None:
    assert [known_finish(word) for word in ("length", "cancelled", "content_filter")] == [
        "length", "cancelled", "stop",
    ]  # fmt: skip
