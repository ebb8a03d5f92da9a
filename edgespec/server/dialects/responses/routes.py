"""OpenAI's Responses API: /v1/responses and its count of tokens."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from edgespec.server.answering import Answering, with_pair
from edgespec.server.bodies import CheckedRoute
from edgespec.server.dialects.responses.answers import ResponseAnswer
from edgespec.server.dialects.responses.requests import InputRequest, ResponsesRequest
from edgespec.server.turns import readers


class ResponsesDialect:
    """Answers clients of the Responses API."""

    def __init__(self, answering: Answering) -> None:
        self.answering = answering

    def routes(self) -> APIRouter:
        """Returns the routes of this dialect."""
        router = APIRouter(route_class=CheckedRoute)
        for prefix in ("/v1", ""):
            for path, handler in (
                ("/responses", self.respond),
                ("/responses/input_tokens", self.input_tokens),
            ):
                router.add_api_route(
                    prefix + path,
                    handler,
                    methods=["POST"],
                    response_model=None,
                    include_in_schema=prefix == "/v1",
                )
        return router

    @with_pair
    async def respond(self, wanted: ResponsesRequest, request: Request) -> Response:
        """Answers with the assistant's next turn."""
        body = wanted.as_chat()
        about = self.answering.loaded()
        [submit], composed = await self.answering.chat_submits(body)
        several = body.parallel_tool_calls is not False
        answer = ResponseAnswer(
            self.answering.name(),
            readers(composed, 1, several=several)[0],
            wanted.echoed(),
            wanted.known_tools(),
            about.plain_s,
            timings=bool(body.timings_per_token),
        )
        return await self.answering.answer(request, [submit], answer, body)

    @with_pair
    async def input_tokens(self, wanted: InputRequest) -> dict[str, Any]:
        """Returns how many tokens the input has."""
        n_tokens = await self.answering.n_tokens(wanted.as_chat())
        return {"object": "response.input_tokens", "input_tokens": n_tokens}
