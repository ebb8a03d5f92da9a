"""Where later prompts may differ from one: at the ends of its messages, and here and there in long ones.

Chat templates put control tokens between messages, so a text's places say more of it than a list of
messages would: prompts that clients render themselves have them as well. What differs begins right behind
such a token, so that a model that cannot go back keeps a checkpoint before it.
"""

import numpy as np
from numpy.typing import NDArray

from edgespec.core.media import whole_before

NEAR = 512  # tokens: a place so soon behind another is none
FAR = 8192  # tokens of one message, behind which is a place even so
LAST = 32  # tokens: so long is what a template puts behind the last message
END = 4  # tokens that are left behind the last place of a prompt without messages


def borders(prompt: NDArray[np.int32], control: NDArray[np.bool_]) -> tuple[int, ...]:
    """Returns the places, as numbers of tokens before them. control: which tokens no text contains."""
    known = (prompt >= 0) & (prompt < control.size)
    places = np.flatnonzero(control[np.where(known, prompt, 0)] & known).tolist()
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
