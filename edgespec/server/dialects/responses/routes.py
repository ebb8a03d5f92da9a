"""OpenAI's Responses API: /v1/responses and its count of tokens."""

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from edgespec.server.bodies import checked_router
from edgespec.server.dialects.dialect import Dialect, with_pair
from edgespec.server.dialects.responses.answers import ResponseAnswer
from edgespec.server.dialects.responses.requests import InputRequest, ResponsesRequest
from edgespec.server.pair_session import PairSession


class ResponsesDialect(Dialect):
    """Answers clients of the Responses API."""

    def routes(self) -> APIRouter:
        return checked_router(
            ("POST", self.respond, "/v1/responses", "/responses"),
            ("POST", self.input_tokens, "/v1/responses/input_tokens", "/responses/input_tokens"),
        )

    @with_pair
    async def respond(self, session: PairSession, wanted: ResponsesRequest, request: Request) -> Response:
        """Answers with the assistant's next turn."""
        body = wanted.as_chat()
        submits, [turn], _ = await session.chat_submits(body)
        answer = ResponseAnswer(
            session.name,
            turn,
            wanted.echoed(),
            wanted.known_tools(),
            session.about.plain_s,
            timings=bool(body.timings_per_token),
        )
        return await session.answer(submits, answer, body, request)

    @with_pair
    async def input_tokens(self, session: PairSession, wanted: InputRequest) -> dict[str, Any]:
        """Returns how many tokens the input has."""
        n_tokens = await session.n_tokens(wanted.as_chat())
        return {"object": "response.input_tokens", "input_tokens": n_tokens}
