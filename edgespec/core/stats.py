"""Rounds -> what speculation did. The definitions are the same everywhere in EdgeSpec:

- acceptance_rate = accepted / drafted (None when nothing was drafted);
- acceptance_by_position[i] = accepted at position i / times position i was reached;
- mean_accepted_length = tokens emitted per verification round, recovered or bonus token included (also
  where a stop or limit then cut them); a verification round is one in which drafted tokens were judged
  (None when there was none);
- ttft_s = from the request to the first token; tpot_s = (last - first token time) / (n_tokens - 1);
- tok_per_s = 1 / tpot_s; n_tokens counts without the end token;
- seconds = where the time between the first and the last token went: in the draft (llama.cpp), in the
  target verifying (llama.cpp), and everything else (Python).
"""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from edgespec.core.values import FinishReason, Round


@dataclass(frozen=True, slots=True)
class Statistics:
    """The figures of one generation; None if there is nothing to divide."""

    n_tokens: int
    tok_per_s: float | None
    ttft_s: float | None
    tpot_s: float | None
    drafted: int
    accepted: int
    acceptance_rate: float | None
    mean_accepted_length: float | None
    acceptance_by_position: tuple[float, ...]
    seconds: dict[str, float]
    finish_reason: FinishReason | None
    prompt_tokens: int

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def lines(self) -> list[str]:
        """Returns the figures in two or three short lines for people."""
        speed = f"{self.tok_per_s:.1f} tok/s" if self.tok_per_s else "too few tokens for a speed"
        first = f", first token after {self.ttft_s * 1000:.0f} ms" if self.ttft_s is not None else ""
        spent = ", ".join(f"{name} {value * 1000:.0f} ms" for name, value in self.seconds.items())
        tokens = f"{self.n_tokens} token{'s'[: self.n_tokens != 1]}"
        out = [f"{tokens}, {speed}{first} ({self.prompt_tokens} tokens of prompt)"]
        if self.acceptance_rate is None or self.mean_accepted_length is None:
            out.append(f"plain decoding: nothing was drafted; {spent}")
        else:
            by_position = " ".join(f"{rate:.2f}" for rate in self.acceptance_by_position[:8])
            rate = f"{self.acceptance_rate:.2f} ({self.accepted} of {self.drafted})"
            out.append(f"acceptance rate {rate}, by position {by_position}")
            out.append(f"mean accepted length {self.mean_accepted_length:.2f}; {spent}")
        return out


@dataclass(slots=True)
class Counts:
    """The counts of an answer's rounds that loop, server, client and screen share."""

    n_tokens: int = field(default=0, init=False)
    drafted: int = field(default=0, init=False)
    accepted: int = field(default=0, init=False)
    verified_rounds: int = field(default=0, init=False)  # rounds in which guesses were judged

    def count(self, round_: Round, n_tokens: int | None = None) -> None:
        """Counts one round. n_tokens: if the round does not say, as with another kind of server."""
        self.n_tokens += len(round_.tokens) if n_tokens is None else n_tokens
        self.drafted += round_.drafted
        self.accepted += round_.accepted
        self.verified_rounds += bool(round_.drafted)

    @property
    def acceptance_rate(self) -> float | None:
        return self.accepted / self.drafted if self.drafted else None

    @property
    def mean_accepted_length(self) -> float | None:
        rounds = self.verified_rounds
        return (self.accepted + rounds) / rounds if rounds else None


@dataclass(slots=True)
class Tally(Counts):
    """Takes the rounds of one generation as they come."""

    # returns seconds spent so far inside llama.cpp as (draft, target)
    busy: Callable[[], tuple[float, float]]
    clock: Callable[[], float] = time.perf_counter  # seconds, monotonic
    finish: FinishReason | None = None
    notice: str = ""  # of a draft that failed
    started: float = field(init=False)
    _first: tuple[float, float, float] | None = None  # (time, draft busy, target busy) at the first token
    _last: tuple[float, float, float] | None = None
    _reached: list[int] = field(default_factory=list)
    _stayed: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.started = self.clock()

    def note(self, round_: Round) -> None:
        """Counts one round, at the moment it is seen."""
        if round_.tokens:
            self._last = (self.clock(), *self.busy())
            self._first = self._first or self._last
        self.count(round_)
        self.finish = round_.finish or self.finish
        self.notice = round_.notice
        if round_.drafted:
            self._note_positions(round_)

    def _note_positions(self, round_: Round) -> None:
        for counts in (self._reached, self._stayed):
            counts.extend([0] * (round_.drafted - len(counts)))
        for i in range(min(round_.drafted, round_.accepted + 1)):
            self._reached[i] += 1
            self._stayed[i] += i < round_.accepted

    def statistics(self, prompt_tokens: int) -> Statistics:
        """Returns the figures so far."""
        first, last = self._first, self._last
        span = tuple(b - a for a, b in zip(first, last, strict=True)) if first and last else (0.0, 0.0, 0.0)
        tpot = span[0] / (self.n_tokens - 1) if self.n_tokens > 1 and span[0] > 0 else None
        return Statistics(
            n_tokens=self.n_tokens,
            tok_per_s=1 / tpot if tpot else None,
            ttft_s=first[0] - self.started if first else None,
            tpot_s=tpot,
            drafted=self.drafted,
            accepted=self.accepted,
            acceptance_rate=self.acceptance_rate,
            mean_accepted_length=self.mean_accepted_length,
            acceptance_by_position=tuple(
                s / r for s, r in zip(self._stayed, self._reached, strict=True) if r
            ),
            seconds={"draft": span[1], "verify": span[2], "other": max(0.0, span[0] - span[1] - span[2])},
            finish_reason=self.finish,
            prompt_tokens=prompt_tokens,
        )
