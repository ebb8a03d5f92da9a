"""How the web process behaves: who may ask, and how much."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from edgespec.engine.messages import DrafterChoice
from edgespec.server.logs import LogFormat


@dataclass(frozen=True, slots=True)
class Unsaid:
    """What holds where a request says nothing."""

    sampling: Mapping[str, str] = field(default_factory=dict)  # in the words of a model file's metadata
    seed: int | None = None
    max_tokens: int | None = None
    drafter: DrafterChoice = "auto"
    # whether a model that can thinks before it answers; None is its template's way
    thinking: bool | None = None
    fresh: bool = False  # of a prompt, only what a fresh reading would evaluate so is used again


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Everything that `edgespec serve` was told which is not about the engine."""

    alias: str | None = None  # the model's name for clients; None is the file's
    keys: tuple[str, ...] = ()  # any of them opens
    chat_template: str | None = None
    # names that a request may be for, besides addresses and this machine's own
    hosts: frozenset[str] = frozenset()
    origins: tuple[str, ...] = ()  # web pages that may ask
    max_body: int = 32 * 2**20
    body_s: float = 30.0
    request_s: float | None = None
    send_s: float = 60.0
    canary: float = 0.0
    unsaid: Unsaid = Unsaid()
    log: LogFormat = "quiet"
    idle_s: float | None = None  # seconds without a request after which the model is unloaded; None keeps it
    verbose: bool = False  # chats show prompts
    no_slots: bool = False  # those routes are closed
    no_metrics: bool = False
