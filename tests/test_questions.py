"""Questions with pastes and files in them, and the suggestions while one is written."""

from __future__ import annotations

import base64
import re
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from urllib.parse import quote

import pytest
from fake_endpoint import FakeEndpoint
from PIL import Image
from test_tui_chat import on_a_loop
from textual import events
from textual.color import Color
from textual.style import Style
from tiny_projector import png
from tui_driver import Driven, driven

from edgespec.client.answer import AnswerOptions
from edgespec.errors import EndpointError, SettingError
from edgespec.local.attach import OnProgress
from edgespec_tui.app import ChatApp
from edgespec_tui.endpoint.endpoint import Message, StreamEvent
from edgespec_tui.endpoint.media import content_of, gone
from edgespec_tui.sessions.conversation import Conversation
from edgespec_tui.settings import system_prompts
from edgespec_tui.settings.settings import Settings
from edgespec_tui.widgets.attached_files import LARGEST_FILE, mention_of, with_files
from edgespec_tui.widgets.completions import choices
from edgespec_tui.widgets.question import Insert, QuestionText, question_of
from edgespec_tui.widgets.thumbnail import half_blocks, thumbnail_of
from edgespec_tui.widgets.turn_view import QuestionView

LOG = "\n".join(f"line {i}" for i in range(2000))


# --- pastes


def test_marks_stand_for_what_was_not_typed_and_are_kept_with_the_turn() -> None:
    question = QuestionText("see LOGS here", (Insert(4, 8, "[pasted]"),))
    assert question.folded() == "see [pasted] here"
    assert question_of(question.text, question.settings()) == question
    assert QuestionText("plain").settings() == {}


@pytest.mark.parametrize(
    "told", ["", "no JSON", "[1]", '[["a", 2, "m", false]]', "[[5, 2, 3, 4]]", '[[0, 99, "m", false]]', 7]
)
def test_a_setting_that_somebody_else_wrote_is_no_insert(told: object) -> None:
    assert question_of("text", {"inserts": told}) == QuestionText("text")


@on_a_loop
async def test_pastes_are_not_kept_for_ever_and_those_that_are_written_are() -> None:
    async with driven(ChatApp(FakeEndpoint())) as it:
        prompt = it.chat.prompt
        first = prompt._mark_of("first" + LOG)
        prompt.insert(first)
        for i in range(120):
            prompt._mark_of(f"{i}\n{LOG}")
            assert len(prompt._pasted) == min(i + 2, 51)
        assert first in prompt._pasted and prompt.question().text == "first" + LOG


@on_a_loop
async def test_a_paste_is_folded_in_the_transcript_and_when_its_question_is_edited() -> None:
    """Editing folded the words typed after a paste into its mark; 2,000 pasted lines stood unfolded."""
    endpoint = FakeEndpoint()
    async with driven(ChatApp(endpoint)) as it:
        await it.pilot.press(*"why ")
        it.app.post_message(events.Paste(LOG))
        await it.pilot.pause()
        await it.pilot.press(*" and how?", "enter")
        await it.until(lambda: not it.chat.answering and endpoint.asked)
        assert endpoint.asked[0][0][0].text == f"why {LOG} and how?"
        assert "why [pasted text 1: 2,000 lines] and how?" in it.text() and "line 1999" not in it.text()
        await it.pilot.press("ctrl+b")
        assert it.chat.prompt.text == "why [pasted text 1: 2,000 lines] and how?"
        await it.pilot.press("!", "enter")
        await it.until(lambda: len(endpoint.asked) == 2 and not it.chat.answering)
        assert endpoint.asked[1][0][0].text == f"why {LOG} and how?!"
        await it.pilot.press("up")
        assert it.chat.prompt.text == "why [pasted text 1: 2,000 lines] and how?!", "in the history, too"
        view = it.chat.query_one(QuestionView)
        view.focus()
        await it.pilot.press("o")
        await it.until(lambda: view.region.height > 2000)
        await it.pilot.press("o")
        await it.until(lambda: view.region.height < 6)


@pytest.mark.slow
@on_a_loop
async def test_a_very_long_question_of_a_kept_chat_is_folded_too() -> None:
    talk = Conversation()
    talk.add("user", LOG)
    async with driven(ChatApp(FakeEndpoint(), first=talk)) as it:
        assert "1,976 more lines" in it.text() and it.chat.query_one(QuestionView).region.height < 30
        assert it.chat.query_one(QuestionView).turn.text == LOG


