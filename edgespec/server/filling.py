"""Filling in the middle: from the texts around a gap to the prompt, by the model's own tokens for it."""

import asyncio

from pydantic import StrictFloat, StrictInt, StrictStr

from edgespec.chat.fill_in import LAST_FILE, REPOSITORY, SNIPPET, Chunk, Gap, arranged
from edgespec.server.pair_session import PairSession
from edgespec.server.refusal import Refusal
from edgespec.server.requests.fields import Fields, Listed
from edgespec.server.worker_requests import WorkerRequests

WINDOW = 2048  # tokens around the gap, as llama-server's batch is by default
EXPECTED = 256  # tokens of an answer whose length is not given
MARKS = 16  # more than the tokens that mark the parts


class ExtraChunk(Fields):
    """Text from elsewhere in the project."""

    text: StrictStr
    filename: StrictStr = "tmp"
    time: StrictInt | StrictFloat | None = None


class GapFields(Fields):
    """The text around the gap. prompt: the part of the gap that is already written."""

    input_prefix: StrictStr
    input_suffix: StrictStr
    prompt: StrictStr = ""
    input_extra: Listed[ExtraChunk] | None = None


async def fill_prompt(session: PairSession, body: GapFields, limit: int | None) -> tuple[int, ...]:
    """Returns the prompt as token ids. limit: tokens that may come. Raises Refusal."""
    about = session.about
    if about.fill is None:
        why = f"infill is not supported by {about.name}: its vocabulary has no tokens for filling in"
        sentence = f"{why}; load a model made for it, such as Qwen2.5-Coder"
        raise Refusal(501, sentence, code="no_fill_tokens")
    answer = EXPECTED if limit is None else limit
    room = max(0, about.n_ctx - min(answer, about.n_ctx // 2) - MARKS)
    gap = await _gap(session.worker.engine, body)
    return arranged(gap, about.fill, bos=about.bos_token, window=min(WINDOW, room), room=room)


async def _gap(engine: WorkerRequests, body: GapFields) -> Gap:
    async def tokens(text: str) -> tuple[int, ...]:
        return await engine.tokenize(text, add_bos=False, special=False) if text else ()

    chunks = body.input_extra or []
    texts = [body.input_prefix, body.prompt, body.input_suffix, REPOSITORY, LAST_FILE, SNIPPET]
    texts += [text for chunk in chunks for text in (f"{chunk.filename}\n", chunk.text)]
    prefix, prompt, suffix, repository, last_file, snippet, *others = await asyncio.gather(
        *map(tokens, texts)
    )
    return Gap(
        prefix=prefix,
        prompt=prompt,
        suffix=suffix,
        chunks=[Chunk(name, text) for name, text in zip(others[::2], others[1::2], strict=True)],
        repository=repository,
        last_file=last_file,
        snippet=snippet,
    )
