"""A chat without a screen, on a fake endpoint: what goes to stdout, what to stderr, what is saved."""

from __future__ import annotations

import asyncio
import io
import sys
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from fake_endpoint import FAKE, FakeEndpoint, rounds_of

from edgespec.client.answer import AnswerOptions, Ended
from edgespec.errors import EdgeSpecError, EndpointError, EngineDiedError
from edgespec.local.attach import OnProgress
from edgespec_tui.endpoint.endpoint import Message, StreamEvent
from edgespec_tui.endpoint.media import MEDIA, texts_of
from edgespec_tui.plain.command import _greeting
from edgespec_tui.plain.lines import PlainLines, listing
from edgespec_tui.plain.plain import PlainChat, WholeSentences, one_answer
from edgespec_tui.sessions.conversation import Conversation
from edgespec_tui.sessions.listed import Listed
from edgespec_tui.sessions.sessions import Sessions
from edgespec_tui.settings.slash_commands import CHANGES


@dataclass
class Talked:
    """What a chat wrote, and what it left."""

    code: int
    out: str
    err: str
    chat: PlainChat
    endpoint: FakeEndpoint

    @property
    def asked(self) -> list[list[str]]:
        """The texts of each prompt."""
        return [[message.text for message in messages] for messages, _ in self.endpoint.asked]


class Place:
    """A data folder, and chats in it."""

    def __init__(self, folder: Path, runner: asyncio.Runner, patch: pytest.MonkeyPatch) -> None:
        self.folder, self._runner, self._patch = folder, runner, patch
        self.notices: list[str] = []

    def sessions(self) -> Sessions:
        return Sessions(self.folder, on_notice=self.notices.append)

    def talk(self, *lines: str, endpoint: FakeEndpoint | None = None, quiet: bool = True) -> Talked:
        """Types lines; returns what came of it."""
        endpoint = endpoint or FakeEndpoint(["one.", "two.", "three."])
        self._patch.setattr(sys, "stdin", io.StringIO("".join(line + "\n" for line in lines)))
        out, err = io.StringIO(), io.StringIO()
        sessions = self.sessions()
        chat = PlainChat(endpoint, Conversation(), sessions, self._runner, quiet=quiet, out=out, err=err)
        code = PlainLines(chat, Conversation, talking=False).talk()
        sessions.close()
        return Talked(code, out.getvalue(), err.getvalue(), chat, endpoint)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.chdir(tmp_path)
    with asyncio.Runner() as runner:
        yield Place(tmp_path / "data", runner, monkeypatch)


def test_answers_go_to_stdout_figures_to_stderr_and_all_is_kept(place: Place) -> None:
    talked = place.talk("hello", "", "and then?", quiet=False)
    assert (talked.code, talked.out) == (0, "one.\ntwo.\n")
    assert talked.err.count(" tokens of prompt)") == 2
    assert talked.asked == [["hello"], ["hello", "one.", "and then?"]]
    sessions = place.sessions()
    kept = sessions.newest().result(10)
    assert kept and [turn.text for turn in kept.path()] == ["hello", "one.", "and then?", "two."]
    assert kept.path()[1].model == FAKE.model and kept.path()[1].settings["speculation"] is True
    sessions.close()


def test_quiet_says_nothing_but_the_answers(place: Place) -> None:
    talked = place.talk("hello")
    assert (talked.out, talked.err) == ("one.\n", "")


def test_a_chat_is_called_by_what_was_typed_of_its_first_question(place: Place, tmp_path: Path) -> None:
    """It had no title, and got that of the first question which was asked when it was opened in the app."""
    (tmp_path / "notes.md").write_text("notes of a file")
    talked = place.talk("/read notes.md", "what of  it?", "and then?")
    assert talked.chat.conversation.title == "what of it?"