@pytest.mark.slow
@on_a_loop
async def test_a_kept_chat_shows_pictures_and_tells_which_are_gone() -> None:
    talk = Conversation()
    kept = f"2 {base64.b64encode(bytes(12)).decode()}"
    question = QuestionText("see both", (), (__file__ + ".png", "/no/cat.png"), (kept,))
    talk.change(replace(talk.add("user", question.text), settings=question.settings()))
    async with driven(ChatApp(FakeEndpoint(), first=talk)) as it:
        assert "▀▀" in it.text() and "cat.png is no longer there" in it.text()


# --- files


def test_files_that_are_named_stand_behind_the_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.py").write_text("a = 1\n")
    (tmp_path / "my notes.md").write_text("- one\n")
    made, notes = with_files(QuestionText('explain @a.py, and @"my notes.md" @a.py'))
    assert made.text == (
        'explain @a.py, and @"my notes.md" @a.py\n\na.py:\n```py\na = 1\n```\n\n\n'
        "my notes.md:\n```md\n- one\n```\n"
    )
    assert made.folded().endswith("[a.py: 1 line]\n\n[my notes.md: 1 line]")
    assert made.typed() == QuestionText('explain @a.py, and @"my notes.md" @a.py')
    assert notes == []


def test_a_picture_stays_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is sent beside the text, which names it; a chat keeps its name alone."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my cat.png").write_bytes(b"picture")
    made = with_files(QuestionText('who is @"my cat.png"?'))[0]
    assert made.text == 'who is @"my cat.png"?\n\n(my cat.png)'
    assert made.folded().endswith("[my cat.png: picture, 7 bytes]")
    assert made.media == (str(tmp_path / "my cat.png"),)
    assert question_of(made.text, made.settings()) == made
    assert made.typed() == QuestionText('who is @"my cat.png"?')
    parts = content_of(made.text, made.media)
    assert parts[0] == {"type": "image_url", "image_url": {"url": "data:image/png;base64,cGljdHVyZQ=="}}
    (tmp_path / "my cat.png").unlink()
    assert gone(made.media) == ["my cat.png"] and content_of(made.text, made.media) == made.text
    (tmp_path / "empty.jpg").touch()
    with pytest.raises(SettingError, match="empty.jpg is empty"):
        with_files(QuestionText("see @empty.jpg"))


def test_a_small_copy_of_a_picture_is_kept(tmp_path: Path) -> None:
    """It is shown in half blocks, and when the file is gone; what is no picture shows nothing."""
    (tmp_path / "a.png").write_bytes(png(160, 80, (220, 30, 30)))
    made = with_files(QuestionText(f"see @{tmp_path}/a.png"))[0]
    assert question_of(made.text, made.settings()) == made
    lines = half_blocks(thumbnail_of(tmp_path / "a.png"))
    assert len(lines) == 8 and {line.plain for line in lines} == {"▀" * 32}
    middle = lines[4].spans[16].style
    assert isinstance(middle, Style) and middle.foreground and middle.foreground.rgb == (220, 30, 30)
    (tmp_path / "a.png").write_bytes(png()[:90])
    assert thumbnail_of(tmp_path / "a.png") == ""
    for kept in ("", "8", "x AAAA", "8 AAAA", "99 AAAA", "1 ####"):
        assert half_blocks(kept) == []


def test_a_picture_dropped_into_the_terminal_is_named(tmp_path: Path) -> None:
    """Terminals paste a path, quoted, escaped or as an address; several with blanks or lines between.

    With two of them, brackets or `%20`, the text stayed as it was pasted.
    """
    path = tmp_path / "my cat.png"
    path.touch()
    (tmp_path / "notes.txt").touch()
    escaped = str(path).replace(" ", "\\ ")
    for pasted in (str(path), f"'{path}'", f"file://{path}", f"{escaped} "):
        assert mention_of(pasted) == f'@"{path}" '
    other = tmp_path / "my pic (1) 100%.png"
    other.touch()
    escaped_other = re.sub(r"([ ()%])", r"\\\1", str(other))
    url = f"file://{quote(str(other))}"
    for pasted in (str(other), f"'{other}'", escaped_other, url, url.replace("//", "//localhost", 1)):
        assert mention_of(pasted) == f'@"{other}" ', pasted
    two = f'@"{path}" @"{other}" '
    for first, second in ((f"'{path}'", f"'{other}'"), (escaped, escaped_other), (f"file://{path}", url)):
        assert mention_of(f"{first}\n{second}\n") == two
    assert mention_of(f"{escaped} {escaped_other}") == mention_of(f"'{path}' {url}") == two
    assert mention_of(f"{escaped} notes") == mention_of(" ".join([escaped] * 40)) == ""
    for pasted in ("", "'", "my cat.png", str(tmp_path / "notes.txt"), f"{path}\nand more", f"{path}x"):
        assert mention_of(pasted) == ""


