"""Tools in the chat: on the screen, in plain lines, and saved; with a real server that misbehaves."""

from __future__ import annotations

import asyncio
import io
import json
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from fake_endpoint import FakeEndpoint, rounds_of
from test_tool_servers import misbehaving
from test_tui_chat import on_a_loop
from tui_driver import Driven, driven

from edgespec.client.answer import StreamedRound
from edgespec.core.values import Round
from edgespec.errors import SettingError
from edgespec_tui.app import ChatApp
from edgespec_tui.plain.plain import PlainChat
from edgespec_tui.plain.tool_lines import ToolLines
from edgespec_tui.sessions.conversation import Conversation
from edgespec_tui.sessions.export import as_json, as_markdown
from edgespec_tui.sessions.sessions import Sessions
from edgespec_tui.settings.beginning import open_toolbox
from edgespec_tui.settings.settings import Settings
from edgespec_tui.settings.waits import Waits
from edgespec_tui.tools import server_list
from edgespec_tui.tools.toolbox import Toolbox
from edgespec_tui.tools.values import calls_of
from edgespec_tui.widgets.approval_bar import ApprovalBar
from edgespec_tui.widgets.call_view import CallView


def calling(*calls: tuple[str, object], text: str = "") -> list[StreamedRound]:
    """Returns a message of the model's that calls tools."""
    pieces = tuple(
        {"index": n, "id": f"c{n}", "function": {"name": name, "arguments": json.dumps(arguments)}}
        for n, (name, arguments) in enumerate(calls)
    )
    return [
        *(rounds_of(text) if text else ()),
        StreamedRound(Round((), "", 0, 0, ()), 0.0, tool_calls=pieces),
    ]


def app_with(answers: Sequence[object], quiet_s: float = 0.02, **named: object) -> ChatApp:
    waits, toolbox = Waits(quiet_s=quiet_s, guard_s=0.0), Toolbox([misbehaving()], end_s=0.1)
    return ChatApp(FakeEndpoint(answers=answers), toolbox=toolbox, waits=waits, **named)  # type: ignore[arg-type]


async def asked(it: Driven, question: str = "do it") -> None:
    """Sends a question and waits for a call that wants to be allowed."""
    await it.say(question)
    await it.until(lambda: it.chat.query_one(ApprovalBar).has_focus, "the keys are for the call")


@on_a_loop
async def test_a_call_is_approved_shown_saved_found_and_exported(tmp_path: Path) -> None:
    sessions = Sessions(tmp_path, on_notice=print)
    first = calling(("echo", {"text": "from the tool"}), text="Let me look.")
    app = app_with([first, "It says so."], sessions=sessions)
    async with driven(app) as it:
        await asked(it)
        assert "May it call bad: echo?" in it.text() and "its server says: only reads" in it.text()
        assert '"text": "from the tool"' in it.text()
        await it.pilot.press("y")
        await it.until(lambda: not it.chat.answering, "the end")
        await it.pilot.pause()
        shown = it.text()
        places = [shown.index(words) for words in ("Let me look.", "bad: echo(text='from", "It says so.")]
        assert places == sorted(places) and "do it" in shown and "May it call" not in shown
        talk = it.chat.conversation
        (call,) = calls_of(talk.path()[-1].settings)
        assert (call.outcome, call.result, call.at) == ("done", "from the tool", len("Let me look."))
        assert talk.path()[-1].text == "Let me look.\n\nIt says so."
        (first_messages, options), (second, _) = app.context.engine.endpoint.asked  # type: ignore[attr-defined]
        assert [m.role for m in second] == ["user", "assistant", "tool"] and second[2].text == "from the tool"
        assert options.extra["tools"][0]["function"]["name"] == "echo"
        for view in it.chat.query(CallView):
            view.collapsed = False
        await it.pilot.pause()
        assert "from the tool" in it.text().split("It says so.")[0].split("bad: echo", 1)[1]
        markdown, whole = as_markdown(talk), json.loads(as_json(talk))
        assert "<summary>bad: echo (done," in markdown and markdown.index("Let me look.") < markdown.index(
            "<summary>"
        )
        assert (
            whole["turns"][-1]["calls"][0]["tool"] == "echo" and "calls" not in whole["turns"][-1]["settings"]
        )
    sessions.close()
    again = Sessions(tmp_path, on_notice=print)
    (found,) = again.searched("from the tool", limit=9).result()
    kept = again.loaded(found.id).result()
    assert calls_of(kept.path()[-1].settings) == (call,)
    again.close()
    async with driven(ChatApp(FakeEndpoint(), first=kept)) as it:  # read again, without servers
        assert "bad: echo(text='from the tool')" in it.text()
        await it.ask("and?")
        assert "An answer." in it.text()


@pytest.mark.slow
@on_a_loop
async def test_a_call_that_is_not_allowed_does_not_run_and_the_model_is_informed() -> None:
    app = app_with([calling(("echo", {"text": "x"})), "Then not."])
    async with driven(app) as it:
        await asked(it)
        await it.pilot.press("n")
        await it.until(lambda: not it.chat.answering, "the end")
        (call,) = calls_of(it.chat.conversation.path()[-1].settings)
        assert call.outcome == "refused" and "did not allow" in call.result
        await it.pilot.pause()
        assert "not allowed" in it.text()


