"""OpenAI's Responses API: /v1/responses and its count of tokens."""

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from edgespec.server.bodies import checked_router
from edgespec.server.dialects.dialect import Dialect, with_pair
from edgespec.server.dialects.responses.answers import ResponseAnswer
from edgespec.server.dialects.responses.requests import InputRequest, ResponsesRequest


class ResponsesDialect(Dialect):
    """Answers clients of the Responses API."""

    def routes(self) -> APIRouter:
        return checked_router(
            ("POST", self.respond, "/v1/responses", "/responses"),
            ("POST", self.input_tokens, "/v1/responses/input_tokens", "/responses/input_tokens"),
        )

    @with_pair
    async def respond(self, wanted: ResponsesRequest, request: Request) -> Response:
        """Answers with the assistant's next turn."""
        body = wanted.as_chat()
        submits, [turn], _ = await self.answering.chat_submits(body)
        answer = ResponseAnswer(
            self.answering.name(),
            turn,
            wanted.echoed(),
            wanted.known_tools(),
            self.answering.loaded().plain_s,
            timings=bool(body.timings_per_token),
        )
        return await self.answering.answer(request, submits, answer, body)

    @with_pair
    async def input_tokens(self, wanted: InputRequest) -> dict[str, Any]:
        """Returns how many tokens the input has."""
        n_tokens = await self.answering.n_tokens(wanted.as_chat())
        return {"object": "response.input_tokens", "input_tokens": n_tokens}
