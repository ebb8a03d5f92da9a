"""How the web process behaves: who may ask, and how much."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from edgespec.core.values import DrafterName
from edgespec.pairs.adapters import Scales
from edgespec.server.logs import LogFormat

# In place of an origin: pages of installed programs (Obsidian, Tauri, VS Code), which no web site can have.
PROGRAMS = "programs"


@dataclass(frozen=True, slots=True)
class RequestDefaults:
    """The defaults of a request."""

    sampling: Mapping[str, str] = field(default_factory=dict)  # under the names of a model file's metadata
    seed: int | None = None
    max_tokens: int | None = None
    drafter: DrafterName = "auto"
    # whether a reasoning model reasons before it answers; None leaves it to its template
    thinking: bool | None = None
    adapters: Scales = ()  # of the pair's LoRA adapters
    fresh: bool = False  # reuse only what a fresh reading of the prompt would evaluate the same way


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """The settings of `edgespec serve` that do not concern the engine."""

    alias: str | None = None  # the model's name for clients; None is the file's
    keys: tuple[str, ...] = ()  # any of them opens
    chat_template: str | None = None
    embed: Path | None = None  # the model of embeddings
    rerank: Path | None = None
    # names that a request's Host may have, besides addresses and this machine's own
    hosts: frozenset[str] = frozenset()
    media_hosts: frozenset[str] = frozenset()  # from which pictures may be fetched that clients name
    origins: tuple[str, ...] = ()  # web pages that may ask
    max_body: int = 32 * 2**20
    body_s: float = 30.0
    request_s: float | None = None
    send_s: float = 60.0
    canary: float = 0.0
    defaults: RequestDefaults = RequestDefaults()
    log: LogFormat = "quiet"
    idle_s: float | None = None  # seconds without a request after which the model is unloaded; None keeps it
    models_max: int = 1  # in memory at the same time
    normalize: bool = True  # volatile lines of system prompts are left out or moved: see `normalization.py`
    share_lookup: bool = False  # guesses for one key may come from texts of another
    strict_calls: bool = True  # a grammar keeps calls to the tools and their schemas
    verbose: bool = False  # chats show prompts
    slot_folder: Path | None = None  # where slots' texts may be saved
    no_slots: bool = False  # those routes are closed
    no_metrics: bool = False
