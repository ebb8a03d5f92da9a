"""What is around the program: running servers, the settings for the hub, folders."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from edgespec.client.client import Client, proves
from edgespec.client.state_file import ServerState, states
from edgespec.commands.doctor.findings import Finding, good, note, problem
from edgespec.errors import EndpointError
from edgespec.system import config
from edgespec_models.shelf.found import hub_folder

ROOM = 5 << 30  # bytes of disk that a usual pair takes


def endpoint() -> list[Finding]:
    """Checks the servers of this user that have a file."""
    found = [_server(state) for state in states()]
    return found or [note("endpoint", "no server runs (`edgespec serve` starts one)")]


def _server(state: ServerState) -> Finding:
    where = f"http://{state.host}:{state.port}/v1"
    facts = {"where": where, "pid": state.pid, "model": state.model}
    if not proves(state):
        if not psutil.pid_exists(state.pid):
            text = f"a server at {where} (process {state.pid}) has gone without notice; its file is ignored"
            return note("endpoint", text, "`edgespec serve` starts a new one", **facts)
        text = f"process {state.pid} should answer at {where} but does not"
        remedy = f"stop it (kill {state.pid}) and start `edgespec serve` again; its terminal may say why"
        return problem("endpoint", text, remedy, **facts)
    try:
        info = Client.of(state).info()
    except EndpointError as error:
        return problem("endpoint", f"{where}: {error}", "its terminal says why; start it again", **facts)
    guessing = f", {info.draft} guesses" if info.draft else ", no draft"
    return good("endpoint", f"{info.model} answers at {where}{guessing}", draft=info.draft, **facts)


def hub(environment: Mapping[str, str] = os.environ) -> list[Finding]:
    """Checks what `edgespec pull` will use. Asks nothing of the hub itself."""
    address = environment.get("HF_ENDPOINT") or "https://huggingface.co"
    offline = environment.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")
    cache = hub_folder(environment, Path.home()).expanduser()
    token = "HF_TOKEN" if environment.get("HF_TOKEN") else "a file" if _token_file(environment) else "none"
    facts = {"endpoint": address, "offline": offline, "cache": str(cache), "token": token}
    found = [good("hub", f"{address}, cache {cache}, token: {token}", **facts)]
    if urlsplit(address).scheme not in ("http", "https") or not urlsplit(address).hostname:
        remedy = "set it to an address such as https://huggingface.co, or leave it out"
        found = [problem("hub", f"HF_ENDPOINT is {address!r}, which is not an address", remedy, **facts)]
    if offline:
        remedy = "unset HF_HUB_OFFLINE to download"
        found.append(note("hub", "offline: only what was downloaded before can be used", remedy))
    if token == "none":
        remedy = "use `hf auth login` or set HF_TOKEN; without a token, only open models can be downloaded"
        found.append(note("hub", "no token: gated models will be refused", remedy))
    found += _room("hub", cache)
    return found


def _token_file(environment: Mapping[str, str]) -> bool:
    path = environment.get("HF_TOKEN_PATH") or str(hub_folder(environment, Path.home()).parent / "token")
    return os.path.isfile(os.path.expanduser(path))


def folders() -> list[Finding]:
    """Checks whether EdgeSpec's folders can be written."""
    found: list[Finding] = []
    for what, folder in (("cache", config.cache_folder()), ("state", config.state_folder())):
        there = _nearest(folder)
        if not os.access(there, os.W_OK):
            variable = f"EDGESPEC_{what.upper()}_DIR"
            remedy = f"make it writable, or name another folder with {variable}"
            found.append(problem("folders", f"the {what} folder {folder} cannot be written", remedy))
    return found or [good("folders", f"cache {config.cache_folder()}, state {config.state_folder()}")]


def _room(topic: str, folder: Path) -> list[Finding]:
    try:
        free = shutil.disk_usage(_nearest(folder)).free
    except OSError:
        return []
    if free >= ROOM:
        return []
    remedy = "make room there, or move the cache with HF_HOME"
    return [note(topic, f"{free / 1e9:.1f} GB of disk are free at {folder}", remedy, free=free)]


def _nearest(folder: Path) -> Path:
    """Returns the folder itself, or the nearest above it that exists."""
    return next((path for path in (folder, *folder.parents) if path.exists()), Path("/"))
