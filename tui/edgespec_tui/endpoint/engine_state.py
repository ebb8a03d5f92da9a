"""Whether there is an engine: it is being prepared, it is there, or it is gone and why."""

import asyncio
import re
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from edgespec.client.answer import Info
from edgespec.errors import EdgeSpecError
from edgespec_tui.endpoint.endpoint import Endpoint

EMBEDDED = "embedded pair"  # its files are called target and draft
LENT = "This engine belongs to another window and ends with it; a new one then starts here."
GROWN = re.compile(r"-[0-9a-f]{12}$")
State = Literal["starting", "ready", "gone"]


def shown(name: str) -> str:
    """Returns a model's name without the digits that only tell files apart: those of grown pairs."""
    return GROWN.sub("", name)


@dataclass(slots=True)
class KnownEngine:
    """Owns what is known of the engine. on_change: called after each change."""

    endpoint: Endpoint
    on_change: Callable[[], None]
    state: State = "starting"
    info: Info | None = None
    reason: str = ""
    _settled: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def model(self) -> str:
        """The model's name; "" while unknown."""
        if self.info is None:
            return ""
        return EMBEDDED if self.info.embedded else shown(self.info.model)

    @property
    def is_foreign(self) -> bool:
        """True if it is a server of another kind, which reports no speculation data."""
        return self.info is not None and not self.info.speculates

    @property
    def names(self) -> str:
        """The names of target and draft."""
        if self.info is None:
            return ""
        draft = "" if self.info.embedded else shown(self.info.draft or "")
        return f"{self.model} + {draft}" if draft else self.model

    async def start(self, *, again: bool = False) -> None:
        """Prepares the engine; an error becomes the reason."""
        await self._open(self.endpoint.restart if again else self.endpoint.start)

    async def use(self, target: Path, draft: Path | None) -> None:
        """Continues with another pair; an error becomes the reason."""
        await self._open(lambda: self.endpoint.use(target, draft))

    async def choose(self, model: str) -> None:
        """Continues with another model of the server; an error becomes the reason."""
        await self._open(lambda: self.endpoint.choose(model))

    async def _open(self, opening: Callable[[], Coroutine[Any, Any, Info]]) -> None:
        self.state, self.reason = "starting", ""
        self._settled.clear()
        self.on_change()
        try:
            self.info = await opening()
            self.state = "ready"
        except EdgeSpecError as error:
            self.state, self.reason = "gone", str(error)
        self._settled.set()
        self.on_change()

    def lost(self, error: EdgeSpecError) -> None:
        """Notes that the engine is gone."""
        self.state, self.reason = "gone", str(error)
        self.on_change()

    async def ready(self) -> bool:
        """Waits until it is there (True) or cannot be (False)."""
        await self._settled.wait()
        return self.state == "ready"
