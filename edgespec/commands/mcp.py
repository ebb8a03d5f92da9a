"""`edgespec mcp`: the servers whose tools a chat may use."""

import argparse
import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from edgespec.commands.table import table
from edgespec.errors import SettingError
from edgespec_tui.tools import server_list
from edgespec_tui.tools.server_list import ToolServer
from edgespec_tui.tools.toolbox import Toolbox, log_of

DESCRIPTION = "Lists, adds, removes and tests servers of tools (MCP), which a chat may use once you approve."
EPILOG = """examples: edgespec mcp add time -- uvx mcp-server-time; edgespec mcp add notes http://127.0.0.1:8000/mcp;
edgespec mcp import reads the lists of Claude, Cursor, LM Studio and Windsurf, or the file that you name"""


def add(command: argparse.ArgumentParser) -> None:
    """Adds the flags."""
    actions = command.add_subparsers(dest="action", required=True, metavar="list|add|remove|test|import")
    actions.add_parser("list", help="list the servers")
    adding = actions.add_parser("add", help="add a server: its address, or its command behind --")
    adding.add_argument("name", metavar="NAME")
    adding.add_argument("url", metavar="URL", nargs="?", default="", help="of a server over HTTP")
    adding.add_argument("--env", metavar="NAME=VALUE", action="append", default=[], help="for its command")
    adding.add_argument("--header", metavar="NAME=VALUE", action="append", default=[], help="for its address")
    actions.add_parser("remove", help="remove a server").add_argument("name", metavar="NAME")
    testing = actions.add_parser("test", help="start a server, or all, and list its tools")
    testing.add_argument("name", metavar="NAME", nargs="?")
    importing = actions.add_parser("import", help="add the servers of another program's list")
    importing.add_argument("file", metavar="FILE", nargs="?")


def run(arguments: argparse.Namespace) -> int:
    """Does what is asked; returns the exit code."""
    path = server_list.list_path()
    if arguments.action == "add":
        return _add(arguments, path)
    if arguments.action == "remove":
        server_list.remove(path, arguments.name)
        print(f"{arguments.name} is removed from {path}.")
        return 0
    if arguments.action == "import":
        return _import(arguments.file, path)
    servers = server_list.read(path)
    if arguments.action == "test":
        return _test(servers, arguments.name)
    if not servers:
        print(f"There are no servers of tools in {path}: edgespec mcp add --help says how to add one.")
        return 0
    rows = [(one.name, "off" if one.disabled else "", one.where) for one in servers]
    print("\n".join(table([("server", "", "command or address"), *rows])))
    return 0


def _add(arguments: argparse.Namespace, path: Path) -> int:
    command, url = arguments.behind, arguments.url
    if bool(command) == bool(url):
        raise SettingError("a server has either an address or a command behind --: see edgespec mcp --help")
    server = ToolServer(
        arguments.name,
        command=command[0] if command else "",
        args=tuple(command[1:]),
        env=_pairs("--env", arguments.env),
        url=url,
        headers=_pairs("--header", arguments.header),
    )
    server_list.put(path, server)
    print(f"{server.name} is added. `edgespec mcp test {server.name}` starts it and lists its tools.")
    return 0


def _pairs(flag: str, given: Sequence[str]) -> Mapping[str, str]:
    pairs = [one.partition("=") for one in given]
    for name, sign, value in pairs:
        if not (name and sign):
            raise SettingError(f"{flag} is {name + sign + value!r}: write NAME=VALUE")
    return {name: value for name, _, value in pairs}


def _import(file: str | None, path: Path) -> int:
    """Adds the servers of other programs' lists that are not there yet."""
    sources = [Path(file).expanduser()] if file else server_list.others_lists()
    if file and not sources[0].is_file():
        raise SettingError(f"there is no file {file}: check the path")
    if not sources:
        print("No list of another program was found: name its file.")
        return 0
    known = {server.name for server in server_list.read(path)}
    for source in sources:
        for server in server_list.read(source):
            if server.name in known:
                print(f"{server.name} is there already; that of {source} is left out.")
            else:
                known.add(server.name)
                server_list.put(path, server)
                print(f"{server.name} is added from {source}: {server.where}")
    return 0


def _test(servers: Sequence[ToolServer], name: str | None) -> int:
    """Starts servers and lists their tools; returns 1 if one could not be used."""
    wanted = [replace(one, disabled=False) for one in servers if name in (None, one.name)]
    if not wanted:
        which = f"there is no server {name!r}" if name else "there are no servers yet"
        raise SettingError(f"{which}: edgespec mcp list shows all, edgespec mcp add adds one")
    return asyncio.run(_tested(wanted))


async def _tested(servers: Sequence[ToolServer]) -> int:
    box, code = Toolbox(servers), 0
    try:
        for server in servers:
            began = time.monotonic()
            tools = await box.tools([server.name])
            if fault := box.fault_of(server.name):
                print(f"{server.name}: {fault} (its log: {log_of(server.name)})")
                code = 1
                continue
            print(f"{server.name}: {len(tools)} tools after {time.monotonic() - began:.1f} s")
            for tool in tools:
                about = " ".join(tool.description.split())[:100]
                hints = f" [{', '.join(tool.hints)}]" if tool.hints else ""
                print(f"  {tool.name}{hints}  {about}")
    finally:
        await box.close()
    return code
