"""Servers of tools: how they are listed, started, called and ended, and what one that misbehaves can do."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from edgespec.errors import SettingError, ToolServerError
from edgespec_tui.tools import server_list, streams
from edgespec_tui.tools.question import Asked, Field
from edgespec_tui.tools.server_list import ToolServer
from edgespec_tui.tools.toolbox import Toolbox, log_of, named
from edgespec_tui.tools.values import Result, Tool

SERVER = str(Path(__file__).with_name("misbehaving_server.py"))


def misbehaving(*args: str, name: str = "bad") -> ToolServer:
    return ToolServer(name, sys.executable, ("-S", SERVER, *args))


@asynccontextmanager
async def opened(*servers: ToolServer, call_s: float = 5.0) -> AsyncIterator[Toolbox]:
    box = Toolbox(servers or (misbehaving(),), call_s=call_s, end_s=0.1)
    try:
        yield box
    finally:
        await box.close()


def bad(name: str) -> Tool:
    return Tool("bad", name)


def children() -> list[psutil.Process]:
    found = psutil.Process().children(recursive=True)
    return [one for one in found if SERVER in " ".join(one.as_dict(["cmdline"], ad_value=[])["cmdline"])]


def test_the_list_is_read_in_the_shape_that_others_write(tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    assert server_list.read(file) == ()
    entries = {
        "time": {"command": "uvx", "args": ["mcp-server-time"], "env": {"A": "b"}, "disabled": True},
        "web": {"url": "https://example.org/mcp", "headers": {"Authorization": "Bearer x"}, "more": 1},
    }
    file.write_text("\ufeff" + json.dumps({"mcpServers": entries, "theme": "dark"}))
    first, web = server_list.read(file)
    assert first == ToolServer("time", "uvx", ("mcp-server-time",), {"A": "b"}, disabled=True)
    assert (web.url, web.headers) == ("https://example.org/mcp", {"Authorization": "Bearer x"})
    assert "Bearer" not in repr(web)
    server_list.put(file, ToolServer("git", "mcp-server-git"))
    server_list.remove(file, "time")
    told = json.loads(file.read_text())
    assert told["theme"] == "dark" and told["mcpServers"]["web"] == entries["web"]
    assert list(told["mcpServers"]) == ["web", "git"]
    with pytest.raises(SettingError, match="there is a server 'git' already"):
        server_list.put(file, ToolServer("git", "x"))
    with pytest.raises(SettingError, match="there is no server 'nope': there is web, git"):
        server_list.remove(file, "nope")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[]", "must be an object"),
        ('{"mcpServers": []}', "must be an object"),
        ('{"mcpServers": {"a b": {"command": "x"}}}', "is called 'a b'"),
        ('{"mcpServers": {"a": 7}}', "must be an object"),
        ('{"mcpServers": {"a": {}}}', 'needs either "command" or "url"'),
        ('{"mcpServers": {"a": {"command": "x", "url": "http://h/"}}}', 'needs either "command" or "url"'),
        ('{"mcpServers": {"a": {"command": 7}}}', "has 7 as command"),
        ('{"mcpServers": {"a": {"command": "x", "args": "y"}}}', '"args" to be a list'),
        ('{"mcpServers": {"a": {"command": "x", "env": {"A": 1}}}}', '"env" to be an object'),
        ('{"mcpServers": {"a": {"url": "ftp://h/"}}}', "has the address 'ftp://h/'"),
        ('{"mcpServers": {"a": {"type": "sse", "url": "http://h/"}}}', "no longer in use"),
    ],
)
def test_an_entry_that_cannot_be_used_is_named(tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "mcp.json"
    file.write_text(text)
    with pytest.raises(SettingError, match=why):
        server_list.read(file)


def test_equal_names_of_two_servers_are_told_apart() -> None:
    tools = [
        Tool("b", "read"),
        Tool("a", "read"),
        Tool("a", "say hi"),
        Tool("c", "say_hi"),
        Tool("d", "x" * 80),
    ]
    found = named(tools)
    assert {name: tool.title for name, tool in found.items()} == {
        "a__read": "a: read",
        "b__read": "b: read",
        "a__say_hi": "a: say hi",
        "c__say_hi": "c: say_hi",
        "x" * 64: "d: " + "x" * 80,
    }
    alike = named([Tool("a", "r\u0435ad"), Tool("a", "r\u0430ad"), Tool("a", "")])  # Cyrillic letters
    assert set(alike) == {"a__", "a__r_ad", "a__r_ad_2"}


def test_a_server_is_started_when_its_tools_are_needed_and_ends_with_the_app() -> None:
    async def run() -> None:
        async with opened() as box:
            assert children() == []
            names = [tool.name for tool in await box.tools()]
            assert names[:2] == ["echo", "hang"] and len(children()) == 1
            assert (await box.tools())[0].hints == ("only reads",)
            assert await box.call(bad("echo"), {"text": "h\u00e9"}) == Result("h\u00e9")
            assert await box.resource("bad", "notes") == "the notes"
            assert await box.prompt("bad", "greet", {"who": "Ada"}) == "Greet Ada."
            assert await box.prompts() == [("bad", "greet", ("who",))]
            log = log_of("bad").read_text()
            assert "to standard error" in log and "a banner" in log
        assert children() == []

    asyncio.run(run())


def test_what_a_server_that_misbehaves_sends_is_one_sentence_or_a_text() -> None:
    async def run() -> None:
        async with opened(call_s=0.5) as box:
            await box.tools()
            with pytest.raises(ToolServerError, match="did not answer to wrong"):
                await box.call(bad("wrong"), {})
            with pytest.raises(ToolServerError, match="no tool nope"):
                await box.call(bad("nope"), {})
            assert (await box.call(bad("bytes"), {})).text.startswith("caf\ufffd")
            assert (await box.call(bad("deep"), {})).text == "after it"
            assert len((await box.call(bad("large"), {})).text) == 100_008
            began = time.monotonic()
            with pytest.raises(ToolServerError, match="did not answer to hang in time"):
                await box.call(bad("hang"), {})
            assert time.monotonic() - began < 3

    asyncio.run(run())


def test_a_server_that_dies_is_started_once_more_and_its_call_is_not_repeated() -> None:
    async def run() -> None:
        async with opened() as box:
            await box.tools()
            with pytest.raises(ToolServerError, match="did not answer to die: it has ended"):
                await box.call(bad("die"), {})
            assert (await box.call(bad("echo"), {"text": "back"})).text == "back"
            with pytest.raises(ToolServerError, match="has ended"):
                await box.call(bad("die"), {})
            with pytest.raises(ToolServerError, match="has ended 2 times: /tools can start it again"):
                await box.call(bad("echo"), {})
            assert await box.tools() == [] and "2 times" in box.fault_of("bad")
            box.renew("bad")
            assert (await box.call(bad("echo"), {"text": "again"})).text == "again"

    asyncio.run(run())


def test_a_start_that_is_stopped_does_not_count() -> None:
    async def run() -> None:
        silent = ToolServer("bad", sys.executable, ("-S", "-c", "import sys; sys.stdin.read()"))
        async with opened(silent) as box:
            for _ in range(3):
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.15):
                        await box.tools()
            assert box.fault_of("bad") == "" and box._places["bad"].starts == 0

    asyncio.run(run())


def test_a_message_that_is_too_long_ends_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with opened() as box:
            await box.tools()
            with pytest.raises(ToolServerError, match="did not answer to huge: it has ended"):
                await box.call(bad("huge"), {})
        assert "a message of more than" in log_of("bad").read_text()

    asyncio.run(run())


def test_a_server_that_floods_leaves_the_app_time() -> None:
    async def run() -> None:
        async with opened(call_s=0.2) as box:
            await box.tools()
            turns = 0

            async def others() -> None:
                nonlocal turns
                while True:
                    await asyncio.sleep(0.002)
                    turns += 1

            task = asyncio.create_task(others())
            with pytest.raises(ToolServerError, match="in time"):
                await box.call(bad("flood"), {})
            task.cancel()
            assert turns > 10

    asyncio.run(run())


@pytest.mark.parametrize("args", [(), ("modern",)])
def test_a_list_is_kept_as_long_as_the_server_says(args: tuple[str, ...]) -> None:
    async def run() -> None:
        async with opened(misbehaving(*args)) as box:
            lists = [[tool.name for tool in await box.tools()][-1] for _ in range(2)]
            assert lists == (["listed-1", "listed-1"] if args else ["listed-1", "listed-2"])
            await box.call(bad("change"), {})
            await asyncio.sleep(0.05)
            assert "new" in [tool.name for tool in await box.tools()]

    asyncio.run(run())


def test_a_question_of_a_server_goes_to_the_user() -> None:
    asked: list[Asked] = []

    async def run() -> None:
        async with opened(call_s=0.4) as box:
            told = json.loads((await box.call(bad("ask"), {})).text)
            assert told["action"] == "decline"  # nobody is there

            async def answer(one: Asked) -> dict[str, int]:
                asked.append(one)
                await asyncio.sleep(0.5)  # longer than a call may take: the user thinks
                return {"age": 7}

            box.ask = answer
            told = json.loads((await box.call(bad("ask"), {})).text)
            assert told == {"action": "accept", "content": {"age": 7}}

    asyncio.run(run())
    assert asked == [Asked("bad", "How old?", (Field("age", type="integer", required=True),))]


def test_what_is_answered_to_a_field_is_of_its_type() -> None:
    schema = {"properties": {"a": {"type": "boolean"}, "b": {"enum": ["x", "y"]}, "c": 7}, "required": ["b"]}
    yes, choice, odd = Field.all_of(schema)
    assert yes.value("Yes") is True and yes.value("") is None and odd.value("7") == "7"
    assert choice.value("x") == "x"
    for field, text in ((yes, "maybe"), (choice, "z"), (Field("n", type="integer"), "1.5")):
        with pytest.raises(SettingError, match="it must be"):
            field.value(text)


def test_a_server_that_cannot_be_started_says_why() -> None:
    async def run() -> None:
        servers = (
            ToolServer("nope", "no-such-program"),
            ToolServer("ends", sys.executable, ("-S", "-c", "import sys; sys.exit('no key')")),
            ToolServer("away", url="http://127.0.0.1:9/mcp"),
        )
        async with opened(*servers) as box:
            assert await box.tools() == []
            assert "No such file" in box.fault_of("nope") or "cannot find" in box.fault_of("nope")
            assert "could not be started" in box.fault_of("ends") and "no key" in log_of("ends").read_text()
            assert "could not be started" in box.fault_of("away")

    asyncio.run(run())


def test_the_log_of_a_server_keeps_its_end(tmp_path: Path) -> None:
    log = streams.Log(tmp_path / "a" / "x.log", 1000)
    for n in range(100):
        log.add(f"line {n}\n".encode() * 3)
    log.add(b"z" * 5000)
    log.close()
    size = log.path.stat().st_size
    assert size < 1100 and log.path.read_bytes().endswith(b"z" * 1000)


REAL = {
    "mcp-server-time": ("get_current_time", {"timezone": "Asia/Tokyo"}, "Asia/Tokyo"),
    "mcp-server-git": ("git_status", {"repo_path": "REPO"}, "No commits yet"),
    "mcp-server-fetch": ("fetch", {"url": "PAGE"}, "a local page"),
    "mcp-server-everything": ("get-sum", {"a": 2, "b": 3}, "5"),
    "mcp-server-filesystem": ("list_directory", {"path": "REPO"}, "seen.txt"),
}


@pytest.mark.slow
@pytest.mark.parametrize("program", REAL)
def test_real_servers_answer(program: str, tmp_path: Path) -> None:
    path = shutil.which(program)
    if path is None:
        pytest.skip(f"{program} is not in PATH: pip or npm installs it")
    if shutil.which("git") is None and program == "mcp-server-git":
        pytest.skip("git is not in PATH")
    (tmp_path / "seen.txt").write_text("a local page")
    if program == "mcp-server-git":
        subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    tool, arguments, expected = REAL[program]
    page = _served(tmp_path) if program == "mcp-server-fetch" else None
    try:
        places = {"REPO": str(tmp_path), "PAGE": f"http://127.0.0.1:{page[1]}/seen.txt" if page else ""}
        given = {name: places.get(str(value), value) for name, value in arguments.items()}
        args = {
            "mcp-server-filesystem": (str(tmp_path),),
            "mcp-server-fetch": ("--ignore-robots-txt", "--allow-private-ips"),
        }

        async def run() -> None:
            async with opened(ToolServer("real", path, args.get(program, ())), call_s=30.0) as box:
                assert tool in [one.name for one in await box.tools()], box.fault_of("real")
                assert expected in (await box.call(Tool("real", tool), given)).text

        asyncio.run(run())
    finally:
        if page:
            page[0].kill()
            page[0].communicate()


def _served(folder: Path) -> tuple[subprocess.Popen[str], int]:
    command = [sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1", "-d", str(folder)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert server.stdout
    return server, int(server.stdout.readline().split("port ")[1].split()[0])


@pytest.mark.slow
def test_a_server_at_an_address_answers(tmp_path: Path) -> None:
    """The library's own server over streamable HTTP, in a process of its own."""
    file = tmp_path / "web.py"
    file.write_text(
        "from mcp.server import MCPServer\nimport sys\nserver = MCPServer('web')\n"
        "@server.tool()\ndef add(a: int, b: int) -> int:\n    return a + b\n"
        "@server.tool()\ndef large() -> str:\n    return 'x' * 9_000_000\n"
        "server.run('streamable-http', port=int(sys.argv[1]), json_response=True)\n"
    )
    port = _free_port()
    server = subprocess.Popen([sys.executable, str(file), str(port)], stderr=subprocess.DEVNULL)
    try:

        async def run() -> None:
            place = ToolServer("web", url=f"http://127.0.0.1:{port}/mcp")
            async with opened(place) as box:
                end = time.monotonic() + 20
                while not await box.tools() and time.monotonic() < end:
                    box.renew("web")
                    await asyncio.sleep(0.1)
                assert (await box.call(Tool("web", "add"), {"a": 2, "b": 3})).text == "5"
                with pytest.raises(ToolServerError):
                    await box.call(Tool("web", "large"), {})

        asyncio.run(run())
    finally:
        server.kill()
        server.wait()


def _free_port() -> int:
    import socket

    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
