"""A list of tokens with their pieces, as JSON."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence

BATCH = 2000  # tokens that are written at once


async def listed(tokens: Sequence[int], pieces: Sequence[bytes]) -> AsyncIterator[str]:
    """Yields the tokens with their pieces as JSON, some at a time: others are answered in between."""
    yield '{"tokens":['
    for i in range(0, len(tokens), BATCH):
        both = zip(tokens[i : i + BATCH], pieces[i : i + BATCH], strict=True)
        listed = json.dumps([{"id": token, "piece": _piece(piece)} for token, piece in both])
        yield ("," if i else "") + listed[1:-1]
        await asyncio.sleep(0)
    yield "]}"


def _piece(spelt: bytes) -> object:
    """Returns a token's text, or its bytes if they are not text by themselves."""
    try:
        return spelt.decode()
    except UnicodeDecodeError:
        return list(spelt)
