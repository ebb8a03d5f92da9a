"""Anthropic's routes: /v1/messages and its count of tokens."""

from typing import ClassVar

from fastapi import APIRouter, Request
from fastapi.responses import Response

from edgespec.server.bodies import checked_router
from edgespec.server.dialects.anthropic.answers import MessageAnswer, MessageStream, error_of
from edgespec.server.dialects.anthropic.requests import CountRequest, MessagesRequest
from edgespec.server.dialects.dialect import Dialect, with_pair
from edgespec.server.pair_session import PairSession


class AnthropicDialect(Dialect):
    """Answers Anthropic's clients."""

    errors: ClassVar = {"/v1/messages": error_of, "/messages": error_of}
    stream = MessageStream

    def routes(self) -> APIRouter:
        return checked_router(
            ("POST", self.messages, "/v1/messages"),
            ("POST", self.count_tokens, "/v1/messages/count_tokens"),
        )

    @with_pair
    async def messages(self, session: PairSession, wanted: MessagesRequest, request: Request) -> Response:
        """Answers with the assistant's next turn."""
        body = wanted.as_chat()
        submits, [turn], _ = await session.chat_submits(body)
        answer = MessageAnswer(
            session.name,
            turn,
            request.state.request_id,
            tuple(wanted.stop_sequences or ()),
        )
        return await session.answer(submits, answer, body, request)

    @with_pair
    async def count_tokens(self, session: PairSession, wanted: CountRequest) -> dict[str, int]:
        """Returns how many tokens a conversation has."""
        return {"input_tokens": await session.n_tokens(wanted.as_chat())}
