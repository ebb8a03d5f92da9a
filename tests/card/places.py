"""Where the layers of target and draft are, and texts of one place compared with those of another."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgespec.commands.verify.equality import (
    END,
    Difference,
    Output,
    first_difference,
    largest_difference,
    replayed_row,
)
from edgespec.core.verify import Coupled
from edgespec.engine.pair import Pair
from edgespec.sampling.sampler import Sampler

# of a logit, between processor and card; logits of the embedded target have a deviation of 3.4 to 5
LOGITS_DIFFER_AT_MOST = 0.5


@dataclass(frozen=True, slots=True)
class Place:
    """Layers on the card; -1 is all of them."""

    target: int
    draft: int


PROCESSOR = Place(0, 0)
PLACES = {
    "all on the card": Place(-1, -1),
    "some of the target's layers": Place(4, -1),
    "target on the card, draft on the processor": Place(-1, 0),
    "target on the processor, draft on the card": Place(0, -1),
}


def apart(here: Pair, text: Output, there: Pair, other: Output) -> Difference | None:
    """Compares texts that two pairs wrote, each where its layers lie; None where they are the same."""
    at = first_difference(text.tokens, other.tokens)
    if at is None:
        return None
    sampler = Sampler(text.request.sampling, here.target.n_vocab)
    rule = Coupled(text.request.seed or 0, text.request.choice)
    rows, explained = [], True
    for pair, run in ((here, text), (there, other)):
        rows.append(replayed_row(pair.target, pair.target_context.settings, run, at))
        before = np.concatenate([run.prompt, np.array(run.tokens[:at], np.int32)])
        chosen = rule.draw(sampler(rows[-1], before), before.size)
        said = run.tokens[at] if at < len(run.tokens) else END
        explained &= said == (END if chosen in pair.target.end_tokens else chosen)
    return Difference(at, explained, largest_difference(*rows))
