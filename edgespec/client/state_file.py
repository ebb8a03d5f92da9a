"""Where a running server is, for programs of the same user: one small file for each, readable by nobody else.

A file may outlive its server, and another program may have its port by then. So a client sends nothing of
its own before the server has shown that it knows the file's secret: it asks for the proof of a random
number. The secret itself never goes over the wire; `key` opens a server that requires keys.
"""

import hashlib
import hmac
import json
import secrets
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from edgespec.system import config
from edgespec_models.checked_value import kept_value
from edgespec_models.kept_file import write_whole

PROOF_PATH = "/edgespec/proof"


@dataclass(frozen=True, slots=True)
class ServerState:
    """One server that runs, or ran."""

    host: str
    port: int
    pid: int
    model: str
    target: str = ""  # paths of what it was started with
    draft: str | None = None
    n_ctx: int = 0  # tokens that a request may use
    private: bool = False  # it was started by a program for itself, and ends with it
    template: str = ""  # the digest of a chat template used instead of the model's
    # it has the default context for model and machine, not one that somebody asked for
    usual: bool = False
    secret: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    key: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)

    def proof(self, nonce: str) -> str:
        """Returns what only a holder of the secret can compute for a nonce."""
        return hmac.new(self.secret.encode(), nonce.encode(), hashlib.sha256).hexdigest()

    def proves(self, nonce: str, proof: str) -> bool:
        return hmac.compare_digest(self.proof(nonce).encode(), proof.encode())


def digest(template: str) -> str:
    """Returns a digest that identifies a chat template."""
    return hashlib.sha256(template.encode("utf-8", "replace")).hexdigest()


def _folder() -> Path:
    return config.state_folder() / "servers"


class Announcement:
    """The file of a server while it runs. Closing it removes the file."""

    def __init__(self) -> None:
        self._written: tuple[Path, str] | None = None  # where, and the secret

    def write(self, state: ServerState) -> Path:
        """Writes the file, replacing what this server wrote before. Raises OSError if that fails."""
        folder = _folder()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = folder / f"{state.port}.json"
        write_whole(path, json.dumps(asdict(state)), sync=False)
        self._written = path, state.secret
        return path

    def close(self) -> None:
        if self._written:
            path, secret = self._written
            with suppress(OSError):
                there = kept_value(ServerState, path)
                if there and there.secret == secret:  # else another server has this port now
                    path.unlink()


def states() -> list[ServerState]:
    """Returns the servers that have a file, the newest first; some may be gone."""
    with suppress(OSError):
        files = sorted(_folder().glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True)
        return [state for path in files if (state := kept_value(ServerState, path))]
    return []