@pytest.mark.slow
@on_a_loop
async def test_what_is_allowed_in_this_chat_is_asked_about_once() -> None:
    echo = calling(("echo", {"text": "x"}), ("echo", {"text": "y"}))
    app = app_with([echo, "A", echo, "B"])
    async with driven(app) as it:
        await asked(it)
        await it.pilot.press("a")
        await it.until(lambda: not it.chat.answering, "the end")
        await it.ask("again")
        calls = [call for turn in it.chat.conversation.path() for call in calls_of(turn.settings)]
        assert [call.outcome for call in calls] == ["done"] * 4
        await it.app.action_new()
        assert not it.chat.conversation.approved


@on_a_loop
async def test_what_is_typed_for_the_input_allows_no_call() -> None:
    """A burst of keys when a call comes up: y, a and Enter among them."""
    app = app_with([calling(("echo", {"text": "x"})), "A"], quiet_s=30.0)
    async with driven(app) as it:
        await it.say("do it")
        await it.until(lambda: it.chat.query_one(ApprovalBar).display, "the call")
        await it.pilot.press(*"yaynay", "enter", *"ya")
        assert it.chat.prompt.text == "ya" and it.chat.answers.waiting
        for size in ((20, 5), (200, 60), (1, 1), (100, 30)):
            await it.pilot.resize_terminal(*size)
        assert it.chat.query_one(ApprovalBar).display and it.chat.answering
        await it.pilot.press("shift+tab")
        await it.pilot.press("n")
        await it.until(lambda: not it.chat.answering, "the end")
        outcomes = [one.outcome for turn in it.chat.conversation.path() for one in calls_of(turn.settings)]
        assert outcomes == ["refused"] and it.chat.prompt.text == "ya"


@on_a_loop
async def test_esc_stops_a_call_that_runs_and_keeps_what_was_done() -> None:
    app = app_with([calling(("echo", {"text": "first"}), ("hang", {})), "A"])
    async with driven(app) as it:
        await asked(it)
        await it.pilot.press("y")
        await it.until(lambda: "hang" in it.text() and it.chat.query_one(ApprovalBar).has_focus, "the second")
        await it.pilot.press("y")
        await it.until(lambda: not it.chat.query_one(ApprovalBar).display, "it runs")
        await it.pilot.press("escape")
        await it.until(lambda: not it.chat.answering, "the end")
        calls = calls_of(it.chat.conversation.path()[-1].settings)
        assert [(call.outcome, call.result[:5]) for call in calls] == [
            ("done", "first"),
            ("stopped", "The u"),
        ]
        assert it.chat.conversation.path()[-1].finish == "cancelled"


@on_a_loop
async def test_hostile_text_of_a_tool_is_shown_and_never_obeyed() -> None:
    app = app_with([calling(("hostile", {"text": "[@click=app.quit]x[/]\x1b[2J"})), "A"])
    async with driven(app) as it:
        await asked(it)
        await it.pilot.press("y")
        await it.until(lambda: not it.chat.answering, "the end")
        for view in it.chat.query(CallView):
            view.collapsed = False
        await it.pilot.pause()
        assert "\x1b" not in it.text() and "[@click=app.quit]x" in it.text()
        second = app.context.engine.endpoint.asked[1][0]  # type: ignore[attr-defined]
        assert "\x1b" not in second[-1].text and second[-1].role == "tool"
        assert [message.role for message in second] == ["user", "assistant", "tool"]


@on_a_loop
async def test_a_server_that_cannot_be_used_is_reported_and_the_answer_comes() -> None:
    app = ChatApp(FakeEndpoint(), toolbox=Toolbox([misbehaving()], end_s=0.1))
    app.context.toolbox._places["bad"].server = type(misbehaving())("bad", "no-such-program")
    async with driven(app) as it:
        await it.say("hi")
        await it.notified("The server bad could not be started")
        await it.until(lambda: "An answer." in it.text(), "the answer")


def test_flags_choose_the_servers() -> None:
    server_list.put(server_list.list_path(), misbehaving())
    server_list.put(server_list.list_path(), replace(misbehaving(name="off"), disabled=True))

    def servers(tools: str | None) -> list[str]:
        return [one.name for one in open_toolbox(Namespace(tools=tools), Settings()).servers]

    assert (servers(None), servers("none"), servers("off, bad")) == (["bad"], [], ["off", "bad"])
    with pytest.raises(
        SettingError, match="--tools names 'nope': there is no such server, there is bad, off"
    ):
        servers("bad,nope")


