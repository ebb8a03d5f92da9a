"""The routes: what is asked, by whom it is answered, and every mistake in OpenAI's error shape."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Sequence
from typing import Annotated, Any, TypeVar

from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from sse_starlette import EventSourceResponse
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from edgespec import __version__
from edgespec.chat import Message, render
from edgespec.errors import TemplateError
from edgespec.messages import DrafterChoice, Loaded, Submit
from edgespec.server.gate import gated
from edgespec.server.generation import Generation
from edgespec.server.logs import Logged
from edgespec.server.metrics import Metrics
from edgespec.server.openai_answers import Answer
from edgespec.server.openai_requests import ChatRequest, CompletionRequest, Wishes
from edgespec.server.refusal import Refusal
from edgespec.server.settings import ServerSettings
from edgespec.server.supervisor import Supervisor
from edgespec.state_file import PROOF_PATH, ServerState

_T = TypeVar("_T")
GONE = 499  # nginx's number for a client that closed its connection: nobody reads it
PING_S = 15
SHOWN = 100  # characters of a wrong value that an error quotes


def make_app(worker: Supervisor, settings: ServerSettings, state: ServerState) -> ASGIApp:
    """Returns the whole web application, behind its gate. state: what the server's file says of it."""
    app = FastAPI(
        title="EdgeSpec",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        max_body_size=2 * settings.max_body,  # the gate is first, and says so in the right shape
        telemetry={"tracing": False, "metrics": False, "logs": False, "operation_spans": False},
    )
    app.add_exception_handler(Refusal, _refusal)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(Exception, _fault)
    _add_routes(app, Endpoint(worker, settings, state))
    return Logged(gated(app, settings, own_key=state.key))


def _add_routes(app: FastAPI, endpoint: Endpoint) -> None:
    app.add_api_route(PROOF_PATH, endpoint.proof, include_in_schema=False, response_model=None)
    app.add_api_route("/metrics", endpoint.figures, include_in_schema=False, response_model=None)
    app.add_api_route("/edgespec/count", endpoint.count, methods=["POST"], response_model=None)
    for prefix in ("/v1", ""):  # both are in use: some clients are told the root, some add /v1
        visible = prefix == "/v1"
        for path, handler, method in (
            ("/chat/completions", endpoint.chat, "POST"),
            ("/completions", endpoint.complete, "POST"),
            ("/models", endpoint.models, "GET"),
            ("/health", endpoint.health, "GET"),
        ):
            app.add_api_route(
                prefix + path, handler, methods=[method], include_in_schema=visible, response_model=None
            )


