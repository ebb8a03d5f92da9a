"""Filling in the middle: from the texts around a gap to the prompt, by the model's own tokens for it."""

import asyncio

from pydantic import BaseModel, StrictFloat, StrictInt, StrictStr

from edgespec.chat.fill_in import LAST_FILE, REPOSITORY, SNIPPET, Chunk, FillTokens, Gap, arranged
from edgespec.engine.messages import Loaded
from edgespec.server.answering import Answering
from edgespec.server.dialects.fields import Listed
from edgespec.server.refusal import not_here

WINDOW = 2048  # tokens around the gap, as llama-server's batch is by default
EXPECTED = 256  # tokens of an answer whose length is not given
MARKS = 16  # more than the tokens that mark the parts


class ExtraChunk(BaseModel):
    """Text from elsewhere in the project."""

    text: StrictStr
    filename: StrictStr = "tmp"
    time: StrictInt | StrictFloat | None = None


class GapFields(BaseModel):
    """The text around the gap. prompt: the part of the gap that is already written."""

    input_prefix: StrictStr
    input_suffix: StrictStr
    prompt: StrictStr = ""
    input_extra: Listed[ExtraChunk] | None = None


async def fill_prompt(answering: Answering, body: GapFields, limit: int | None) -> tuple[int, ...]:
    """Returns the prompt of a gap as token ids. limit: tokens that may come. Raises Refusal."""
    about = answering.loaded()
    marks = fill_tokens(about)
    answer = EXPECTED if limit is None else limit
    room = max(0, about.n_ctx - min(answer, about.n_ctx // 2) - MARKS)
    gap = await _gap(answering, body)
    return arranged(gap, marks, bos=about.bos_token, window=min(WINDOW, room), room=room)


async def _gap(answering: Answering, body: GapFields) -> Gap:
    async def tokens_of(text: str) -> tuple[int, ...]:
        return await answering.worker.tokenize(text, add_bos=False, special=False) if text else ()

    chunks = body.input_extra or []
    texts = [body.input_prefix, body.prompt, body.input_suffix, REPOSITORY, LAST_FILE, SNIPPET]
    names = [f"{chunk.filename}\n" for chunk in chunks]
    tokens = await asyncio.gather(*map(tokens_of, (*texts, *names, *(chunk.text for chunk in chunks))))
    prefix, prompt, suffix, repository, last_file, snippet, *others = tokens
    parts = zip(others[: len(chunks)], others[len(chunks) :], strict=True)
    return Gap(
        prefix=prefix,
        prompt=prompt,
        suffix=suffix,
        chunks=[Chunk(name, text) for name, text in parts],
        repository=repository,
        last_file=last_file,
        snippet=snippet,
    )


def fill_tokens(about: Loaded) -> FillTokens:
    """Returns a model's tokens for this; raises Refusal if it has none."""
    if about.fill is None:
        sentence = (
            f"infill is not supported by {about.name}: its vocabulary has no tokens for filling in; "
            "load a model made for it, such as Qwen2.5-Coder"
        )
        raise not_here(sentence, "no_fill_tokens")
    return about.fill
