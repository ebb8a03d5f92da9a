"""What the server says of itself: whether it runs, its figures, and that it is the one it says it is."""

import time
from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import JSONResponse, Response

from edgespec.client.state_file import PROOF_PATH, ServerState
from edgespec.server.answering import Answering
from edgespec.server.bodies import checked_router
from edgespec.server.own_calls import OWNER
from edgespec.server.refusal import closed, unavailable

RESPONDS_S = 2.0  # how long a worker may take to answer a ping


class OwnRoutes:
    """Answers monitors, and programs that have read the server's file."""

    def __init__(self, answering: Answering, state: ServerState) -> None:
        """state: what the server's file says of it."""
        self._answering, self._state, self._began = answering, state, int(time.time())

    def routes(self) -> APIRouter:
        """Returns the routes."""
        router = checked_router(
            ("GET", self.health, "/v1/health", "/health"),
            ("HEAD", self.health, "/v1/health", "/health"),
            ("GET", self.requests, "/edgespec/requests"),
        )
        hidden = (("GET", self.proof, PROOF_PATH), ("GET", self.figures, "/metrics"))
        router.include_router(checked_router(*hidden, shown=False))
        return router

    async def health(self) -> Response:
        """Says whether the engine runs."""
        current = self._answering.engines.current
        state: str = current.state  # if unloaded, the next request loads it
        if state == "unloaded" or (state == "ready" and await self._answering.engines.responds(RESPONDS_S)):
            return JSONResponse({"status": "ok"})
        if state == "ready" and current.state == "ready":
            state = "silent"
            refusal = unavailable("the engine does not respond: if it stays silent, it is restarted")
        else:
            state, refusal = current.state, current.absence()
        return JSONResponse({"status": state, **refusal.body()}, refusal.status, refusal.headers())

    async def proof(self, nonce: Annotated[str, Query(min_length=16, max_length=200)]) -> dict[str, str]:
        """Proves that this server wrote the file which a client has read."""
        return {"proof": self._state.proof(nonce)}

    async def requests(self) -> dict[str, Any]:
        """Lists the last requests of who asks: where their prompts' tokens were, and what broke a prefix."""
        if self._answering.settings.no_slots:
            raise closed("/edgespec/requests", "--no-slots")
        return {"requests": self._answering.metrics.last.of(OWNER.get())}

    async def figures(self) -> Response:
        """Returns Prometheus's figures."""
        if self._answering.settings.no_metrics:
            raise closed("/metrics", "--no-metrics")
        body, media_type = self._answering.metrics.text()
        began = {"process-start-time-unix": str(self._began)}  # as in llama-server
        return Response(body, headers={"content-type": media_type, **began})
