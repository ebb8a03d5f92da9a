"""The figures of one answer while it comes: speed, acceptance, the length of drafts and why.

Definitions are those of `edgespec.core.stats`. A speed-up here is an estimate, and is called one wherever it
is shown: what plain decoding would have taken, over what was taken. The cost of a plain token is that of
rounds without a draft as seen here, all overheads included, and before enough of them were seen, what
the engine measured. A measured speed-up exists only where plain decoding really ran (see `race`).
"""

import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from edgespec.client.answer import Ended, StreamedRound
from edgespec.core.stats import Counts
from edgespec.core.values import Round
from edgespec_tui.sessions.conversation import Figure

NOW_S = 2.0  # live speed is that of the last two seconds
SAMPLE_S = 0.5
SAMPLES = 120
PLAIN_ROUNDS = 12  # that must have been seen before their cost is trusted
TIMED_FROM = 3  # tokens: two may come at once
ESTIMATED_FROM = 50  # tokens; a speed-up of fewer says more about the machine than the draft
NAMES = {"model": "draft model"}  # others are shown by their own names


@dataclass(slots=True)
class LiveFigures(Counts):
    """Takes the rounds of one answer as they come. clock: monotonic seconds, as in `StreamedRound.at`."""

    plain_s: float | None = None
    speculation: bool = True
    silent_s: float = 10.0  # without a token: there is no speed
    clock: Callable[[], float] = time.monotonic
    latest: Round | None = None
    guesser: str = ""  # the last one whose guess was accepted
    began: float = field(init=False)
    first: float | None = None
    last: float | None = None
    ended: Ended | None = None
    over: bool = False  # the answer has ended, in whatever way
    by_source: Counter[str] = field(default_factory=Counter)
    samples: deque[float] = field(default_factory=lambda: deque(maxlen=SAMPLES))
    plain_rounds: int = 0
    _plain_spent: float = 0.0
    _recent: deque[tuple[float, int]] = field(default_factory=deque)
    _sampled: float | None = None
    messages: int = 1  # of the model's, in an answer that calls tools
    _waited: bool = False

    def __post_init__(self) -> None:
        self.began = self.clock()

    def waited(self) -> None:
        """Leaves the time to the next token out of all speeds: a tool ran, or the user chose."""
        self._waited, self.messages = True, self.messages + 1

    def note(self, streamed: StreamedRound) -> None:
        """Counts one round."""
        round_, n = streamed.round, streamed.n_tokens
        if n and self._waited and self.first is not None and self.last is not None:
            self.first += streamed.at - self.last
            self.last, self._waited = streamed.at, False
        elif n and self.last is not None and not round_.drafted:
            self.plain_rounds += 1
            self._plain_spent += streamed.at - self.last
        if n:
            self.first = streamed.at if self.first is None else self.first
            self.last = streamed.at
            self._recent.append((streamed.at, n))
        self.count(round_, n)
        self.latest = round_
        self.guesser = next((s for s in round_.sources if s != "target"), self.guesser)
        self.by_source.update(round_.sources)
        while self._recent and self._recent[0][0] < streamed.at - NOW_S:
            self._recent.popleft()
        if self._sampled is None or streamed.at >= self._sampled + SAMPLE_S:
            self.samples.append(self.now_per_s() or 0.0)
            self._sampled = streamed.at

    def now_per_s(self) -> float | None:
        """Returns the speed of the last two seconds; None before there are two rounds."""
        if len(self._recent) < 2:
            return None
        span = self._recent[-1][0] - self._recent[0][0]
        return (sum(n for _, n in self._recent) - self._recent[0][1]) / span if span > 0 else None

    def shown_per_s(self) -> float | None:
        """Returns the speed now, or of the whole answer once it has ended; None if nothing comes."""
        if self.over or self.ended or self.last is None:
            return self.tok_per_s()
        return None if self.clock() - self.last > self.silent_s else self.now_per_s() or self.tok_per_s()

    def tok_per_s(self) -> float | None:
        """Returns the speed so far, without the first token; the endpoint's own if it gave one."""
        if max(self.n_tokens, (self.ended and self.ended.n_tokens) or 0) < TIMED_FROM:
            return None
        if self.ended and self.ended.tok_per_s:
            return self.ended.tok_per_s
        span = self._span()
        return (self.n_tokens - 1) / span if span and self.n_tokens > 1 else None

    def _span(self) -> float | None:
        return self.last - self.first if self.first is not None and self.last is not None else None

    @property
    def ttft_s(self) -> float | None:
        return self.first - self.began if self.first is not None else None

    @property
    def seen_plain_s(self) -> float | None:
        """What a round without a draft took here; None before enough of them were seen."""
        return self._plain_spent / self.plain_rounds if self.plain_rounds >= PLAIN_ROUNDS else None

    @property
    def speedup(self) -> float | None:
        """The estimate for this answer; None if nothing was guessed, or too little is known."""
        if not self.speculation or not self.drafted or self.n_tokens < ESTIMATED_FROM:
            return None
        plain_s, span = self.seen_plain_s, self._span()
        if plain_s is None and self.ended and self.ended.speedup:
            return self.ended.speedup
        plain_s = plain_s or self.plain_s
        return plain_s * (self.n_tokens - 1) / span if plain_s and span and self.n_tokens > 1 else None

    def why(self) -> str:
        """Returns which draft length was chosen last, and why."""
        if not self.speculation:
            return "off, as you chose"
        if not self.n_tokens or self.latest is None:
            return ""
        drafted = self.latest.drafted
        if self.latest.notice or not drafted:
            return self.latest.notice or "none: plain decoding is faster now"
        who = NAMES.get(self.guesser, self.guesser)
        expected = f"{self.latest.gain:.1f}x expected" if self.latest.gain > 1.0 else "being tried"
        return f"{drafted} by {who}, {expected}" if who else f"{drafted}, {expected}"

    def as_figures(self) -> dict[str, Figure]:
        """Returns the figures that are saved with the turn."""
        ended = self.ended
        return {
            "n_tokens": self.n_tokens
            if ended is None or self.messages > 1
            else ended.n_tokens or self.n_tokens,
            "tok_per_s": self.tok_per_s(),
            "ttft_s": self.ttft_s,
            "drafted": self.drafted,
            "accepted": self.accepted,
            "acceptance_rate": self.acceptance_rate,
            "mean_accepted_length": self.mean_accepted_length,
            "speedup_estimated": self.speedup,
            "prompt_tokens": ended.prompt_tokens if ended else None,
            "cached_tokens": ended.cached_tokens if ended else None,
        }
