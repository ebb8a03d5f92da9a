"""The routes, and every error in OpenAI's format."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from edgespec import __version__
from edgespec.client.state_file import PROOF_PATH, ServerState
from edgespec.engine.messages import Submit
from edgespec.server.answering import Answering, with_pair
from edgespec.server.bodies import prepare
from edgespec.server.dialects.anthropic.routes import AnthropicDialect
from edgespec.server.dialects.embeddings import EmbeddingDialect
from edgespec.server.dialects.llama_cpp.requests import ALIASES
from edgespec.server.dialects.llama_cpp.routes import LlamaCppDialect
from edgespec.server.dialects.ollama.routes import OllamaDialect
from edgespec.server.dialects.openai.answers import CompletionAnswer
from edgespec.server.dialects.openai.chat import ChatAnswer, FillAnswer
from edgespec.server.dialects.openai.requests import ChatRequest, CompletionRequest, FillRequest
from edgespec.server.dialects.responses.routes import ResponsesDialect
from edgespec.server.embeddings import Embeddings
from edgespec.server.filling import FillIn, GapFields
from edgespec.server.gate import gated
from edgespec.server.logs import Logged
from edgespec.server.metrics import Metrics
from edgespec.server.model_routes import ModelRoutes
from edgespec.server.pairs import Pairs
from edgespec.server.refusal import Refusal, closed, quoted, unavailable
from edgespec.server.settings import ServerSettings
from edgespec.server.supervisor import Supervisor
from edgespec.server.turns import readers

TYPES = frozenset({"int", "float", "str", "bool", "dict", "list"})  # not part of a field's name
HEARS_S = 2.0  # how long a worker may take to answer a ping
WRONG_TYPE = ("_type", "_parsing", "literal_error", "model_attributes_type")  # ends of pydantic's names


def make_app(
    worker: Supervisor, settings: ServerSettings, state: ServerState, pairs: Pairs, embeddings: Embeddings
) -> ASGIApp:
    """Returns the whole web application, behind its checks. state: what the server's file says of it."""
    app = FastAPI(
        title="EdgeSpec",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        max_body_size=None,  # the gate limits it, with an error in the right format
        telemetry={"tracing": False, "metrics": False, "logs": False, "operation_spans": False},
    )
    app.add_exception_handler(Refusal, _refusal)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(Exception, _fault)
    endpoint = WebEndpoint(worker, settings, state, pairs, embeddings)
    prepare(app, endpoint.answering.longest, worker.count_large_body)
    _add_routes(app, endpoint, ModelRoutes(endpoint.answering))
    for dialect in (LlamaCppDialect, AnthropicDialect, ResponsesDialect, OllamaDialect):
        app.include_router(dialect(endpoint.answering).routes())
    app.include_router(EmbeddingDialect(embeddings).routes())
    return Logged(gated(app, settings, own_key=state.key))


def _add_routes(app: FastAPI, endpoint: WebEndpoint, models: ModelRoutes) -> None:
    app.add_api_route("/", models.page, methods=["GET", "HEAD"], include_in_schema=False, response_model=None)
    app.add_api_route(PROOF_PATH, endpoint.proof, include_in_schema=False, response_model=None)
    app.add_api_route("/metrics", endpoint.figures, include_in_schema=False, response_model=None)
    app.add_api_route("/edgespec/count", endpoint.count, methods=["POST"], response_model=None)
    app.add_api_route("/edgespec/models", models.all, response_model=None)
    app.add_api_route("/edgespec/models", models.change, methods=["POST"], response_model=None)
    app.add_api_route("/v1/completions", endpoint.complete, methods=["POST"], response_model=None)
    app.add_api_route("/v1/fim/completions", endpoint.fill, methods=["POST"], response_model=None)
    for prefix in ("/v1", ""):  # both are in use: some clients are given the root, some add /v1
        visible = prefix == "/v1"
        for path, handler, method in (
            ("/chat/completions", endpoint.chat, "POST"),
            ("/chat/completions/input_tokens", endpoint.input_tokens, "POST"),
            ("/models", models.listed, "GET"),
            ("/models/{name:path}", models.one, "GET"),
            ("/health", endpoint.health, "GET"),
        ):
            app.add_api_route(
                prefix + path, handler, methods=[method], include_in_schema=visible, response_model=None
            )
        app.add_api_route(
            f"{prefix}/health",
            endpoint.health,
            methods=["HEAD"],
            include_in_schema=False,
            response_model=None,
        )


