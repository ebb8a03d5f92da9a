"""Reranking in the formats of Jina (and Cohere) and of Hugging Face's text-embeddings-inference."""

from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import BaseModel, Field, StrictBool, StrictInt, StrictStr

from edgespec.server.bodies import checked_router
from edgespec.server.dialects.fields import Listed
from edgespec.server.embeddings import Reranker


class RerankRequest(BaseModel):
    """POST /v1/rerank. texts, instead of documents: a client of text-embeddings-inference."""

    query: StrictStr
    documents: Listed[StrictStr] = []
    texts: Listed[StrictStr] | None = None
    top_n: Annotated[StrictInt, Field(ge=0)] | None = None
    return_text: StrictBool = False


class RerankDialect:
    """Answers clients of rerankers, as llama-server does."""

    def __init__(self, reranker: Reranker) -> None:
        self._reranker = reranker

    def routes(self) -> APIRouter:
        """Returns the routes."""
        return checked_router(("POST", self.rank, "/v1/rerank", "/rerank", "/v1/reranking", "/reranking"))

    async def rank(self, wanted: RerankRequest) -> Any:
        """Says how well each document fits the query, the best first."""
        theirs = wanted.texts is not None
        texts, name = wanted.texts or wanted.documents, "score" if theirs else "relevance_score"
        found = await self._reranker.embedded([(wanted.query, text) for text in texts])
        scores = [score for (score,) in found.vectors]
        best = sorted(range(len(texts)), key=lambda i: -scores[i])[: wanted.top_n]
        beside = [{"text": texts[i]} if theirs and wanted.return_text else {} for i in best]
        results = [{"index": i, name: scores[i], **more} for i, more in zip(best, beside, strict=True)]
        usage = {"prompt_tokens": found.n_tokens, "total_tokens": found.n_tokens}
        told = {"model": self._reranker.name, "object": "list", "usage": usage, "results": results}
        return results if theirs else told
