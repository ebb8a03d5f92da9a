"""Which servers of tools there are: `mcp.json` in the folder of settings, as other programs write theirs.

{"mcpServers": {"time": {"command": "uvx", "args": ["mcp-server-time"]},
                "notes": {"url": "http://127.0.0.1:8000/mcp"}}}
"""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from edgespec.errors import SettingError
from edgespec.system import config
from edgespec.system.named_file import regular_text
from edgespec_models.kept_file import write_whole

FILE = "mcp.json"
SERVERS = "mcpServers"
LARGEST = 2**20  # bytes
MOST = 64  # servers
NAME = re.compile(r"[\w.-]{1,64}", re.ASCII)


@dataclass(frozen=True, slots=True)
class ToolServer:
    """How a server is reached: by starting a command, or at an address."""

    name: str
    command: str = ""
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)  # may hold keys
    cwd: str = ""
    url: str = ""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    disabled: bool = False

    @property
    def where(self) -> str:
        """Its address, or its command in one line."""
        return self.url or " ".join([self.command, *self.args])

    def entry(self) -> dict[str, Any]:
        """Returns what the file has of it."""
        values = {**asdict(self), "name": "", "args": list(self.args)}
        return {name: value for name, value in values.items() if value}


def list_path() -> Path:
    """Returns the file of servers."""
    return config.settings_folder() / FILE


def read(path: Path) -> tuple[ToolServer, ...]:
    """Returns the servers of a file, ours or another program's; none if it does not exist.

    Raises SettingError for a file that cannot be read, and for an entry that cannot be used.
    """
    return tuple(server_of(name, entry, path) for name, entry in _entries(path).items())


def _entries(path: Path) -> dict[str, Any]:
    document = _document(path)
    entries = document.get(SERVERS, document.get("servers", {}))  # VS Code has "servers"
    if not isinstance(entries, dict):
        raise SettingError(f"{path}: {SERVERS} must be an object with a server under each name")
    if len(entries) > MOST:
        raise SettingError(f"{path} has {len(entries)} servers: {MOST} is the most")
    return entries


def _document(path: Path) -> dict[str, Any]:
    try:
        text = regular_text(path, most=LARGEST)
        document = json.loads(text) if text.strip() else {}
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (ValueError, RecursionError) as error:
        raise SettingError(f"{path} is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise SettingError(f'{path} must be an object, {{"{SERVERS}": ...}}')
    return document


def server_of(name: str, entry: object, path: Path) -> ToolServer:
    """Returns the server of an entry. path: for errors. Raises SettingError."""

    def wrong(what: str) -> SettingError:
        return SettingError(f"{path}: the server {name!r} {what}")

    if not NAME.fullmatch(name):
        raise SettingError(f"{path}: a server is called {name!r}: use letters, digits, _, - and . only")
    if not isinstance(entry, dict):
        raise wrong('must be an object with "command" or "url"')
    texts = {key: entry.get(key) or "" for key in ("command", "cwd", "url")}
    texts["url"] = texts["url"] or entry.get("serverUrl") or ""
    for key, value in texts.items():
        if not isinstance(value, str) or "\0" in value:
            raise wrong(f"has {value!r} as {key}: it must be a text")
    args = entry.get("args") or []
    if not isinstance(args, list) or not all(isinstance(one, str) and "\0" not in one for one in args):
        raise wrong('needs "args" to be a list of texts')
    maps = {key: entry.get(key) or {} for key in ("env", "headers")}
    for key, value in maps.items():
        if not isinstance(value, dict) or not all(isinstance(one, str) for one in value.values()):
            raise wrong(f'needs "{key}" to be an object of texts')
    if bool(texts["command"]) == bool(texts["url"]):
        raise wrong('needs either "command" or "url"')
    if texts["url"] and urlsplit(texts["url"]).scheme not in ("http", "https"):
        raise wrong(f"has the address {texts['url']!r}: write it like http://127.0.0.1:8000/mcp")
    if entry.get("type") == "sse":
        raise wrong('has the type "sse", which is no longer in use: look for its streamable HTTP address')
    return ToolServer(
        name,
        command=texts["command"],
        args=tuple(args),
        env=maps["env"],
        cwd=texts["cwd"],
        url=texts["url"],
        headers=maps["headers"],
        disabled=entry.get("disabled") is True,
    )


def put(path: Path, server: ToolServer) -> None:
    """Adds a server to a file, and leaves the rest as it is. Raises SettingError."""
    document, entries = _document(path), _entries(path)
    if server.name in entries:
        raise SettingError(f"there is a server {server.name!r} already: remove it first, or choose a name")
    entries[server.name] = server_of(server.name, server.entry(), path).entry()
    _write(path, {**document, SERVERS: entries})


def remove(path: Path, name: str) -> None:
    """Removes a server from a file. Raises SettingError."""
    document, entries = _document(path), _entries(path)
    if name not in entries:
        known = ", ".join(entries) or "none"
        raise SettingError(f"there is no server {name!r}: there is {known}")
    del entries[name]
    _write(path, {**document, SERVERS: entries})


def _write(path: Path, document: Mapping[str, Any]) -> None:
    try:
        write_whole(path, json.dumps(document, indent=2, ensure_ascii=False) + "\n")
    except OSError as error:
        raise SettingError(f"{error.filename or path} cannot be written: {error.strerror}") from None


def others_lists() -> list[Path]:
    """Returns the lists of servers of other programs that are on this machine."""
    home = Path.home()
    places = (
        home / "Library/Application Support/Claude/claude_desktop_config.json",
        home / "AppData/Roaming/Claude/claude_desktop_config.json",
        home / ".config/Claude/claude_desktop_config.json",
        home / ".claude.json",
        home / ".cursor/mcp.json",
        home / ".lmstudio/mcp.json",
        home / ".codeium/windsurf/mcp_config.json",
    )
    return [place for place in places if place.is_file()]