@on_a_loop
async def test_a_file_of_a_question_is_shown_and_a_click_removes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether an @ had found its file was seen after it was sent."""
    monkeypatch.chdir(tmp_path)
    for name in ("my cat.png", "a [b].txt"):
        (tmp_path / name).touch()
    async with driven(ChatApp(FakeEndpoint()), size=(80, 24)) as it:
        it.chat.prompt.fill('is @"my cat.png" in @"a [b].txt"? @none.png')
        await it.until(lambda: "my cat.png 0 bytes ×    a [b].txt 0 bytes ×" in it.text(), "both files")
        await it.click("my cat.png 0 bytes ×")
        await it.until(lambda: it.chat.prompt.text == 'is in @"a [b].txt"? @none.png')
        assert it.app.focused is it.chat.prompt
        await it.click("a [b].txt 0 bytes ×")
        await it.until(lambda: it.chat.prompt.text == "is in ? @none.png" and "×" not in it.text())
        await it.pilot.press("ctrl+z")
        await it.until(lambda: '@"a [b].txt"' in it.chat.prompt.text and "a [b].txt 0 bytes ×" in it.text())


@on_a_loop
async def test_a_picture_that_is_read_leaves_a_blank_for_the_question(tmp_path: Path) -> None:
    """What was typed next became a part of its name."""
    (picture := tmp_path / "a.png").write_bytes(png())
    async with driven(ChatApp(FakeEndpoint())) as it:
        await it.say(f"/read {picture}")
        await it.pilot.press(*"what?")
        assert it.chat.prompt.text == f'@"{picture}" what?'


@pytest.mark.parametrize("theme", ["edgespec-dark", "edgespec-light"])
@on_a_loop
async def test_what_the_empty_input_says_can_be_read(theme: str) -> None:
    """In the light theme its contrast was 2.9."""
    async with driven(ChatApp(FakeEndpoint(), settings=Settings(theme=theme))) as it:
        style = it.chat.prompt.get_visual_style("text-area--placeholder")
        assert style.foreground and style.background
        shown = style.background.blend(style.foreground, style.foreground.a)
        light, dark = sorted((_luminance(shown), _luminance(style.background)), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5


def _luminance(colour: Color) -> float:
    """Returns the relative luminance of a colour, as WCAG has it."""
    parts = (c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in colour.normalized)
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), parts, strict=True))


def test_what_names_no_file_stays_as_it_was_written() -> None:
    question = QuestionText("what does @property do, and me@example.org? @app.route @no/such.py @.")
    made, notes = with_files(question)
    assert made == question and notes == ["There is no file no/such.py: sent as written."]


def test_a_file_that_was_pasted_into_the_question_names_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.py").write_text("a = 1\n")
    question = QuestionText("see @a.py", (Insert(4, 9, "[pasted]"),))
    assert with_files(question)[0] == question


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"\x89PNG\r\n\x1a\n\x00", "is not a text file"),
        (b"a\x00b", "is not a text file"),
        (b"x" * (LARGEST_FILE + 1), "for files in one question"),
    ],
)
def test_what_is_no_text_or_too_large_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, expected: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "f").write_bytes(content)
    with pytest.raises(SettingError, match=expected):
        with_files(QuestionText("see @f"))


def test_all_files_of_a_question_share_one_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in "ab":
        (tmp_path / name).write_bytes(b"x" * (LARGEST_FILE // 2 + 1))
    with pytest.raises(SettingError, match="are left for files in one question"):
        with_files(QuestionText("see @a and @b"))


@on_a_loop
async def test_a_file_is_completed_sent_in_full_and_shown_as_a_mark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.md").write_text("hidden words\n" * 5)
    endpoint = FakeEndpoint()
    async with driven(ChatApp(endpoint), size=(130, 30)) as it:
        await it.pilot.press(*"sum up @no")
        assert "notes.md" in it.text()
        await it.pilot.press("tab", *"now", "enter")
        await it.until(lambda: endpoint.asked and not it.chat.answering)
        sent = endpoint.asked[0][0][0].text
        assert sent.startswith("sum up @notes.md now\n\nnotes.md:\n```md\n")
        assert "[notes.md: 5 lines]" in it.text() and "hidden words" not in it.text()
        (tmp_path / "notes.md").write_bytes(b"\xff\xfe")
        await it.pilot.press("ctrl+b")
        assert it.chat.prompt.text.endswith("notes.md now"), "it is read again"
        await it.pilot.press("enter")
        await it.notified("is not a text file")
        assert it.chat.prompt.text.endswith("notes.md now") and len(endpoint.asked) == 1


@pytest.mark.slow
@on_a_loop
async def test_a_folded_question_opens_and_closes_with_a_click() -> None:
    async with driven(ChatApp(FakeEndpoint()), size=(100, 40)) as it:
        await it.ask("\n".join(f"line {i}" for i in range(25)))
        assert it.app.focused is it.chat.prompt and "line 9" not in it.text()
        await it.click("o show all of it")
        await it.until(lambda: "line 9" in it.text())
        await it.click("o fold it again")
        await it.until(lambda: "line 9" not in it.text() and "o show all of it" in it.text())


# --- what may be meant


def names_of(before: str, *, first_line: bool = True) -> list[str]:
    found = choices(before, first_line=first_line)
    return [one.text for one in found.items] if found else []


def test_choices_are_those_that_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("pirate", "plain"):
        system_prompts.save(name, "text")
    (tmp_path / "src").mkdir()
    for name in ("a.py", "b c.txt", ".hidden", "src/deep.py"):
        (tmp_path / name).write_text("")
    assert names_of("/re") == ["/read ", "/rename "] and names_of("/qui") == ["/quit"]
    assert names_of("/quit") == [] and names_of("/usr/bin") == [] and names_of("/re", first_line=False) == []
    assert names_of("/prompts p") == ["pirate", "plain"] and names_of("/prompts delete pi") == ["pirate"]
    assert names_of("see @") == ["a.py ", '"b c.txt" ', "src/"] and names_of("see @.h") == [".hidden "]
    assert names_of("see @src/") == ["src/deep.py "] and names_of('@"b c') == ['"b c.txt" ']
    assert names_of("/read s") == ["src/"] and names_of("me@a") == [] and names_of("@/no/such/") == []


@on_a_loop
async def test_the_list_behind_a_slash_is_gone_through_and_taken_from() -> None:
    """ "/ lists commands" was said, and a ghost of one was all there was."""
    async with driven(ChatApp(FakeEndpoint())) as it:
        await it.pilot.press("/")
        await it.until(lambda: "› /help" in it.text() and "/model" in it.text())
        await it.pilot.press("down", "down")
        await it.until(lambda: "› /system" in it.text())
        await it.pilot.press("enter")
        assert it.chat.prompt.text == "/system "
        await it.until(lambda: "› /system" not in it.text())
        await it.pilot.press(*"Be brief.", "enter")
        await it.until(lambda: it.chat.conversation.system == "Be brief.")
        await it.pilot.press("/", *"ti", "enter")
        await it.until(lambda: it.chat.transcript.tinted)
        await it.pilot.press("/", "escape")
        await it.until(lambda: "› /help" not in it.text())
        assert it.chat.prompt.text == "/"
        await it.pilot.press("backspace", "/")
        await it.click("/model")
        assert it.chat.prompt.text == "/model"


# --- named system prompts


@pytest.mark.slow
@on_a_loop
async def test_system_prompts_are_saved_listed_and_taken() -> None:
    async with driven(ChatApp(FakeEndpoint())) as it:
        await it.say("/prompts save pirate")
        await it.notified("there is no system prompt in this chat to save")
        it.chat.prompt.clear_all()
        await it.say("/system Speak like a pirate.")
        await it.say("/prompts save pirate")
        await it.notified("Saved as")
        await it.pilot.press("ctrl+n")
        await it.pilot.press(*"/prompts pi")
        await it.until(lambda: "saved system prompt" in it.text())
        await it.pilot.press("tab", "enter")
        await it.until(lambda: it.chat.conversation.system == "Speak like a pirate.")
        await it.say("/prompts")
        await it.notified("Saved: pirate.")
        await it.say("/prompts delete pirate")
        await it.notified("Deleted pirate.")


@pytest.mark.parametrize("name", ["", ".hidden", "../up", "a/b", "a b", "save", "x" * 99])
def test_a_name_of_a_system_prompt_is_no_path(name: str) -> None:
    with pytest.raises(SettingError, match="cannot be the name"):
        system_prompts.save(name, "text")


def test_system_prompts_of_a_folder_that_cannot_be_read_are_none() -> None:
    assert system_prompts.names() == []
    with pytest.raises(SettingError, match="/prompts save x saves the one in use"):
        system_prompts.text("x")
    system_prompts.save("y", "text").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SettingError, match="is not a text file"):
        system_prompts.text("y")


# --- an editor


@on_a_loop
async def test_a_question_is_written_in_an_editor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async def write(it: Driven, script: str) -> None:
        editor = tmp_path / "editor.sh"
        editor.write_text(f"#!/bin/sh\n{script}\n")
        editor.chmod(0o700)
        monkeypatch.setenv("VISUAL", str(editor))
        await it.pilot.press("f10")
        await it.pilot.pause()

    from contextlib import nullcontext

    async with driven(ChatApp(FakeEndpoint())) as it:
        monkeypatch.setattr(it.app, "suspend", nullcontext)  # a test has no terminal to give away
        await it.pilot.press(*"one")
        await write(it, 'printf "\\ntwo\\n" >> "$1"')
        assert it.chat.prompt.text == "one\ntwo"
        await write(it, 'echo gone > "$1"; exit 1')
        await it.notified("nothing was changed")
        await write(it, 'printf "\\377" > "$1"')
        await it.notified("not UTF-8")
        monkeypatch.setenv("VISUAL", "no-such-editor")
        await it.pilot.press("f10")
        await it.notified("VISUAL is 'no-such-editor', which cannot be found")
        assert it.chat.prompt.text == "one\ntwo"


def test_a_damaged_picture_of_any_format_costs_no_question(tmp_path: Path) -> None:
    """Pillow's AVIF reader raises RuntimeError, that of BLP NotImplementedError: the question was lost."""
    image = Image.new("RGB", (64, 64))
    for kind in ("AVIF", "PNG", "WEBP", "GIF", "BMP", "JPEG", "DDS", "BLP"):
        content = BytesIO()
        (image.convert("P") if kind in ("BLP", "GIF") else image).save(content, kind)
        whole = content.getvalue()
        for cut in (
            whole[: len(whole) // 2],
            whole[:40] + bytes(len(whole) - 40),
            whole[:12],
            b"DDS |" + whole,
        ):
            (tmp_path / "a.png").write_bytes(cut)
            assert isinstance(thumbnail_of(tmp_path / "a.png"), str)
            assert with_files(QuestionText(f"see @{tmp_path}/a.png"))[0].media


def test_a_file_that_was_emptied_or_replaced_blocks_no_chat_and_is_not_taken_for_the_old_one(
    tmp_path: Path,
) -> None:
    """Every later question was refused; another picture was sent under the old thumbnail."""
    path = tmp_path / "a.png"
    path.write_bytes(png())
    made = with_files(QuestionText(f"see @{path}"))[0]
    assert len(content_of(made.text, made.media, made.digests)) == 2 and not gone(made.media, made.digests)
    for content in (b"", png(96, 96, (1, 2, 3)), bytes(31 * 2**20)):
        path.write_bytes(content)
        assert content_of(made.text, made.media, made.digests) == made.text
        assert gone(made.media, made.digests) == ["a.png"]


class Blind(FakeEndpoint):
    """An endpoint whose model reads no pictures, as a server of ours says when it counts; others, later."""

    counts = True

    async def count(self, messages: Sequence[Message], *, on_wait: OnProgress = lambda _: None) -> int | None:
        if not self.counts:
            return None
        if any(message.media for message in messages):
            raise EndpointError("it reads no pictures", status=400)
        return await super().count(messages, on_wait=on_wait)

    async def answer(
        self, messages: Sequence[Message], options: AnswerOptions
    ) -> AsyncGenerator[StreamEvent, None]:
        if any(message.media for message in messages):
            raise EndpointError("it reads no pictures", status=400)
        async for event in super().answer(messages, options):
            yield event


@pytest.mark.sample(1)
@pytest.mark.parametrize("counts", [True, False])
@on_a_loop
async def test_a_picture_of_an_earlier_question_blocks_no_model_that_reads_none(
    counts: bool, tmp_path: Path
) -> None:
    """Answered by a model with a projector, then another one chosen: every question was refused."""
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    made = with_files(QuestionText(f"see @{tmp_path}/a.png"))[0]
    talk = Conversation()
    asked = talk.add("user", made.text)
    talk.change(replace(asked, settings=made.settings()))
    talk.change(replace(talk.add("assistant", "A square.", parent=asked.id), finish="stop"))
    endpoint = Blind()
    endpoint.counts = counts
    async with driven(ChatApp(endpoint, first=talk)) as it:
        await it.ask("And now?")
        assert it.texts()[-1] == "An answer." and [m.text for m in endpoint.asked[-1][0]][1] == "A square."
        await it.ask(f"see @{tmp_path}/a.png")
        assert "it reads no pictures" in it.text(), "of the last question, that is said"
