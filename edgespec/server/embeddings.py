"""What the models of --embed and --rerank compute, each in a child that starts with the first request."""

from __future__ import annotations

import asyncio
import base64
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgespec.errors import EngineDiedError
from edgespec.server.refusal import Refusal, invalid
from edgespec.system.json_child import JsonChild

CHILD = "edgespec.llama.embedding_child"
AT_ONCE = 32  # texts in one question to the child, behind which others may ask
MOST = 2048  # texts in one request, as at OpenAI
LONGEST_S = 120.0  # for one question
SHORTEST_S = 0.5  # that the child is kept for another
Text = str | Sequence[int] | tuple[str, str]  # as text, as token ids, or query and document


@dataclass(frozen=True, slots=True)
class Embedded:
    """Vectors of length 1, one for each text, and the tokens of all texts."""

    vectors: list[tuple[float, ...]]
    n_tokens: int

    async def shortened(self, width: int | None) -> Embedded:
        """Returns the first dimensions, again of length 1. Raises Refusal."""
        return await asyncio.to_thread(self._shortened, width)

    def _shortened(self, width: int | None) -> Embedded:
        full = len(self.vectors[0])
        if width is None or width == full:
            return self
        if not 0 < width < full:
            sentence = f"dimensions is {width}: the model's vectors have {full}, give 1 to {full}"
            raise invalid("dimensions", sentence)
        short = [vector[:width] for vector in self.vectors]
        lengths = [max(sum(x * x for x in vector) ** 0.5, 1e-12) for vector in short]
        return Embedded(
            [tuple(x / length for x in v) for v, length in zip(short, lengths, strict=True)], self.n_tokens
        )


class Embeddings:
    """The embedding model of a server, if it has one."""

    work, flag, field = "embedding", "--embed", "input"

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.size = path.stat().st_size if path else 0  # bytes
        self._child: JsonChild | None = None
        self._turn = asyncio.Lock()
        self._idle_s: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def keep(self, idle_s: float | None) -> None:
        """Ends the child after so long without a question, from the next answer on; None: never."""
        self._idle_s = idle_s

    @property
    def name(self) -> str:
        """Returns the model's name for clients; "" without one."""
        return self.path.stem if self.path else ""

    async def embedded(self, texts: Sequence[Text], *, truncate: bool = False) -> Embedded:
        """Embeds texts. truncate: leave out the end of one that is too long. Raises Refusal."""
        if self.path is None:
            sentence = f"{self.work} needs a model made for it: start `edgespec serve {self.flag} FILE.gguf`"
            raise Refusal(501, sentence, code="unsupported")
        if not 0 < len(texts) <= MOST:
            sentence = f"{self.field} has {len(texts)} texts: 1 to {MOST:,} may be given at once"
            raise invalid(self.field, sentence)
        vectors: list[tuple[float, ...]] = []
        n_tokens = 0
        for i in range(0, len(texts), AT_ONCE):
            asked = {"file": str(self.path), "texts": list(texts[i : i + AT_ONCE]), "truncate": truncate}
            # a client that leaves must not hand the child to the next one before it has answered
            answer = await asyncio.shield(asyncio.ensure_future(self._answer(asked)))
            if "error" in answer:
                wrong = invalid(self.field, f"{self.field}: {answer['error']}")
                raise wrong if answer["setting"] else Refusal(500, answer["error"], code="engine_error")
            vectors += struct.iter_unpack(f"{answer['width']}f", base64.b64decode(answer["vectors"]))
            n_tokens += sum(answer["n_tokens"])
        return Embedded(vectors, n_tokens)

    async def _answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Asks the child, one question after the other. Raises Refusal."""
        async with self._turn:
            if self._timer:
                self._timer.cancel()
            child = self._child = self._child or JsonChild(CHILD, longest_s=LONGEST_S)
            try:
                return await asyncio.to_thread(child.ask, asked)
            except EngineDiedError as error:
                raise Refusal(500, f"{self.work} failed: {error}") from None
            finally:
                if self._idle_s is not None:
                    wait = max(self._idle_s, SHORTEST_S)
                    self._timer = asyncio.get_running_loop().call_later(wait, self.close)

    def close(self) -> None:
        """Ends the child, and with it a question that is being answered; another one would start it again."""
        child, self._child = self._child, None
        if child:
            child.close()


class Reranker(Embeddings):
    """The same for a reranker: a vector is the one number that says how well a document fits a query."""

    work, flag, field = "reranking", "--rerank", "documents"