def test_a_question_is_kept_before_its_answer_begins(place: Place) -> None:
    """It was saved with the first half second of its answer."""
    kept: list[str] = []

    class Looking(FakeEndpoint):
        async def count(self, messages: Sequence[Message], *, on_wait: OnProgress = print) -> int | None:
            until = time.monotonic() + 10
            while not kept and time.monotonic() < until:
                await asyncio.sleep(0.05)
                if (talk := sessions.newest().result(10)) is not None:
                    kept.extend(turn.text for turn in talk.path())
            return 1

    sessions = place.sessions()
    place.talk("early", endpoint=Looking())
    sessions.close()
    assert kept == ["early"]


def test_an_answer_that_was_cut_says_so_to_programs_too(place: Place) -> None:
    """With -p it ended in the middle without a word."""
    rounds = rounds_of("a long answer")
    rounds[-1] = replace(rounds[-1], round=rounds[-1].round._replace(finish="length"))

    class Cut(FakeEndpoint):
        async def answer(
            self, messages: Sequence[Message], options: AnswerOptions
        ) -> AsyncGenerator[StreamEvent, None]:
            yield rounds[0]
            yield Ended("length", n_tokens=3)

    talked = place.talk("go on", endpoint=Cut())
    assert talked.out == "a long answer\n" and talked.err == "(stopped at the length limit)\n"


def test_bytes_that_are_no_text_are_stated(place: Place) -> None:
    talked = place.talk("caf\udce9 \u202eb")
    assert "1 byte is not UTF-8" in talked.err and "U+202E" in talked.err
    assert talked.asked == [["caf\ufffd \u202eb"]]


def test_the_greeting_breaks_no_word_in_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    lines = _greeting(replace(FAKE, embedded=True)).split("\n")
    assert max(map(len, lines)) < 40 and len(lines) > 6


def test_an_error_is_reported_and_the_conversation_goes_on_without_that_question(place: Place) -> None:
    talked = place.talk(
        "first", "bad", "third", endpoint=FakeEndpoint(["one.", EndpointError("no."), "three."])
    )
    assert talked.out == "one.\nthree.\n"
    assert talked.err == "edgespec: no.\n"
    assert talked.asked[-1] == ["first", "one.", "third"]


def test_an_engine_that_died_is_started_again_with_the_next_question(place: Place) -> None:
    talked = place.talk("first", "second", endpoint=FakeEndpoint([EngineDiedError("it died"), "two."]))
    assert (talked.out, talked.endpoint.restarts) == ("two.\n", 1)


def test_a_question_that_is_too_long_is_refused_with_both_counts(place: Place) -> None:
    talked = place.talk("hello", "word " * 5000, "again")
    assert talked.err.startswith(
        "edgespec: the prompt has 5,002 tokens and exceeds the available context size of 4,096"
    )
    assert talked.out == "one.\ntwo.\n"


def test_old_messages_are_left_out_and_that_is_reported_once(place: Place) -> None:
    talked = place.talk(*("word " * 900 for _ in range(6)))
    assert talked.err.count("no longer fit and are left out") == talked.err.count("\n") <= 2
    assert talked.err and len(talked.asked[-1]) < 11


# ---- commands ---------------------------------------------------------------------------------------------


def test_clear_begins_a_chat_of_its_own(place: Place) -> None:
    talked = place.talk("hello", "/clear", "anew")
    assert talked.asked[-1] == ["anew"]
    sessions = place.sessions()
    assert [one.talk.title for one in sessions.searched().result(10)] == ["anew", "hello"]
    sessions.close()


def test_again_makes_a_second_version_and_back_takes_a_question_back(place: Place) -> None:
    talked = place.talk("hello", "/again", "wrong", "/back", "right")
    assert talked.asked == [["hello"], ["hello"], ["hello", "two.", "wrong"], ["hello", "two.", "right"]]
    assert "Taken back" in talked.err
    assert len(talked.chat.conversation.turns) == 7, "nothing is lost"


def test_settings_of_this_chat_are_sent(place: Place) -> None:
    talked = place.talk(
        "/system Be brief.", "/set temp 0", "/set seed=5", "/speculation off", "hello", "/set"
    )
    ((messages, options),) = talked.endpoint.asked
    assert (messages[0].role, messages[0].text) == ("system", "Be brief.")
    assert (options.sampling, options.seed, options.speculation) == ({"temperature": 0.0}, 5, False)
    assert talked.err.splitlines()[-1] == "Set here: temperature 0, seed 5."


