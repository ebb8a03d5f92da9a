"""The web application: all routes, and what mistakes are answered with, in the format of each dialect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from edgespec import __version__
from edgespec.client.state_file import ServerState
from edgespec.server.answering import Answering
from edgespec.server.bodies import prepare
from edgespec.server.dialects.anthropic.routes import AnthropicDialect
from edgespec.server.dialects.embeddings import EmbeddingDialect
from edgespec.server.dialects.llama_cpp.routes import LlamaCppDialect
from edgespec.server.dialects.ollama.routes import OllamaDialect
from edgespec.server.dialects.openai.routes import OpenAIDialect
from edgespec.server.dialects.responses.routes import ResponsesDialect
from edgespec.server.embeddings import Embeddings, Reranker
from edgespec.server.gate import gated, refused
from edgespec.server.logs import Logged
from edgespec.server.model_routes import ModelRoutes
from edgespec.server.own_routes import OwnRoutes
from edgespec.server.pairs import Pairs
from edgespec.server.refusal import ErrorShape, Refusal, fault, quoted
from edgespec.server.settings import ServerSettings
from edgespec.server.supervisor import Supervisor

# openai, which all others speak through, and what each of them adds
DIALECTS = (OpenAIDialect, LlamaCppDialect, AnthropicDialect, ResponsesDialect, OllamaDialect)
TYPES = frozenset({"int", "float", "str", "bool", "dict", "list"})  # not part of a field's name
WRONG_TYPE = ("_type", "_parsing", "literal_error", "model_attributes_type")  # ends of pydantic's names


def make_app(
    worker: Supervisor,
    settings: ServerSettings,
    state: ServerState,
    pairs: Pairs,
    embeddings: Embeddings,
    reranker: Reranker,
) -> WebApp:
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
    answering = Answering(worker, settings, pairs, embeddings)
    prepare(app, answering.longest, worker.count_large_body)
    for routes in (
        OwnRoutes(answering, state),
        ModelRoutes(answering),
        EmbeddingDialect(embeddings, reranker),
        *(dialect(answering) for dialect in DIALECTS),
    ):
        app.include_router(routes.routes())
    app.state.aliases = [pair for dialect in DIALECTS for pair in dialect.aliases.items()]
    shapes = {path: shape for dialect in DIALECTS for path, shape in dialect.errors.items()}
    return WebApp(answering, app, state.key, shapes, (embeddings, reranker))


class WebApp(Logged):
    """All of it; most of its settings may change while it runs."""

    def __init__(
        self,
        answering: Answering,
        app: ASGIApp,
        own_key: str,
        shapes: Mapping[str, ErrorShape],
        others: Sequence[Embeddings],
    ) -> None:
        """own_key: in the server's file. others: other models than those that answer."""
        super().__init__(gated(app, answering.settings, own_key=own_key), shapes)
        self._answering, self._routes, self._own_key, self._others = answering, app, own_key, others

    def renew(self, settings: ServerSettings) -> None:
        """Uses other settings from the next request on."""
        self._answering.settings = settings
        self._app = gated(self._routes, settings, own_key=self._own_key)
        self._answering.engines.unload_after(settings.idle_s)
        for model in self._others:
            model.keep(settings.idle_s)


# -- mistakes


async def _refusal(request: Request, refusal: Exception) -> Response:
    assert isinstance(refusal, Refusal)
    return refused(refusal, request.scope)


async def _invalid(request: Request, error: Exception) -> Response:
    """Names the first wrong field, and its value."""
    assert isinstance(error, RequestValidationError)
    first = _most_telling(error.errors())
    path = [str(step) for step in first["loc"][1:]]
    path[:1] = [_as_given(name, error.body, request.app.state.aliases) for name in path[:1]]
    named = (step for step in path if (step.isidentifier() or step.isdigit()) and step not in TYPES)
    steps = (step for step in named if not step[0].isupper())  # one of our classes
    field = ".".join(steps) or "the body"
    missing, reason = first["type"] == "missing", first["msg"].removeprefix("Value error, ")  # pydantic
    sentence = f"{field} is missing" if missing else f"{field} is {quoted(first['input'])}: {reason}"
    param = path[0] if path else None
    code = "missing_required_parameter" if missing else "invalid_value"
    return await _refusal(request, Refusal(400, sentence, param=param, code=code))


def _as_given(name: str, body: object, aliases: Sequence[tuple[str, str]]) -> str:
    """Returns the name that a client gave a field of several names. aliases: other names, and ours."""
    given = body if isinstance(body, dict) else {}
    others = (other for other, own in aliases if own == name and other in given)
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
    answer = refused(Refusal(error.status_code, sentence), request.scope)
    answer.headers.update(error.headers or {})
    return answer


async def _fault(request: Request, error: Exception) -> Response:
    return await _refusal(request, fault(error, request.state.request_id))
