"""The pairs, and which are loaded: listed, loaded and unloaded on request, with progress."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Literal

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse, Response
from pydantic import StrictBool, StrictStr
from sse_starlette import EventSourceResponse, ServerSentEvent

from edgespec.protocol.messages import LoadRequest
from edgespec.server.answering import Answering
from edgespec.server.bodies import checked_router
from edgespec.server.engine_status import EngineStatus, State
from edgespec.server.event_stream import NEWLINE, PING_S, done, event
from edgespec.server.front_page import FILES, FOLDER, HEADERS, ShownModel, front_page, now_section
from edgespec.server.pairs import KnownPair
from edgespec.server.refusal import Refusal, invalid
from edgespec.server.requests.fields import Fields
from edgespec.system.self_test import self_test
from edgespec_models.shelf.sizes import size_text


class ModelChange(Fields):
    """POST /edgespec/models. force: ends running answers instead of waiting for them."""

    action: Literal["load", "unload"] = "load"
    model: StrictStr | None = None
    force: StrictBool = False
    stream: StrictBool = False


class NamedModel(Fields):
    """POST /models/load and /models/unload, llama-server's."""

    model: StrictStr


class ModelRoutes:
    """The pairs, and the loaded ones."""

    def __init__(self, answering: Answering) -> None:
        self._answering, self._engines, self._pairs = answering, answering.engines, answering.pairs
        self._recent = answering.metrics.recent  # what the page draws
        self._began = int(time.time())

    def routes(self) -> APIRouter:
        """Returns the routes."""
        router = checked_router(
            ("GET", self.all, "/edgespec/models"),
            ("POST", self.change, "/edgespec/models"),
            ("GET", self.listed, "/v1/models", "/models"),
            ("POST", self.begin_loading, "/models/load"),
            ("POST", self.begin_unloading, "/models/unload"),
            ("GET", self.events, "/models/sse"),
            ("GET", self.one, "/v1/models/{name:path}", "/models/{name:path}"),
        )
        pages = checked_router(
            ("GET HEAD", self.page, "/"),
            ("GET HEAD", self.now, "/edgespec/page/now"),
            ("GET HEAD", self.file, "/edgespec/page/{name}"),
            shown=False,
        )
        router.include_router(pages)
        return router

    async def listed(self) -> dict[str, Any]:
        """Lists the pairs for OpenAI's and llama-server's clients, the loaded one first."""
        models = self._models()
        return {"object": "list", "data": models, "models": [_as_ollama(model) for model in models]}

    async def page(self, request: Request) -> Response:
        """Shows people that the server runs, and how to use it."""
        shown = None if self._answering.settings.keys else [_shown(model) for model in self._models()]
        root = f"{request.url.scheme}://{request.url.netloc}"
        page = front_page(root, self._engines.current.state, shown, self._recent.steps())
        return HTMLResponse(page, headers=HEADERS)

    async def now(self) -> Response:
        """Returns what changes on the page."""
        shown = [_shown(model) for model in self._models()]
        section = now_section(self._engines.current.state, shown, self._recent.steps())
        return HTMLResponse(section, headers=HEADERS)

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
        return {"object": "list", "data": self._models(), "engine": self._as_json(self._engines.status_of())}

    async def change(self, body: ModelChange) -> Response:
        """Loads or unloads; answers when it is done, or with events until it is."""
        load = self._pairs.named(body.model) if body.model else None

        async def work() -> None:
            if body.action == "load":
                await self._engines.load(load, force=body.force)
            else:
                await self._engines.unload(load, force=body.force)

        if body.stream:
            return EventSourceResponse(self._progress(work, load), ping=PING_S, sep=NEWLINE)
        await work()
        return JSONResponse(self._as_json(self._engines.status_of(load)))

    async def begin_loading(self, body: NamedModel) -> dict[str, bool]:
        """Begins to load a pair; its status says when that is done."""
        load = self._pairs.named(body.model)
        if self._engines.of(load).in_memory:
            raise invalid("model", "model is already running")
        self._apart(self._engines.load(load))
        return {"success": True}

    async def begin_unloading(self, body: NamedModel) -> dict[str, bool]:
        """Unloads a pair as soon as nobody uses it."""
        load = self._pairs.named(body.model)
        if not self._engines.of(load).in_memory:
            raise invalid("model", "model is not running")
        self._apart(self._engines.unload(load))
        return {"success": True}

    def _apart(self, work: Coroutine[Any, Any, object]) -> None:
        """Does what the caller does not wait for; the state says how it ended."""

        async def quietly() -> None:
            with suppress(Refusal):
                await work

        self._engines.apart(quietly())

    async def events(self) -> Response:
        """Tells each change of a pair's status, until the client leaves."""

        async def stream() -> AsyncIterator[ServerSentEvent]:
            async for now in self._engines.changes():
                about = {"status": _value(now.state), **_progress_of(now)}
                yield event({"model": self._pairs.name_of(now.load), "event": "model_status", "data": about})

        return EventSourceResponse(stream(), ping=PING_S, sep=NEWLINE)

    async def _progress(
        self, work: Callable[[], Coroutine[Any, Any, None]], load: LoadRequest | None
    ) -> AsyncIterator[ServerSentEvent]:
        """Yields the state until the work is done, and last its end or its error."""
        working = asyncio.ensure_future(work())
        changes = self._engines.changes(load)
        coming = asyncio.ensure_future(anext(changes))
        try:
            while not working.done():
                await asyncio.wait((working, coming), return_when=asyncio.FIRST_COMPLETED)
                if coming.done() and not working.done():
                    yield event(self._as_json(coming.result()))
                    coming = asyncio.ensure_future(anext(changes))
            try:
                await working
            except Refusal as refusal:
                yield event(refusal.body())
                return
            yield event(self._as_json(self._engines.status_of(load)))
            yield done()
        finally:
            for task in (working, coming):
                task.cancel()
            await asyncio.gather(working, coming, return_exceptions=True)

    def _as_json(self, now: EngineStatus) -> dict[str, Any]:
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
        """Describes all pairs, the current one first, then what else is loaded."""
        known, current = self._pairs.known(), self._engines.current.load
        first = [self._model(pair) for pair in known if pair.load == current]
        others = [self._model(pair) for pair in known if pair.load != current]
        return [*first, *sorted(others, key=lambda model: model["status"]["value"] == "unloaded")]

    def _model(self, pair: KnownPair) -> dict[str, Any]:
        """Returns a pair in OpenAI's format; `meta` is llama-server's, `status` its router's."""
        meta: dict[str, Any] = {"size": pair.size, "draft": pair.draft, "embedded": pair.embedded}
        worker = self._engines.workers.get(pair.load)
        now = worker and self._engines.status_of(pair.load)
        if worker and worker.about and worker.state == "ready":
            about = worker.about
            meta |= {
                "n_ctx": about.n_ctx,
                "n_vocab": about.n_vocab,
                "size": about.n_bytes,
                "draft": about.draft_name,
                "plain_s": about.plain_s,
                "card": about.place,
                "chat_template_source": self._answering.template_source(pair.load, about),
                "build_advice": self_test().advice,
                "beyond_trained": about.beyond_trained,
                "reads": about.reads,
                **about.meta,
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
            "status": {"value": _value(now.state), **_progress_of(now)} if now else {"value": "unloaded"},
            "meta": meta,
        }


def _value(state: State) -> str:
    """Returns llama-server's word for a state."""
    return {"ready": "loaded", "unloaded": "unloaded"}.get(state, "loading")


def _progress_of(now: EngineStatus) -> dict[str, Any]:
    """Returns how far loading is, as llama-server tells it; {} if nothing is loaded now."""
    return {"progress": {"current": now.stage, "value": now.progress}} if now.stage else {}


def _shown(model: Mapping[str, Any]) -> ShownModel:
    meta = model["meta"]
    about = [size_text(meta["size"])]
    if n_ctx := meta.get("n_ctx"):
        about.append(f"{n_ctx:,} tokens of context")
    if meta["draft"]:
        about.append(f"drafting with {meta['draft']}")
    progress = model["status"].get("progress")
    return ShownModel(model["id"], model["status"]["value"], ", ".join(about), progress and progress["value"])


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