def plain(answers: Sequence[object], lines: Sequence[str] = ()) -> tuple[PlainChat, asyncio.Runner]:
    runner, typed = asyncio.Runner(), [*lines]
    chat = PlainChat(
        FakeEndpoint(answers=answers),  # type: ignore[arg-type]
        Conversation(),
        Sessions(None, on_notice=print),
        runner,
        quiet=True,
        out=io.StringIO(),
        err=io.StringIO(),
        toolbox=Toolbox([misbehaving()], end_s=0.1),
    )

    def ask(sentence: str) -> str:
        chat.tell(sentence)
        if not typed:
            raise EOFError
        return typed.pop(0)

    tool_lines = ToolLines(ask, chat.tell)
    chat.decide, chat.toolbox.ask = tool_lines.decide, tool_lines.answer
    return chat, runner


def test_without_a_screen_a_line_asks() -> None:
    answers = [calling(("echo", {"text": "x"}), ("ask", {}), ("echo", {}), text="Look."), "Done."]
    chat, runner = plain(answers, ["y", "a", "old", "7", "no"])
    with runner:
        turn = chat.ask("do it")
        runner.run(chat.toolbox.close())
    assert chat.out.getvalue() == "Look.\n\n\nDone.\n"  # type: ignore[attr-defined]
    told = chat.err.getvalue()  # type: ignore[attr-defined]
    assert "May it call bad: echo (its server says: only reads)?" in told
    assert "The server bad asks: How old?" in told and "age is 'old': it must be a whole number" in told
    assert [call.outcome for call in calls_of(turn.settings)] == ["done", "done", "refused"]
    assert json.loads(calls_of(turn.settings)[1].result)["content"] == {"age": 7}
    assert "[bad: echo(text='x') · 0." in told and "[bad: echo() · not allowed]" in told


def test_the_end_of_the_input_stops_an_answer_that_asks() -> None:
    chat, runner = plain([calling(("echo", {"text": "x"})), "Done."])
    with runner:
        turn = chat.ask("do it")
        runner.run(chat.toolbox.close())
    assert turn.finish == "cancelled" and [call.outcome for call in calls_of(turn.settings)] == ["stopped"]


@on_a_loop
async def test_a_table_turns_servers_and_tools_off_for_this_chat(tmp_path: Path) -> None:
    sessions = Sessions(tmp_path, on_notice=print)
    app = app_with(["A", "B"], sessions=sessions)
    async with driven(app) as it:
        await it.ask("first")
        await it.say("/tools")
        await it.until(lambda: "on   echo  [only reads]" in it.text(), "the table")
        await it.pilot.press("down", "enter")
        await it.until(lambda: "off  echo" in it.text(), "echo is off")
        await it.pilot.press("escape")
        await it.ask("second")
        offered = [options.extra.get("tools") for _, options in app.context.engine.endpoint.asked]  # type: ignore[attr-defined]
        names = [[tool["function"]["name"] for tool in tools or ()] for tools in offered]
        assert "echo" in names[0] and "echo" not in names[1] and "hang" in names[1]
        await it.pilot.press("alt+t")
        await it.until(lambda: "off  echo" in it.text(), "the table")
        await it.pilot.press("enter")
        await it.until(lambda: "bad  off" in it.text(), "the server is off")
        await it.pilot.press("escape")
        await it.ask("third")
        assert "tools" not in app.context.engine.endpoint.asked[-1][1].extra  # type: ignore[attr-defined]
        id = it.chat.conversation.id
    sessions.close()
    again = Sessions(tmp_path, on_notice=print)
    assert id is not None and again.loaded(id).result().tools_off == {"bad", "bad: echo"}
    again.close()


@on_a_loop
async def test_resources_and_prompts_of_servers_go_with_a_question() -> None:
    app = app_with(["A"])
    async with driven(app) as it:
        await it.ask("read @bad:notes please")
        (message,) = app.context.engine.endpoint.asked[-1][0]  # type: ignore[attr-defined]
        assert "the notes" in message.text and "[bad:notes: 1 line]" in it.text()
        await it.say("/prompt bad:greet who=Ada")
        await it.until(lambda: "Greet Ada." in it.chat.prompt.question().text, "the prompt is in the input")
        it.chat.prompt.clear_all()
        await it.say("/prompt")
        await it.notified("bad:greet who=")
        await it.say("/prompt nobody:x")
        await it.notified("there is no server of tools 'nobody'")


@on_a_loop
async def test_a_server_that_asks_gets_what_the_user_writes() -> None:
    app = app_with([calling(("ask", {}), ("ask", {})), "A"])
    async with driven(app) as it:
        await asked(it)
        await it.pilot.press("a")
        await it.until(lambda: "bad asks: How old?" in it.text(), "the form")
        await it.pilot.press("x", "ctrl+s")
        await it.until(lambda: "age is 'x'" in it.text(), "what is wrong")
        await it.pilot.press("backspace", "7", "enter")
        await it.until(lambda: "bad asks: How old?" in it.text() and "age is" not in it.text(), "again")
        await it.pilot.press("escape")
        await it.until(lambda: not it.chat.answering, "the end")
        results = [json.loads(call.result) for call in calls_of(it.chat.conversation.path()[-1].settings)]
        assert results == [{"action": "accept", "content": {"age": 7}}, {"action": "decline"}]
