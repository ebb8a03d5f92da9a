"""Embeddings in the formats of OpenAI and llama-server."""

import asyncio
import base64
import json
import struct
from collections.abc import AsyncIterator, Iterable
from itertools import islice
from typing import Annotated, Any, Literal

from fastapi import APIRouter
from fastapi.responses import Response, StreamingResponse
from pydantic import BaseModel, Field, StrictInt, StrictStr

from edgespec.server.bodies import checked_router
from edgespec.server.dialects.fields import Listed
from edgespec.server.embeddings import Embeddings, Text
from edgespec.server.refusal import missing

ROWS = 8  # vectors that are written at once
TokenId = Annotated[StrictInt, Field(ge=0, lt=2**31)]
Input = StrictStr | Listed[TokenId] | Listed[StrictStr] | Listed[Listed[TokenId]]


class EmbeddingRequest(BaseModel):
    """POST /v1/embeddings, and /embedding, where llama-server's clients call the input `content`."""

    input: Input | None = None
    content: Input | None = None
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: StrictInt | None = None

    def texts(self) -> list[Text]:
        """Returns the texts one by one; raises Refusal for none."""
        given = self.content if self.input is None else self.input
        if given is None:
            raise missing("input is missing: give a text", "input")
        return texts_of(given)


def texts_of(given: Any) -> list[Text]:
    """Returns the texts of an input: one text, one as token ids, or a list of either."""
    single = isinstance(given, str) or (bool(given) and isinstance(given[0], int))
    return [given] if single else list(given)


class EmbeddingDialect:
    """Answers clients of embeddings."""

    def __init__(self, embeddings: Embeddings) -> None:
        self.embeddings = embeddings

    def routes(self) -> APIRouter:
        """Returns the routes."""
        return checked_router(
            ("POST", self.openai, "/v1/embeddings"),
            ("POST", self.llama_cpp, "/embeddings", "/embedding"),
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

    def _row(self, vector: tuple[float, ...], how: str) -> tuple[float, ...] | str:
        if how == "float":
            return vector
        return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


def in_pieces(
    name: str | None, rows: Iterable[object], beside: dict[str, Any], *, at_once: int = ROWS
) -> Response:
    """Returns rows as JSON, a few at a time: writing millions of numbers at once would keep others waiting.

    name: the field they are, after those in `beside`; None: they are all there is.
    """
    head = json.dumps(beside)[:-1] + (", " if beside else "") + f"{json.dumps(name)}: [" if name else "["

    async def pieces() -> AsyncIterator[str]:
        yield head
        left, before = iter(rows), ""
        while some := list(islice(left, at_once)):
            yield before + json.dumps(some)[1:-1]
            before = ", "
            await asyncio.sleep(0)
        yield "]}" if name else "]"

    return StreamingResponse(pieces(), media_type="application/json")
