"""The pairs, and which one is loaded: listed, loaded and unloaded on request, with progress."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, Literal

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse, Response
from pydantic import BaseModel, StrictBool, StrictStr
from sse_starlette import EventSourceResponse, ServerSentEvent

from edgespec.engine.messages import Loaded, LoadRequest
from edgespec.server.answering import PING_S, Answering
from edgespec.server.bodies import checked_router
from edgespec.server.engine_status import EngineStatus
from edgespec.server.events import NEWLINE, done, event
from edgespec.server.front_page import FILES, FOLDER, HEADERS, ShownModel, front_page, now_section
from edgespec.server.pairs import KnownPair
from edgespec.server.recent import Recent
from edgespec.server.refusal import Refusal
from edgespec.system.self_test import self_test
from edgespec_models.shelf.sizes import size_text


class ModelChange(BaseModel):
    """POST /edgespec/models. force: ends running answers instead of waiting for them."""

    action: Literal["load", "unload"] = "load"
    model: StrictStr | None = None
    force: StrictBool = False
    stream: StrictBool = False


class ModelRoutes:
    """The pairs, and the loaded one."""

    def __init__(self, answering: Answering, recent: Recent) -> None:
        """recent: what the page draws."""
        self._recent = recent
        self._answering, self._worker, self._pairs = answering, answering.worker, answering.pairs
        self._began = int(time.time())

    def routes(self) -> APIRouter:
        """Returns the routes."""
        router = checked_router(
            ("GET", "/edgespec/models", self.all),
            ("POST", "/edgespec/models", self.change),
            ("GET", "/v1/models", self.listed),
            ("GET", "/models", self.listed),
            ("GET", "/v1/models/{name:path}", self.one),
            ("GET", "/models/{name:path}", self.one),
        )
        for path, shown in (
            ("", self.page),
            ("edgespec/page/now", self.now),
            ("edgespec/page/{name}", self.file),
        ):
            router.add_api_route(
                f"/{path}", shown, methods=["GET", "HEAD"], include_in_schema=False, response_model=None
            )
        return router

    async def listed(self) -> dict[str, Any]:
        """Lists the pairs for OpenAI's and llama-server's clients, the loaded one first."""
        models = self._models()
        return {"object": "list", "data": models, "models": [_as_ollama(model) for model in models]}

    async def page(self, request: Request) -> Response:
        """Shows people that the server runs, and how to use it."""
        shown = None if self._answering.settings.keys else [_shown(model) for model in self._models()]
        root = f"{request.url.scheme}://{request.url.netloc}"
        page = front_page(root, self._worker.state, shown, self._recent.steps())
        return HTMLResponse(page, headers=HEADERS)

    async def now(self) -> Response:
        """Returns what changes on the page."""
        shown = [_shown(model) for model in self._models()]
        return HTMLResponse(now_section(self._worker.state, shown, self._recent.steps()), headers=HEADERS)

    async def file(self, name: str) -> Response:
        """Returns a file of the page."""
        if name not in FILES:
            raise HTTPException(404)
        return FileResponse(FOLDER / name, media_type=FILES[name], headers=HEADERS)

    async def one(self, name: str) -> dict[str, Any]:
        """Describes one pair, as `models.retrieve` of OpenAI's and Anthropic's clients asks."""
        found = next((model for model in self._models() if model["id"] == name), None)
        if found is None:
            self._pairs.named(name)  # raises, with the names
            raise Refusal(404, f"there is no model {name!r} here", param="model", code="model_not_found")
        return found

    async def all(self) -> dict[str, Any]:
        """Lists the pairs, with the engine's state."""
        return {"object": "list", "data": self._models(), "engine": self._told(self._worker.status)}

    async def change(self, body: ModelChange) -> Response:
        """Loads or unloads; answers when it is done, or with events until it is."""
        load = self._pairs.named(body.model) if body.model else None

        async def work() -> None:
            if body.action == "load":
                await self._worker.load(load, force=body.force)
            else:
                await self._worker.unload(force=body.force)

        if body.stream:
            return EventSourceResponse(self._progress(work), ping=PING_S, sep=NEWLINE)
        await work()
        return JSONResponse(self._told(self._worker.status))

    async def _progress(
        self, work: Callable[[], Coroutine[Any, Any, None]]
    ) -> AsyncIterator[ServerSentEvent]:
        """Yields the state until the work is done, and last its end or its error."""
        working = asyncio.ensure_future(work())
        changes = self._worker.changes()
        coming = asyncio.ensure_future(anext(changes))
        try:
            while not working.done():
                await asyncio.wait((working, coming), return_when=asyncio.FIRST_COMPLETED)
                if coming.done() and not working.done():
                    yield event(self._told(coming.result()))
                    coming = asyncio.ensure_future(anext(changes))
            try:
                await working
            except Refusal as refusal:
                yield event(refusal.body())
                return
            yield event(self._told(self._worker.status))
            yield done()
        finally:
            for task in (working, coming):
                task.cancel()
            await asyncio.gather(working, coming, return_exceptions=True)

    def _told(self, now: EngineStatus) -> dict[str, Any]:
        return {
            "state": now.state,
            "model": self._pairs.name_of(now.load),
            "stage": now.stage,
            "progress": now.progress,
            "next": self._pairs.name_of(now.next) if now.next else None,
            "requests": now.requests,
            "last_error": now.error,  # not "error": that means, in an event, that this request failed
        }

    def _models(self) -> list[dict[str, Any]]:
        now = self._worker.status
        about = self._worker.about if now.state == "ready" else None
        models = [self._model(pair, now.load, now.state, about) for pair in self._pairs.known()]
        return sorted(models, key=lambda model: model["status"]["value"] == "unloaded")

    def _model(self, pair: KnownPair, there: LoadRequest, state: str, about: Loaded | None) -> dict[str, Any]:
        """Returns a pair in OpenAI's format; `meta` is llama-server's, `status` its router's."""
        meta: dict[str, Any] = {"size": pair.size, "draft": pair.draft, "embedded": pair.embedded}
        value = "unloaded"
        if pair.load == there:
            value = {"ready": "loaded", "unloaded": "unloaded"}.get(state, "loading")
            if about:
                meta |= {
                    "n_ctx": about.n_ctx,
                    "n_ctx_train": about.n_ctx_train,
                    "n_vocab": about.n_vocab,
                    "size": about.n_bytes,
                    "draft": about.draft_name,
                    "plain_s": about.plain_s,
                    "break_even": about.break_even and asdict(about.break_even),
                    "card": about.place,
                    "chat_template_source": self._answering.template_source(about),
                    "build_advice": self_test().advice,
                    "beyond_trained": about.beyond_trained,
                    "reads": about.reads,
                }
        began = datetime.fromtimestamp(self._began, UTC).isoformat().replace("+00:00", "Z")
        return {
            "id": pair.name,
            "object": "model",
            "created": self._began,
            "owned_by": "edgespec",
            "type": "model",
            "display_name": pair.name,
            "created_at": began,  # Anthropic's name
            "status": {"value": value},
            "meta": meta,
        }


def _shown(model: Mapping[str, Any]) -> ShownModel:
    meta = model["meta"]
    about = [size_text(meta["size"])]
    if n_ctx := meta.get("n_ctx"):
        about.append(f"{n_ctx:,} tokens of context")
    if meta["draft"]:
        about.append(f"drafting with {meta['draft']}")
    return ShownModel(model["id"], model["status"]["value"], ", ".join(about))


def _as_ollama(model: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a model in Ollama's format, as llama-server does: some clients look for nothing else."""
    return {
        "name": model["id"],
        "model": model["id"],
        "modified_at": model["created_at"],
        "size": model["meta"]["size"],
        "digest": "",
        "type": "model",
        "description": "",
        "tags": [],
        "capabilities": ["completion", *["multimodal"] * bool(model["meta"].get("reads"))],
        "parameters": "",
        "details": {
            "parent_model": "",
            "format": "gguf",
            "family": "",
            "families": [],
            "parameter_size": "",
            "quantization_level": "",
        },
    }
