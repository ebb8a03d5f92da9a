"""How long a question waits for an engine that its server loads again: for as long as loading advances."""

from collections.abc import Callable

from edgespec.client.answer import EngineState
from edgespec.client.attach import Progress
from edgespec_models.shelf.store import EMBEDDED

AGAIN_S = 30.0  # how long a server may take to begin
STALLED_S = 120.0  # for the next hundredth: large models come from slow disks


class Patience:
    """Decides whether to wait on. An engine that dies again each time it is loaded is not waited for."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """clock: returns seconds."""
        self._clock, self._furthest = clock, -1.0
        self._until = clock() + AGAIN_S

    def lasts(self, engine: EngineState | None) -> bool:
        """Returns whether to wait on. engine: its state now; None if that is unknown."""
        if engine is not None and engine.state == "loading" and engine.progress > self._furthest:
            self._furthest = engine.progress
            self._until = self._clock() + STALLED_S
        return self._clock() < self._until


def awaited(engine: EngineState | None) -> Progress:
    """Returns what is waited for, in words."""
    if engine is not None and engine.state == "loading":
        model = "the embedded pair" if engine.model == EMBEDDED else engine.model
        return Progress("loading", f"waiting for the engine: it is loading {model}", engine.progress)
    return Progress("waiting", "waiting for the engine: it stopped, and is being started again")
