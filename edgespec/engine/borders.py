"""Where later prompts may differ from one: at the ends of its messages, and here and there in long ones.

Most chat templates put control tokens between messages, so a text's places say more of it than a list of
messages would: prompts that clients render themselves have them as well. What differs begins right behind
such a token, so that a model that cannot go back keeps a checkpoint before it. Where a template has no such
tokens, the places are where the texts of messages begin and end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edgespec.core.media import whole_before
from edgespec.llama.model import Model

if TYPE_CHECKING:  # importing it takes as long as a hundredth of a start
    from edgespec.protocol.messages import Submit

NEAR = 512  # tokens: a place so soon behind another is none
FAR = 8192  # tokens of one message, behind which is a place even so
LAST = 32  # tokens: so long is what a template puts behind the last message
END = 4  # tokens that are left behind the last place of a prompt without messages


def borders_of(message: Submit, prompt: NDArray[np.int32], target: Model) -> tuple[int, ...]:
    """Returns the places of a request's prompt; its tokens are spelt only if no control tokens mark them."""
    spans = message.messages
    if not isinstance(message.prompt, str) or len(_marked(prompt, target.control)) >= len(spans):
        return borders(prompt, target.control)
    sizes = [len(target.piece(token, special=True)) for token in prompt.tolist()]
    return borders(prompt, target.control, token_places(sizes, message.prompt, spans))


def borders(
    prompt: NDArray[np.int32], control: NDArray[np.bool_], others: Sequence[int] = ()
) -> tuple[int, ...]:
    """Returns the places, as numbers of tokens before them. control: which tokens no text contains.

    others: places as well.
    """
    places = sorted({*_marked(prompt, control), *others})
    last = next((place for place in places if place >= prompt.size - LAST), prompt.size - END)
    found, at = list[int](), 0
    for place in [place for place in places if place < last]:
        found += range(at + FAR, place - NEAR, FAR)
        at = found[-1] if found else 0
        if place - at >= NEAR:
            found.append(place)
            at = place
    found += [*range(at + FAR, last - NEAR, FAR), last]
    return tuple(sorted({n for n in (whole_before(prompt, n) for n in found) if n > 0}))


def _marked(prompt: NDArray[np.int32], control: NDArray[np.bool_]) -> list[int]:
    """Returns where control tokens are."""
    known = (prompt >= 0) & (prompt < control.size)
    found: list[int] = np.flatnonzero(control[np.where(known, prompt, 0)] & known).tolist()
    return found


def token_places(sizes: Sequence[int], text: str, spans: Iterable[tuple[int, int]]) -> list[int]:
    """Returns the places where spans of a text begin and end. sizes: bytes of each token of it.

    A token across such a place is behind it. What tokens have beyond the text is taken to be its beginning:
    a start token, or a space.
    """
    places = sorted({place for span in spans for place in span})
    parts = [text[a:b].encode("utf-8", "replace") for a, b in zip([0, *places], places, strict=False)]
    ends = np.cumsum(sizes)
    beyond = sum(sizes) - len(text.encode("utf-8", "replace"))
    found: list[int] = np.searchsorted(ends, np.cumsum([*map(len, parts)]) + beyond, side="right").tolist()
    return found
