"""The state of the engine, as a supervisor reports it."""

from dataclasses import dataclass
from typing import Literal

from edgespec.protocol.messages import LoadRequest, Stage

State = Literal["loading", "ready", "down", "unloaded", "stopped"]


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """The state of the engine at one moment."""

    # "loading" (also after a worker died), "ready", "down" (it died, and restarts soon), "unloaded"
    # (the next request loads), "stopped" (for ever)
    state: State
    load: LoadRequest  # the pair that is loaded, is being loaded, or comes with a request that names none
    stage: Stage | None  # while it loads: the current stage, and the part of the whole that is done, 0 to 1
    progress: float
    next: LoadRequest | None  # the pair that waits until all answers have ended
    requests: int  # running or waiting
    error: str | None  # why the last load failed, in a sentence