class WebEndpoint:
    """Answers requests with the worker's results."""

    def __init__(
        self,
        worker: Supervisor,
        settings: ServerSettings,
        state: ServerState,
        pairs: Pairs,
        embeddings: Embeddings,
    ) -> None:
        self._worker, self._state = worker, state
        self.metrics = Metrics(worker)
        self._began = int(time.time())
        self.answering = Answering(worker, settings, self.metrics, pairs, embeddings)

    async def health(self) -> Response:
        """Says whether the engine runs."""
        state: str = self._worker.state
        if state == "unloaded":  # the next request loads it
            return JSONResponse({"status": "ok"})
        if state == "ready" and await self._worker.hears(HEARS_S):
            return JSONResponse({"status": "ok"})
        if state == "ready" and self._worker.state == "ready":
            state, refusal = (
                "silent",
                unavailable("the engine does not respond: if it stays silent, it is restarted"),
            )
        else:
            state, refusal = self._worker.state, self._worker.absence()
        return JSONResponse({"status": state, **refusal.body()}, refusal.status, refusal.headers())

    async def proof(self, nonce: Annotated[str, Query(min_length=16, max_length=200)]) -> dict[str, str]:
        """Proves that this server wrote the file which a client has read."""
        return {"proof": self._state.proof(nonce)}

    async def figures(self) -> Response:
        """Returns Prometheus's figures."""
        if self.answering.settings.no_metrics:
            raise closed("/metrics", "--no-metrics")
        body, media_type = self.metrics.text()
        began = {"process-start-time-unix": str(self._began)}  # as in llama-server
        return Response(body, headers={"content-type": media_type, **began})

    @with_pair
    async def chat(self, body: ChatRequest, request: Request) -> Response:
        """Answers with the assistant's next turn."""
        body.check()
        about = self.answering.loaded()
        submits, composed = await self.answering.chat_submits(body)
        several = body.parallel_tool_calls is not False
        verbose = self.answering.settings.verbose if body.verbose is None else body.verbose
        answer = ChatAnswer(
            self.answering.name(),
            about.plain_s,
            body,
            turns=readers(composed, len(submits), apart=body.shows_thoughts_apart, several=several),
            prompt=composed.text if verbose else None,
            functions=body.calls_functions,
        )
        return await self.answering.answer(request, submits, answer, body)

    @with_pair
    async def count(self, body: ChatRequest) -> dict[str, int]:
        """Returns how many tokens the prompt of a conversation has; evaluates nothing."""
        about = self.answering.loaded()
        return {"n_tokens": await self.answering.n_tokens(body), "n_ctx": about.n_ctx}

    @with_pair
    async def input_tokens(self, body: ChatRequest) -> dict[str, Any]:
        """Returns the same in the format of OpenAI and llama-server."""
        return {"object": "response.input_tokens", "input_tokens": await self.answering.n_tokens(body)}

    @with_pair
    async def complete(self, body: CompletionRequest, request: Request) -> Response:
        """Continues text."""
        body.check()
        about = self.answering.loaded()
        prompts = body.prompts()
        if body.suffix is not None:
            filled = GapFields(input_prefix=str(prompts[0]), input_suffix=body.suffix)
            prompts = [await FillIn(self.answering).prompt(filled, body.limit())]
        submits = [
            submit
            for prompt in prompts
            for submit in body.submits(prompt, add_bos=True, defaults=self.answering.defaults())
        ]
        echo = [_shown(submit) for submit in submits] if body.echo else ()
        answer = CompletionAnswer(self.answering.name(), about.plain_s, body, echo)
        return await self.answering.answer(request, submits, answer, body)

    @with_pair
    async def fill(self, body: FillRequest, request: Request) -> Response:
        """Fills the gap between two texts, as Mistral's clients ask for it."""
        about = self.answering.loaded()
        if body.seed is None:
            body.seed = body.random_seed
        gap = GapFields(input_prefix=body.prompt, input_suffix=body.suffix)
        prompt = await FillIn(self.answering).prompt(gap, body.limit())
        submits = body.submits(prompt, add_bos=True, defaults=self.answering.defaults())
        answer = FillAnswer(self.answering.name(), about.plain_s, body)
        return await self.answering.answer(request, submits, answer, body)


def _shown(submit: Submit) -> str:
    return str(submit.prompt).encode("utf-8", "replace").decode()


# -- mistakes


async def _refusal(request: Request, refusal: Exception) -> Response:
    assert isinstance(refusal, Refusal)
    request.state.refused = refusal.code  # for its line in the log
    body = refusal.shaped(request.url.path, request.state.request_id)
    return JSONResponse(body, refusal.status, refusal.headers())


async def _invalid(request: Request, error: Exception) -> Response:
    """Names the first wrong field, and its value."""
    assert isinstance(error, RequestValidationError)
    first = _most_telling(error.errors())
    path = [str(step) for step in first["loc"][1:]]
    path[:1] = [_as_given(name, error.body) for name in path[:1]]
    named = (step for step in path if (step.isidentifier() or step.isdigit()) and step not in TYPES)
    steps = (step for step in named if not step[0].isupper())  # one of our classes
    field = ".".join(steps) or "the body"
    missing = first["type"] == "missing"
    sentence = f"{field} is missing" if missing else f"{field} is {quoted(first['input'])}: {first['msg']}"
    param = path[0] if path else None
    code = "missing_required_parameter" if missing else "invalid_value"
    return await _refusal(request, Refusal(400, sentence, param=param, code=code))


def _as_given(name: str, body: object) -> str:
    """Returns the name that a client gave a field of several names."""
    given = body if isinstance(body, dict) else {}
    others = (other for other, own in ALIASES.items() if own == name and other in given)
    return name if name in given else next(others, name)


def _most_telling(errors: Sequence[Any]) -> Any:
    """Returns the first error; for a field of several types, the one for the type that was given."""
    first = errors[0]
    same = [error for error in errors if error["loc"][:2] == first["loc"][:2]]
    return next((error for error in same if not error["type"].endswith(WRONG_TYPE)), first)


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    method, path = request.method, request.url.path
    sentence = {
        404: f"there is nothing at {method} {path}",
        405: f"{path} takes no {method} requests",
    }.get(error.status_code, str(error.detail))
    refusal = Refusal(error.status_code, sentence)
    body = refusal.shaped(request.url.path, request.state.request_id)
    return JSONResponse(body, error.status_code, {**refusal.headers(), **(error.headers or {})})


async def _fault(request: Request, error: Exception) -> Response:
    id = request.state.request_id
    sentence = f"a fault of EdgeSpec's own ({type(error).__name__}): its log has more under {id}"
    return await _refusal(request, Refusal(500, sentence, type="server_error", code="internal_error"))