def test_a_file_is_put_before_the_next_question(place: Place, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\n")
    talked = place.talk("/read a.py", "What is x?", "/read none.py")
    assert talked.asked == [["a.py:\n```py\nx = 1\n```\n\nWhat is x?"]]
    assert "none.py cannot be read" in talked.err


def test_a_file_that_is_refused_is_not_put_before_the_next_question_too(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was kept, so that the next question failed as well."""
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text("x\n")
    refused = FakeEndpoint([EndpointError("It is too long.", status=400), "fine."])
    talked = place.talk("/read a.txt", "sum up", "hello", endpoint=refused)
    assert talked.asked[-1] == ["hello"] and "is dropped" in talked.err and talked.out == "fine.\n"
    for error in (EngineDiedError("It was killed."), EndpointError("Again.", status=503, retry_s=0.5)):
        talked = place.talk("/read a.txt", "sum up", "sum up", endpoint=FakeEndpoint([error, "fine."]))
        assert talked.asked[-1] == ["a.txt:\n```txt\nx\n```\n\nsum up"], "the same may be asked again"


def test_an_answer_is_continued_and_a_saved_prompt_is_taken(place: Place) -> None:
    endpoint = FakeEndpoint(["It begins", " and ends."])
    talked = place.talk(
        "/continue", "/system Be brief.", "/prompts save brief", "/system none", "/prompts brief", "go",
        "/continue", "/prompts nosuch", endpoint=endpoint,
    )  # fmt: skip
    assert "no answer to continue" in talked.err and "there are brief" in talked.err
    assert talked.asked == [["Be brief.", "go"], ["Be brief.", "go", "It begins"]]
    assert talked.chat.conversation.path()[-1].text == "It begins and ends."


def test_what_comes_through_a_pipe_reads_no_files(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("secret").write_text("x\n")
    assert place.talk("see @secret").asked == [["see @secret"]]


def test_sessions_are_listed_opened_renamed_deleted_and_brought_back(place: Place) -> None:
    place.talk("about locks")
    talked = place.talk(
        "/sessions LOCK", "/open about locks", "more", "/rename Locks", "/delete locks",
        "/clear", "/delete Locks", "/sessions", "/undelete", "/sessions", "/open nothing",
    )  # fmt: skip
    listed, opened, renamed, refused, cleared, deleted, none, back, again, unknown = talked.err.splitlines()
    assert listed.endswith("now  about locks | about locks")
    assert opened == "Continuing 'about locks', 2 messages. The last one ended: one."
    assert talked.asked == [["about locks", "one.", "more"]]
    assert "'Locks'" in renamed and "this chat is open" in refused
    assert deleted.startswith("Deleted 'Locks'") and none == "No chats found."
    assert again.endswith("Locks") and unknown.startswith("edgespec: there is no chat 'nothing'")
    assert cleared == "New chat." and back == "Restored 'Locks'."


def test_a_chat_is_written_to_a_file(place: Place, tmp_path: Path) -> None:
    talked = place.talk("hello", "/export", "/export chat.json", "/export chat.json")
    assert (tmp_path / "hello.md").read_text().startswith("# hello")
    assert (tmp_path / "chat.json").exists()
    assert "chat.json already exists" in talked.err


def test_help_has_every_command_that_changes_a_chat_and_more(place: Place) -> None:
    shown = place.talk("/help").err
    assert all(name in shown for name in (*CHANGES, "/export [FILE]", "/continue", "/open NAME"))


@pytest.mark.parametrize("line", ["/nonsense now", "/", "/helpme"])
def test_what_is_no_command_is_reported(place: Place, line: str) -> None:
    talked = place.talk(line)
    assert talked.asked == [] and talked.err.startswith(f"{line.split()[0]} is not a command. ")


def test_a_path_is_a_question(place: Place) -> None:
    assert place.talk("/usr/bin/env: what is it?").asked == [["/usr/bin/env: what is it?"]]


def test_what_a_command_lacks_is_reported(place: Place) -> None:
    talked = place.talk(
        "/again", "/open", "/rename", "/delete", "/undelete", "/speculation maybe", "/read", "/set x"
    )
    assert talked.asked == [] and talked.err.count("edgespec: ") == talked.err.count("\n") == 8


# ---- one answer -------------------------------------------------------------------------------------------


def test_one_prompt_prints_just_its_answer(place: Place, tmp_path: Path) -> None:
    out, err = io.StringIO(), io.StringIO()
    sessions = place.sessions()
    endpoint = FakeEndpoint(["<think>hm</think>\n\nThe answer"])
    chat = PlainChat(endpoint, Conversation(), sessions, place._runner, quiet=True, out=out, err=err)
    assert one_answer(chat, "q") == 0
    assert (out.getvalue(), err.getvalue()) == ("The answer\n", "")
    assert chat.conversation.path()[-1].reasoning == "hm"
    with pytest.raises(EdgeSpecError, match="the prompt is empty"):
        one_answer(chat, " \n")
    sessions.close()


def test_a_stream_that_takes_no_more_ends_the_answer_at_once(place: Place) -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    sessions = place.sessions()
    endpoint = FakeEndpoint(["word " * 10_000], tok_per_s=2000)
    chat = PlainChat(endpoint, Conversation(), sessions, place._runner, quiet=True, out=Closed())
    with pytest.raises(BrokenPipeError):
        one_answer(chat, "q")
    assert endpoint.cancelled == 1, "the engine does not go on for nobody"
    sessions.close()


# ---- for ears ---------------------------------------------------------------------------------------------


def test_what_is_spoken_comes_in_whole_sentences_and_lines() -> None:
    release = WholeSentences()
    said = [release.feed(piece) for piece in ("Hel", "lo there. How", " are you? ", "x = 3.", "5\n", "end")]
    assert said == ["", "Hello there.", " How are you?", "", " x = 3.5\n", ""]
    assert release.end() == "end"


def test_a_sentence_without_end_is_not_waited_for() -> None:
    release = WholeSentences()
    said = release.feed("word " * 30)
    assert said.endswith("word ") and len(said) > 100
    assert len(release.feed("x" * 500)) == 500


@pytest.mark.parametrize(
    "seconds, expected",
    [(0, "now"), (59, "now"), (61, "1 min ago"), (90_000, "1 d ago"), (4e7, "1 y ago"), (1.7e9, "long ago")],
)
def test_an_age_is_reported_in_a_word(seconds: float, expected: str) -> None:
    assert Listed(1, Conversation(), 0.0).age(seconds) == expected


def test_a_list_of_chats_sends_no_controls_to_the_terminal() -> None:
    one = Listed(1, Conversation(title="a \x1b[31mred\x07 title"), 0.0, excerpt="it wrote \x1b]0;x\x07so\x08")
    assert listing([one], now=0.0).endswith("a red title | it wrote so")


def test_a_picture_goes_with_its_question_and_stays_in_the_chat(place: Place, tmp_path: Path) -> None:
    (tmp_path / "cat.png").write_bytes(b"picture")
    talked = place.talk("/read cat.png", "what is it?", "and its colour?")
    sent = [[message.media for message in messages] for messages, _ in talked.endpoint.asked]
    assert sent == [[(str(tmp_path / "cat.png"),)], [(str(tmp_path / "cat.png"),), (), ()]]
    assert talked.asked[0] == ["what is it?"] and "cat.png will go with the next question" in talked.err
    sessions = place.sessions()
    kept = sessions.newest().result(10)
    assert kept and texts_of(kept.path()[0].settings, MEDIA) == (str(tmp_path / "cat.png"),)
    sessions.close()
    (tmp_path / "cat.png").unlink()
    assert "cat.png cannot be read" in place.talk("/read cat.png").err
