"""Record how a target in llama.cpp continues many prompts side by side: its states and rows.

The teacher is the file that people run, quantised as it is. A slot whose text ends takes the next prompt at
once, so every evaluation is as wide as it can be.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edgespec_train.hidden import Hidden
from edgespec_train.progress import StopRequest
from edgespec_train.recorded import TOP, Ids, PromptToRecord, RecordedText, id_type

Row = NDArray[np.float32]


@dataclass(slots=True)
class TextInProgress:
    """Hold a text in progress."""

    prompt: PromptToRecord
    ids: list[int]
    states: list[NDArray[np.float16]] = field(default_factory=list)  # (tokens, F) each
    top_ids: list[Ids] = field(default_factory=list)
    top_p: list[NDArray[np.float16]] = field(default_factory=list)

    def ended(self, ends: set[int]) -> bool:
        return self.ids[-1] in ends or len(self.ids) - len(self.prompt.tokens) >= self.prompt.limit

    def recorded(self) -> RecordedText:
        return RecordedText(
            np.asarray(self.ids, self.top_ids[0].dtype),
            len(self.prompt.tokens),
            self.prompt.temperature,
            np.concatenate(self.states),
            np.stack(self.top_ids),
            np.stack(self.top_p),
        )


def best_of(logits: Row) -> tuple[Ids, NDArray[np.float16]]:
    """Return the TOP most likely tokens of rows (n, V) and their probabilities, best first.

    In torch, whose selections, exponentials and sums take a fifth of numpy's time on whole rows.
    """
    scores = torch.from_numpy(logits)
    best, ids = scores.topk(TOP)
    p = (best - scores.logsumexp(-1, keepdim=True)).exp()
    return ids.numpy().astype(id_type(logits.shape[1])), p.half().numpy()


def draw(scores: Tensor, best: Tensor, temperatures: Tensor, noise: torch.Generator) -> Tensor:
    """Draw a token for each row (n, V) at its temperature (n); 0 takes the best, which is given (n)."""
    warm = (temperatures > 0).nonzero()[:, 0]
    rows = scores[warm]
    rows = (rows - rows.amax(-1, keepdim=True)).div_(temperatures[warm, None]).exp_().cumsum(-1)
    level = torch.rand(len(warm), 1, generator=noise, device=scores.device) * rows[:, -1:]
    drawn = torch.searchsorted(rows, level, right=True)[:, 0].clamp_max(scores.shape[1] - 1)
    return best.index_copy(0, warm, drawn)


def take(slots: list[TextInProgress], logits: Row, states: list[Row], noise: torch.Generator) -> None:
    """Give each slot its states (tokens, F), its row (n, V), and the token drawn from it."""
    top_ids, top_p = best_of(logits)
    best = torch.from_numpy(top_ids[:, 0].astype(np.int64))
    temperatures = torch.tensor([slot.prompt.temperature for slot in slots])
    drawn = draw(torch.from_numpy(logits), best, temperatures, noise).tolist()
    for i, slot in enumerate(slots):
        slot.states.append(states[i].astype(np.float16))
        slot.top_ids.append(top_ids[i])
        slot.top_p.append(top_p[i])
        slot.ids.append(drawn[i])


def read_back(target: Hidden, prompt: PromptToRecord, sequence: int) -> RecordedText:
    """Read an earlier text of the target, for its states and rows."""
    ids, first = [*prompt.tokens, *prompt.answer], len(prompt.tokens) - 1
    target.forget(0, sequence)
    top_ids, top_p = best_of(target.evaluate([(t, i, sequence, i >= first) for i, t in enumerate(ids[:-1])]))
    states = target.states(len(ids) - 1).astype(np.float16)
    return RecordedText(np.asarray(ids, top_ids.dtype), first + 1, prompt.temperature, states, top_ids, top_p)


def record(
    target: Hidden,
    prompts: Iterable[PromptToRecord],
    ends: set[int],
    width: int,
    seed: int,
    stop: StopRequest | None = None,
) -> Iterator[RecordedText]:
    """Yield every text when it has ended, `width` of them at a time; needs as many sequences.

    If a stop is requested, texts end where they are.
    """
    noise = torch.Generator().manual_seed(seed)
    waiting = iter(prompts)
    slots: dict[int, TextInProgress] = {}
    while True:
        for sequence in range(width):
            if slots and stop and stop.wanted:
                break
            if sequence not in slots and (prompt := next(waiting, None)):
                if prompt.answer:
                    yield read_back(target, prompt, sequence)
                    continue
                slots[sequence] = slot = TextInProgress(prompt, list(prompt.tokens))
                last = len(prompt.tokens) - 1
                target.forget(0, sequence)
                row = target.evaluate([(t, i, sequence, i == last) for i, t in enumerate(prompt.tokens)])
                take([slot], row, [target.states(last + 1)], noise)
        if stop and stop.wanted:
            yield from (slot.recorded() for slot in slots.values())
            return
        ended = [n for n, slot in slots.items() if slot.ended(ends)]
        for sequence in ended:
            yield slots.pop(sequence).recorded()
        if ended:
            continue  # their slots are for the next prompts
        if not slots:
            if (prompt := next(waiting, None)) is None:
                return
            waiting = chain((prompt,), waiting)
            continue
        places = sorted(slots)
        logits = target.evaluate([(slots[s].ids[-1], len(slots[s].ids) - 1, s, True) for s in places])
        states = target.states(len(places))
        take([slots[s] for s in places], logits, [states[i : i + 1] for i in range(len(places))], noise)
