"""Where the engine stands: what a supervisor tells of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from edgespec.engine.messages import Load, Stage

State = Literal["loading", "ready", "down", "unloaded", "stopped"]


@dataclass(frozen=True, slots=True)
class Situation:
    """Where the engine stands at a moment."""

    # "loading" (also after a worker died), "ready", "down" (it died, and is started again soon), "unloaded"
    # (the next request loads), "stopped" (for ever)
    state: State
    load: Load  # the pair that is there, is being loaded, or is loaded by the next request that names none
    stage: Stage | None  # while it is being loaded, what is done now, and how much of the whole, 0 to 1
    progress: float
    next: Load | None  # the pair that waits until nothing is answered any more
    requests: int  # those answered or waiting
    error: str | None  # why the last load failed, in a sentence