class Endpoint:
    """Answers requests with what the worker says."""

    def __init__(self, worker: Supervisor, settings: ServerSettings, state: ServerState) -> None:
        self._worker, self._settings, self._state = worker, settings, state
        self.metrics = Metrics(worker)
        self._random = random.Random()
        self._began = int(time.time())

    def _loaded(self) -> Loaded:
        if self._worker.about is None or self._worker.state != "ready":
            raise self._worker.absence()
        return self._worker.about

    async def health(self) -> Response:
        """Says whether the engine is there."""
        if self._worker.state == "ready":
            return JSONResponse({"status": "ok"})
        refusal = self._worker.absence()
        return JSONResponse(
            {"status": self._worker.state, **refusal.body()}, refusal.status, refusal.headers()
        )

    async def models(self) -> dict[str, Any]:
        """Lists the one model there is."""
        about = self._worker.about
        if about is None:
            raise self._worker.absence()
        meta = {"n_ctx": about.n_ctx, "n_ctx_train": about.n_ctx_train, "n_vocab": about.n_vocab,
                "size": about.n_bytes, "draft": about.draft_name, "plain_s": about.plain_s,
                "embedded": self._settings.embedded}  # fmt: skip
        model = {"id": self._name(about), "object": "model", "created": self._began,
                 "owned_by": "edgespec", "meta": meta}  # fmt: skip
        return {"object": "list", "data": [model]}

    async def proof(self, nonce: Annotated[str, Query(min_length=16, max_length=200)]) -> dict[str, str]:
        """Shows that this server wrote the file which a client has read."""
        return {"proof": self._state.proof(nonce)}

    async def figures(self) -> Response:
        """Tells Prometheus what was done."""
        body, media_type = self.metrics.text()
        return Response(body, headers={"content-type": media_type})

    def _name(self, about: Loaded) -> str:
        return self._settings.alias or about.name

    def _drafter(self) -> DrafterChoice:
        """Returns who guesses where a request does not say: nobody, for the share that compares."""
        return "none" if self._random.random() < self._settings.canary else self._settings.drafter

    async def chat(self, wishes: ChatRequest, request: Request) -> Response:
        """Says the assistant's next turn."""
        wishes.check()
        about = self._loaded()
        text, add_bos = await self._prompt(about, wishes)
        submits = wishes.submits(text, add_bos=add_bos, of_model=about.sampling, drafter=self._drafter())
        answer = Answer(
            "chat", self._name(about), about.plain_s,
            usage=wishes.usage_in_stream, events=wishes.speculation.events, scoring=wishes.scoring(),
        )  # fmt: skip
        return await self._answer(wishes, submits, answer, request)

    async def count(self, wishes: ChatRequest) -> dict[str, int]:
        """Says how many tokens the prompt of a conversation has; evaluates nothing."""
        about = self._loaded()
        text, add_bos = await self._prompt(about, wishes)
        tokens = await self._worker.tokenize(text, add_bos=add_bos)
        return {"n_tokens": len(tokens), "n_ctx": about.n_ctx}

    async def _prompt(self, about: Loaded, wishes: ChatRequest) -> tuple[str, bool]:
        """Returns a conversation as its template has it, and whether the start token goes in front."""
        messages = [message.for_template() for message in wishes.messages]
        text = await asyncio.to_thread(self._render, about, messages)
        return text, not (about.bos and text.startswith(about.bos))  # most templates write it themselves

    def _render(self, about: Loaded, messages: Sequence[Message]) -> str:
        template = self._settings.chat_template or about.chat_template
        if not template:
            sentence = f"{about.name} has no chat template: name one with --chat-template-file"
            raise Refusal(400, sentence, code="no_chat_template")
        try:
            return render(template, messages, bos=about.bos, eos=about.eos)
        except TemplateError as error:
            raise Refusal(400, str(error), param="messages", code="template_refused") from None

    async def complete(self, wishes: CompletionRequest, request: Request) -> Response:
        """Lets text go on."""
        wishes.check()
        about = self._loaded()
        prompts = wishes.prompts()
        submits = [
            submit
            for prompt in prompts
            for submit in wishes.submits(
                prompt, add_bos=True, of_model=about.sampling, drafter=self._drafter()
            )
        ]
        echo = tuple(str(submit.prompt).encode("utf-8", "replace").decode() for submit in submits)
        answer = Answer(
            "text", self._name(about), about.plain_s,
            usage=wishes.usage_in_stream, events=wishes.speculation.events, echo=echo if wishes.echo else (),
            scoring=wishes.scoring(),
        )  # fmt: skip
        return await self._answer(wishes, submits, answer, request)

    async def _answer(
        self, wishes: Wishes, submits: Sequence[Submit], answer: Answer, request: Request
    ) -> Response:
        generation = Generation(self._worker, submits, self.metrics, seconds=self._settings.request_s)
        await generation.submit()
        request.state.generation = generation  # for its line in the log
        if wishes.stream:
            return _Stream(answer, generation, self._settings.send_s)
        whole = await _unless_gone(request, answer.whole(generation))
        return Response(status_code=GONE) if whole is None else JSONResponse(whole)


class _Stream(EventSourceResponse):
    """A stream that leaves no request behind, also where it was never begun."""

    def __init__(self, answer: Answer, generation: Generation, send_s: float) -> None:
        super().__init__(answer.stream(generation), ping=PING_S, sep="\n", send_timeout=send_s)
        self._generation = generation

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        except TimeoutError:  # the client does not read
            pass
        finally:
            self._generation.close()


async def _unless_gone(request: Request, work: Awaitable[_T]) -> _T | None:
    """Returns what `work` gives, or None where the client left before: then it is cancelled."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    working, watching = asyncio.ensure_future(work), asyncio.ensure_future(gone())
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


# -- mistakes


async def _refusal(_: Request, refusal: Exception) -> Response:
    assert isinstance(refusal, Refusal)
    return JSONResponse(refusal.body(), refusal.status, refusal.headers())


async def _invalid(_: Request, error: Exception) -> Response:
    """Names the first field that is wrong, and what it holds."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        sentence = f"the body is no JSON: {first['ctx']['error']} at character {first['loc'][-1]}"
        return await _refusal(_, Refusal(400, sentence, code="invalid_json"))
    path = [str(step) for step in first["loc"][1:]]
    field = ".".join(step for step in path if step.isidentifier() or step.isdigit()) or "the body"
    given = repr(first["input"])
    shown = given if len(given) <= SHOWN else given[:SHOWN] + "..."
    missing = first["type"] == "missing"
    sentence = f"{field} is missing" if missing else f"{field} is {shown}: {first['msg']}"
    param = path[0] if path else None
    code = "missing_required_parameter" if missing else "invalid_value"
    return await _refusal(_, Refusal(400, sentence, param=param, code=code))


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    where = f"{request.method} {request.url.path}"
    sentence = {404: f"there is nothing at {where}", 405: f"{where} is not how this is asked"}.get(
        error.status_code, str(error.detail)
    )
    refusal = Refusal(error.status_code, sentence)
    return JSONResponse(refusal.body(), error.status_code, {**refusal.headers(), **(error.headers or {})})


async def _fault(request: Request, error: Exception) -> Response:
    id = request.state.request_id
    sentence = f"a fault of EdgeSpec's own ({type(error).__name__}): its log has more under {id}"
    return await _refusal(request, Refusal(500, sentence, type="server_error", code="internal_error"))
