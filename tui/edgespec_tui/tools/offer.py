"""What an answer may call: the tools that a chat has on, with what runs them and what keeps long results."""

import itertools
import json
import os
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from edgespec.system import config
from edgespec_models.kept_file import write_whole
from edgespec_tui.tools.loop import Decision, Proposal, ToolLoop, room_in
from edgespec_tui.tools.markers import as_data
from edgespec_tui.tools.toolbox import Toolbox, named
from edgespec_tui.tools.values import Tool

LONGEST_ABOUT = 4000  # characters of a description
MOST_KEPT = 100  # results on the disk
_numbers = itertools.count(1)


def is_on(tool: Tool, off: Collection[str]) -> bool:
    """Returns whether a chat has a tool on. off: names of servers, and titles of tools."""
    return tool.server not in off and tool.title not in off


async def offer(
    toolbox: Toolbox,
    off: Collection[str],
    always: set[str],
    decide: Callable[[Proposal], Awaitable[Decision]],
    n_ctx: int | None,
) -> ToolLoop | None:
    """Returns the loop of an answer; None if the chat has no tool on. Starts the servers that it needs.

    off: what the chat has turned off. always: keys of tools that are approved for the chat.
    """
    servers = [server.name for server in toolbox.servers if server.name not in off]
    tools = [tool for tool in await toolbox.tools(servers) if is_on(tool, off)] if servers else []
    if not tools:
        return None
    return ToolLoop(
        named(tools),
        toolbox.call,
        decide,
        clean=as_data,
        keep=kept,
        always=always,
        most_rounds=toolbox.most_rounds,
        room=room_in(n_ctx),
    )


def described(tools: Mapping[str, Tool]) -> list[dict[str, Any]]:
    """Returns tools as a request has them; what their servers say of them is data, too."""
    return [
        {
            "type": "function",
            "function": {
                "name": name,
                "description": as_data(tool.description)[:LONGEST_ABOUT],
                "parameters": _parameters(tool.schema),
            },
        }
        for name, tool in tools.items()
    ]


def _parameters(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a schema without room for arguments that it does not name: small models make some up."""
    clean: dict[str, Any] = json.loads(as_data(json.dumps(dict(schema), ensure_ascii=False)))
    if clean.get("properties") and not {"additionalProperties", "patternProperties"} & clean.keys():
        clean["additionalProperties"] = False
    return clean


def results_folder() -> Path:
    """Returns the folder of results that were too long for the model."""
    return config.data_folder() / "tool-results"


def kept(text: str) -> str:
    """Writes a whole result to a file; returns its path, "" if there is no room. Old ones go."""
    folder = results_folder()
    path = folder / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{next(_numbers)}.txt"
    with suppress(OSError):
        write_whole(path, text, sync=False)
        for old in sorted(folder.glob("*.txt"))[:-MOST_KEPT]:
            old.unlink()
        return str(path)
    return ""
