"""Ollama's routes, for the many programs that look for nothing else: /api/chat, /api/generate, /api/tags, ...

A model's name may have the tag `latest`. One that is not installed is refused, since programs choose from
the list of /api/tags.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from pydantic import BaseModel

from edgespec.chat.families.known import PLAIN
from edgespec.protocol.messages import Prompt, Submit
from edgespec.server.answering import Answering
from edgespec.server.bodies import checked_router
from edgespec.server.dialects.dialect import Dialect, with_pair
from edgespec.server.dialects.embeddings import in_pieces, texts_of
from edgespec.server.dialects.ollama.answers import (
    NANO,
    LineStream,
    OllamaAnswer,
    empty_answer,
    encoded,
    error_of,
    tagged,
)
from edgespec.server.dialects.ollama.models import listed, shown
from edgespec.server.dialects.ollama.requests import (
    NamedModel,
    OllamaChat,
    OllamaEmbed,
    OllamaFields,
    OllamaGenerate,
)
from edgespec.server.embeddings import Embedded, Text
from edgespec.server.filling import GapFields, fill_prompt
from edgespec.server.logs import say
from edgespec.server.pair_session import PairSession
from edgespec.server.refusal import Refusal
from edgespec.server.requests.chat import ChatRequest
from edgespec.server.turns import TurnReader
from edgespec.server.worker_life import WorkerLife
from edgespec_models.shelf.store import StoreError

if TYPE_CHECKING:
    from edgespec_models.hub.model_pull import ModelPull

SPOKEN = "0.13.0"  # the version of the API that this follows: clients ask whether a feature is there
NEVER_S = 100 * 365 * 86400  # from now, a model that stays loaded expires
MOST_SHOWN = 64  # options that are logged once each
PULSE_S = 0.5  # between two lines of a pull
AT_START = ("num_ctx", "num_batch", "num_gpu", "num_thread", "use_mmap", "main_gpu", "numa")


class OllamaDialect(Dialect):
    """Answers Ollama's clients."""

    errors: ClassVar = {"/api/": error_of}
    stream = LineStream

    def __init__(self, answering: Answering) -> None:
        super().__init__(answering)
        self._unused: set[str] = set()  # options that have been logged

    def streams(self, body: BaseModel) -> bool:
        return isinstance(body, OllamaFields) and body.stream is not False

    def routes(self) -> APIRouter:
        return checked_router(
            ("GET", self.version, "/version"),
            ("GET", self.tags, "/tags"),
            ("HEAD", self.version, "/version"),
            ("HEAD", self.tags, "/tags"),
            ("GET", self.running, "/ps"),
            ("POST", self.show, "/show"),
            ("POST", self.chat, "/chat"),
            ("POST", self.generate, "/generate"),
            ("POST", self.embed, "/embed"),
            ("POST", self.embed_one, "/embeddings"),
            ("POST", self.pull, "/pull"),
            ("DELETE", self.refused, "/delete"),
            ("POST", self.refused, "/copy", "/create", "/push"),
            prefix="/api",
        )

    # -- answers

    async def chat(self, wanted: OllamaChat, request: Request) -> Response:
        """Answers with the assistant's next turn, or only loads or unloads the model."""
        return await self._unless_unloading(wanted, request)

    async def generate(self, wanted: OllamaGenerate, request: Request) -> Response:
        """Answers one question, continues text, or fills a gap; or only loads or unloads the model."""
        return await self._unless_unloading(wanted, request)

    async def _unless_unloading(self, wanted: OllamaFields, request: Request) -> Response:
        if wanted.unloads:
            return self._nothing(wanted, self.answering.worker(wanted.model))
        return await self._answer(wanted, request)

    def _nothing(self, wanted: OllamaFields, worker: WorkerLife) -> Response:
        """Answers a request that says nothing: its model is loaded, or not kept any longer."""
        self._check(wanted, worker)
        reason, name = "unload" if wanted.idle_s == 0 else "load", self.answering.pairs.name_of(worker.load)
        return JSONResponse(empty_answer(tagged(name), chats=wanted.chats, reason=reason))

    @with_pair
    async def _answer(self, session: PairSession, wanted: OllamaFields, request: Request) -> Response:
        """Answers. After a question, it tells the tokens with which a later one goes on."""
        if wanted.silent:
            return self._nothing(wanted, session.worker)
        body = wanted.as_chat()
        submits, turn = await _submits(session, wanted, body)
        self._check(wanted, session.worker)
        prompt, add_bos = submits[0].prompt, submits[0].add_bos

        async def tokens(behind: Sequence[int]) -> list[int]:
            assert isinstance(prompt, str)
            return [*await session.worker.engine.tokenize(prompt, add_bos=add_bos), *behind]

        goes_on = not wanted.chats and isinstance(prompt, str) and not getattr(wanted, "raw", None)
        answer = OllamaAnswer(
            tagged(session.name),
            turn,
            wanted.chats,
            request.state.began,
            time.monotonic(),
            session.about.plain_s,
            tokens if goes_on else None,
        )
        return await session.answer(submits, answer, body, request, LineStream)

    def _check(self, wanted: OllamaFields, worker: WorkerLife) -> None:
        """Refuses a model that is not installed, and keeps one that is for as long as it is asked to; says
        once of each option that it means nothing here."""
        self.answering.pairs.named(wanted.model)
        if wanted.keep_alive is not None:
            self.answering.engines.keep(worker, wanted.idle_s)
        for name in wanted.unused():
            if name not in self._unused and len(self._unused) < MOST_SHOWN:
                self._unused.add(name)
                why = "chosen when the server starts" if name in AT_START else "not supported"
                say(f"option {name[:40]!r} of a request in Ollama's format is ignored: it is {why}")

    # -- models

    async def version(self) -> dict[str, str]:
        """Says which version of Ollama's API is spoken."""
        return {"version": SPOKEN}

    async def tags(self) -> dict[str, Any]:
        """Lists the installed pairs."""
        pairs = self.answering.pairs.known()
        files = [(pair.name, Path(pair.load.target), pair.size) for pair in pairs]
        if path := self.answering.embeddings.path:
            files.append((path.stem, path, self.answering.embeddings.size))
        return {"models": await asyncio.gather(*(asyncio.to_thread(listed, *file) for file in files))}

    async def running(self) -> dict[str, Any]:
        """Lists the loaded pairs."""
        workers = self.answering.engines.workers.values()
        ready = [(worker, worker.about) for worker in workers if worker.about and worker.state == "ready"]
        models = []
        for worker, about in ready:
            unused_s = 0.0 if worker.requests else time.monotonic() - worker.used
            left_s = NEVER_S if worker.idle_s is None else worker.idle_s - unused_s
            name, path = self.answering.pairs.name_of(worker.load), Path(worker.load.target)
            loaded = {
                "size": about.n_bytes,
                "size_vram": about.n_bytes if about.place else 0,
                "context_length": about.n_ctx,
                "expires_at": (datetime.now(UTC) + timedelta(seconds=left_s)).isoformat(),
            }
            models.append({**await asyncio.to_thread(listed, name, path, about.n_bytes), **loaded})
        return {"models": models}

    async def show(self, wanted: NamedModel) -> dict[str, Any]:
        """Describes a pair by its target's file."""
        name, embeddings = wanted.called(), self.answering.embeddings
        if embeddings.path and name == embeddings.name:
            model = await asyncio.to_thread(shown, embeddings.path, None)
            return {**model, "capabilities": ["embedding"]}
        load = self.answering.pairs.named(name)
        given = self.answering.settings.chat_template
        return await asyncio.to_thread(shown, Path(load.target), given, load.settings.mmproj)

    async def embed(self, wanted: OllamaEmbed, request: Request) -> Response:
        """Returns a vector for each text."""
        self._check_embedder(wanted)
        if wanted.input == []:
            return JSONResponse({"model": tagged(self.answering.embeddings.name), "embeddings": []})
        found = await self._embedded(wanted, texts_of(wanted.input))
        short = await found.shortened(wanted.dimensions)
        fields = {
            "model": tagged(self.answering.embeddings.name),
            "total_duration": round((time.monotonic() - request.state.began) * NANO),
            "load_duration": 0,
            "prompt_eval_count": found.n_tokens,
        }
        return in_pieces("embeddings", short.vectors, fields)

    async def embed_one(self, wanted: OllamaEmbed) -> dict[str, Any]:
        """Returns the vector of one text, in the older format."""
        self._check_embedder(wanted)
        return {"embedding": (await self._embedded(wanted, [wanted.prompt or ""])).vectors[0]}

    def _check_embedder(self, wanted: OllamaEmbed) -> None:
        """Refuses a model that is not the one of --embed: its vectors would mean something else."""
        name = self.answering.embeddings.name
        if name and wanted.model not in ("", name):
            sentence = f"no model {wanted.model!r} makes vectors here: {name!r} does (--embed)"
            raise Refusal(404, sentence, param="model", code="model_not_found")

    async def _embedded(self, wanted: OllamaEmbed, texts: Sequence[Text]) -> Embedded:
        if wanted.keep_alive is not None:
            self.answering.embeddings.keep(wanted.idle_s)
        return await self.answering.embeddings.embedded(texts, truncate=wanted.truncate is not False)

    async def refused(self, request: Request) -> Response:
        """Refuses what changes or publishes models: their files belong to the hub's cache."""
        sentence = f"{request.url.path} is not supported: `edgespec rm` and `edgespec pull` manage models"
        raise Refusal(501, sentence, code="unsupported")

    async def pull(self, wanted: NamedModel) -> Response:
        """Downloads a pair, with the first draft that fits; tells how far it is, in lines or at its end."""
        from edgespec_models.hub.errors import HubError  # these are a third of what a server imports
        from edgespec_models.hub.model_pull import ModelPull
        from edgespec_models.hub.pull import order
        from edgespec_models.shelf.catalogue import CatalogueError

        name = wanted.called()
        try:
            order(name)  # before an answer begins that cannot be a refusal any more
        except (HubError, CatalogueError, StoreError) as error:
            raise Refusal(404, str(error), param="model", code="model_not_found") from None
        lines = _pulled(ModelPull(name, self.answering.pairs.store))
        if wanted.stream is not False:
            return StreamingResponse(_encoded(lines), media_type=LineStream.kind)
        *_, last = [line async for line in lines]
        if "error" in last:
            raise Refusal(502, last["error"], code="pull_failed")
        return JSONResponse(last)


