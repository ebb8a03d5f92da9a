"""What is around the program: running servers, the settings for the hub, folders."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import psutil

from edgespec.client.client import Client, proves
from edgespec.client.state_file import ServerState, states
from edgespec.commands.doctor.findings import Finding, good, note, problem
from edgespec.errors import EndpointError
from edgespec.system import config
from edgespec_models.shelf.found import hub_folder

PAGE = "docs/pairs.md"  # what these settings do
ROOM = 5 << 30  # bytes of disk that a usual pair takes


def endpoint() -> list[Finding]:
    """Checks the servers of this user that have a file."""
    found = [_server(state) for state in states()]
    return found or [note("endpoint", "no server runs (`edgespec serve` starts one)")]


def _server(state: ServerState) -> Finding:
    where = f"http://{state.host}:{state.port}/v1"
    facts = {"where": where, "pid": state.pid, "model": state.model}
    try:
        if proves(state):
            info = Client.of(state).info()
            guessing = f", {info.draft} guesses" if info.draft else ", no draft"
            return good("endpoint", f"{info.model} answers at {where}{guessing}", draft=info.draft, **facts)
        reason = "it does not"
    except EndpointError as error:
        reason = str(error)
    if not psutil.pid_exists(state.pid):
        text = f"a server at {where} (process {state.pid}) has gone without notice; its file is ignored"
        return note("endpoint", text, "`edgespec serve` starts a new one", **facts)
    text = f"process {state.pid} should answer at {where}: {reason}"
    remedy = f"stop it (kill {state.pid}) and start `edgespec serve` again; its terminal may say why"
    return problem("endpoint", text, remedy, **facts)


def hub(environment: Mapping[str, str] = os.environ) -> list[Finding]:
    """Shows what `edgespec pull` will use, which itself reports what is wrong with it."""
    cache = hub_folder(environment, Path.home()).expanduser()
    token_file = Path(environment.get("HF_TOKEN_PATH") or cache.parent / "token").expanduser()
    token = "HF_TOKEN" if environment.get("HF_TOKEN") else "a file" if token_file.is_file() else "none"
    address = environment.get("HF_ENDPOINT") or "https://huggingface.co"
    offline = environment.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")
    free = shutil.disk_usage(_nearest(cache)).free
    text = f"{address}{' (offline)' if offline else ''}, token: {token}, {free / 1e9:.1f} GB free for {cache}"
    facts = {"endpoint": address, "offline": offline, "cache": str(cache), "token": token, "free": free}
    limited = offline or free < ROOM
    return [Finding("hub", "note" if limited else "good", text, PAGE if limited else "", facts)]


def folders() -> list[Finding]:
    """Checks whether EdgeSpec's folders can be written."""
    named = {"cache": config.cache_folder(), "state": config.state_folder()}
    text = ", ".join(f"{what} {folder}" for what, folder in named.items())
    shut = [what for what, folder in named.items() if not os.access(_nearest(folder), os.W_OK)]
    if not shut:
        return [good("folders", text)]
    remedy = f"make it writable, or name another with EDGESPEC_{shut[0].upper()}_DIR"
    return [problem("folders", f"{text}: the {shut[0]} folder cannot be written", remedy)]


def _nearest(folder: Path) -> Path:
    """Returns the folder itself, or the nearest above it that exists."""
    return next(path for path in (folder, *folder.parents, Path.cwd()) if path.exists())
