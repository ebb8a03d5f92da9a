"""Embeddings and ranks, as OpenAI, llama-server, Jina (Cohere) and text-embeddings-inference have them."""

import asyncio
import base64
import json
import struct
from collections.abc import AsyncIterator, Iterable
from itertools import islice
from typing import Annotated, Any, Literal

from fastapi import APIRouter
from fastapi.responses import Response, StreamingResponse
from pydantic import Field, StrictBool, StrictStr

from edgespec.server.bodies import checked_router
from edgespec.server.embeddings import Embeddings, Reranker, Text
from edgespec.server.refusal import missing
from edgespec.server.requests.fields import Fields, Listed, TokenId, Whole

ROWS = 8  # vectors that are written at once
Input = StrictStr | Listed[TokenId] | Listed[StrictStr] | Listed[Listed[TokenId]]


class EmbeddingRequest(Fields):
    """POST /v1/embeddings, and /embedding, where llama-server's clients call the input `content`."""

    input: Input | None = None
    content: Input | None = None
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Whole | None = None

    def texts(self) -> list[Text]:
        """Returns the texts one by one; raises Refusal for none."""
        given = self.content if self.input is None else self.input
        if given is None:
            raise missing("input", "input is missing: give a text")
        return texts_of(given)


def texts_of(given: Any) -> list[Text]:
    """Returns the texts of an input: one text, one as token ids, or a list of either."""
    single = isinstance(given, str) or (bool(given) and isinstance(given[0], int))
    return [given] if single else list(given)


class RerankRequest(Fields):
    """POST /v1/rerank. texts, instead of documents: a client of text-embeddings-inference."""

    query: StrictStr
    documents: Listed[StrictStr] = []
    texts: Listed[StrictStr] | None = None
    top_n: Annotated[Whole, Field(ge=0)] | None = None
    return_text: StrictBool = False


class EmbeddingDialect:
    """Answers clients of embeddings, and of rerankers as llama-server does."""

    def __init__(self, embeddings: Embeddings, reranker: Reranker) -> None:
        self.embeddings, self.reranker = embeddings, reranker

    def routes(self) -> APIRouter:
        """Returns the routes."""
        ranked = ("/v1/rerank", "/rerank", "/v1/reranking", "/reranking")
        return checked_router(
            ("POST", self.openai, "/v1/embeddings"),
            ("POST", self.llama_cpp, "/embeddings", "/embedding"),
            ("POST", self.rank, *ranked),
        )

    async def openai(self, wanted: EmbeddingRequest) -> Response:
        """Returns a vector for each text."""
        found = await (await self.embeddings.embedded(wanted.texts())).shortened(wanted.dimensions)
        rows = (
            {"object": "embedding", "index": i, "embedding": self._row(vector, wanted.encoding_format)}
            for i, vector in enumerate(found.vectors)
        )
        usage = {"prompt_tokens": found.n_tokens, "total_tokens": found.n_tokens}
        return in_pieces("data", rows, {"object": "list", "model": self.embeddings.name, "usage": usage})

    async def llama_cpp(self, wanted: EmbeddingRequest) -> Response:
        """Returns the same as llama-server does: a list with one row for each text."""
        found = await (await self.embeddings.embedded(wanted.texts())).shortened(wanted.dimensions)
        return in_pieces(None, ({"index": i, "embedding": [row]} for i, row in enumerate(found.vectors)), {})

    async def rank(self, wanted: RerankRequest) -> Any:
        """Says how well each document fits the query, the best first."""
        theirs = wanted.texts is not None
        texts, name = wanted.texts or wanted.documents, "score" if theirs else "relevance_score"
        found = await self.reranker.embedded([(wanted.query, text) for text in texts])
        scores = [score for (score,) in found.vectors]
        best = sorted(range(len(texts)), key=lambda i: -scores[i])[: wanted.top_n]
        with_texts = [{"text": texts[i]} if theirs and wanted.return_text else {} for i in best]
        results = [{"index": i, name: scores[i], **more} for i, more in zip(best, with_texts, strict=True)]
        usage = {"prompt_tokens": found.n_tokens, "total_tokens": found.n_tokens}
        answer = {"model": self.reranker.name, "object": "list", "usage": usage, "results": results}
        return results if theirs else answer

    def _row(self, vector: tuple[float, ...], how: str) -> tuple[float, ...] | str:
        if how == "float":
            return vector
        return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


def in_pieces(
    name: str | None, rows: Iterable[object], fields: dict[str, Any], *, at_once: int = ROWS
) -> Response:
    """Returns rows as JSON, some at a time: writing millions of numbers at once would keep others waiting.

    name: the field they are, after those in `fields`; None: they are all there is.
    """
    head = json.dumps(fields)[:-1] + (", " if fields else "") + f"{json.dumps(name)}: [" if name else "["

    async def pieces() -> AsyncIterator[str]:
        yield head
        left, before = iter(rows), ""
        while some := list(islice(left, at_once)):
            yield before + json.dumps(some)[1:-1]
            before = ", "
            await asyncio.sleep(0)
        yield "]}" if name else "]"

    return StreamingResponse(pieces(), media_type="application/json")
