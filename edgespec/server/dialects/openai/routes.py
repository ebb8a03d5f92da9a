"""OpenAI's routes: chat, text and gaps, and how many tokens a conversation has."""

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from edgespec.chat.families.known import PLAIN
from edgespec.protocol.messages import Submit
from edgespec.server.bodies import checked_router
from edgespec.server.dialects.dialect import Dialect, with_pair
from edgespec.server.dialects.openai.answers import ChatAnswer, CompletionAnswer, FillAnswer
from edgespec.server.dialects.openai.requests import CompletionRequest, FillRequest
from edgespec.server.filling import GapFields, fill_prompt
from edgespec.server.pair_session import PairSession
from edgespec.server.requests.chat import ChatRequest
from edgespec.server.turns import TurnReader


class OpenAIDialect(Dialect):
    """Answers OpenAI's clients, and Mistral's where they ask for a gap to be filled."""

    def routes(self) -> APIRouter:
        """Returns the routes of this dialect; some clients are given the root, and some add /v1."""
        chats = ("/v1/chat/completions", "/chat/completions")
        return checked_router(
            ("POST", self.chat, *chats),
            ("POST", self.input_tokens, *(f"{path}/input_tokens" for path in chats)),
            ("POST", self.complete, "/v1/completions"),
            ("POST", self.fill, "/v1/fim/completions"),
            ("POST", self.count, "/edgespec/count"),
        )

    @with_pair
    async def chat(self, session: PairSession, body: ChatRequest, request: Request) -> Response:
        """Answers with the assistant's next turn."""
        body.check()
        submits, turns, prompt = await session.chat_submits(body)
        verbose = self.answering.settings.verbose if body.verbose is None else body.verbose
        answer = ChatAnswer(
            session.name,
            session.about.plain_s,
            body,
            turns=turns,
            prompt=prompt if verbose else None,
            functions=body.calls_functions,
        )
        return await session.answer(submits, answer, body, request)

    @with_pair
    async def count(self, session: PairSession, body: ChatRequest) -> dict[str, int]:
        """Returns how many tokens the prompt of a conversation has; evaluates nothing."""
        n_ctx = session.about.n_ctx
        return {"n_tokens": await session.n_tokens(body), "n_ctx": n_ctx}

    @with_pair
    async def input_tokens(self, session: PairSession, body: ChatRequest) -> dict[str, Any]:
        """Returns the same in the format of OpenAI and llama-server."""
        return {"object": "response.input_tokens", "input_tokens": await session.n_tokens(body)}

    @with_pair
    async def complete(self, session: PairSession, body: CompletionRequest, request: Request) -> Response:
        """Continues text."""
        body.check()
        prompts = body.prompts()
        if body.suffix is not None:
            filled = GapFields(input_prefix=str(prompts[0]), input_suffix=body.suffix)
            prompts = [await fill_prompt(session, filled, body.limit())]
        submits = [
            submit
            for prompt in prompts
            for submit in body.submits(prompt, add_bos=True, defaults=session.defaults)
        ]
        echo = [_shown(submit) for submit in submits] if body.echo else ()
        plain_s = session.about.plain_s
        answer = CompletionAnswer(session.name, plain_s, body, echo)
        return await session.answer(submits, answer, body, request)

    @with_pair
    async def fill(self, session: PairSession, body: FillRequest, request: Request) -> Response:
        """Fills the gap between two texts, as Mistral's clients ask for it."""
        if body.seed is None:
            body.seed = body.random_seed
        gap = GapFields(input_prefix=body.prompt, input_suffix=body.suffix)
        prompt = await fill_prompt(session, gap, body.limit())
        submits = body.submits(prompt, add_bos=True, defaults=session.defaults)
        turns = [TurnReader(PLAIN.parser({})) for _ in submits]
        answer = FillAnswer(session.name, session.about.plain_s, body, turns=turns)
        return await session.answer(submits, answer, body, request)


def _shown(submit: Submit) -> str:
    return str(submit.prompt).encode("utf-8", "replace").decode()