async def _submits(
    session: PairSession, wanted: OllamaFields, body: ChatRequest
) -> tuple[list[Submit], TurnReader]:
    """Returns the generations of a request, and who reads them: of a conversation, or of text alone."""
    if not isinstance(wanted, OllamaGenerate) or not (wanted.raw or wanted.suffix):
        submits, [turn], _ = await session.chat_submits(body)
        context = getattr(wanted, "context", None)
        return [replace(one, prompt=await _behind(session, context, one)) for one in submits], turn
    prompt: str | tuple[int, ...] = wanted.prompt or ""
    if wanted.suffix:
        gap = GapFields(input_prefix=wanted.prompt or "", input_suffix=wanted.suffix)
        prompt = await fill_prompt(session, gap, body.limit())
    submits = body.submits(prompt, add_bos=True, defaults=session.defaults)
    return submits, TurnReader(PLAIN.parser({}))


async def _behind(session: PairSession, context: Sequence[int] | None, submit: Submit) -> Prompt:
    """Returns a prompt with the text of earlier turns before it."""
    if not context:
        return submit.prompt
    assert isinstance(submit.prompt, str)
    earlier = b"".join(await session.worker.engine.spell(context)).decode("utf-8", "replace")
    bos = session.about.bos
    begins = bos if submit.prompt.startswith(bos) else ""  # a template may write it, at the start alone
    return begins + earlier.removeprefix(bos) + submit.prompt.removeprefix(begins)


async def _encoded(lines: AsyncIterator[dict[str, Any]]) -> AsyncIterator[bytes]:
    async with aclosing(lines) as each:  # type: ignore[type-var]  # it is a generator
        async for line in each:
            yield encoded(line)


async def _pulled(pull: ModelPull) -> AsyncIterator[dict[str, Any]]:
    """Yields how far a pull is, in Ollama's words, until its end. Whoever leaves before that ends it."""
    last, over = "", False
    try:
        while not over:
            over = pull.over  # read first: it may end in between
            if pull.stage == "choosing":
                pull.choose(pull.choices[0] if pull.choices else None)
            if pull.sentence != last:
                last = pull.sentence
                yield {"status": last}
            for file in pull.progress.files if pull.progress else ():
                at = {"digest": file.name, "total": file.size, "completed": file.done}
                yield {"status": f"pulling {file.name}", **at}
            await asyncio.sleep(0 if over else PULSE_S)
        yield {"status": "success"} if pull.stage == "done" else {"error": pull.sentence}
    finally:
        pull.cancel()
