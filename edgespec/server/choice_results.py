"""What came of one choice of a request: its counts and times, and their form in an answer."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from edgespec.core.stats import Counts
from edgespec.core.values import Broken, FinishReason, Origin, Round, Started
from edgespec.server.logprobs import Scored


@dataclass(slots=True)
class ChoiceResults(Counts):
    """The results of one choice so far. Times are the worker's clock."""

    prompt_tokens: int = 0
    normalized: tuple[str, ...] = ()  # lines of its system prompt that were left out or moved
    cached_tokens: int = 0
    origin: Origin = "slot"  # where they were
    broken: Broken | None = None  # why others were evaluated again
    known_tokens: int = 0  # of the prompt, that the target has, as far as reported
    rounds: int = 0
    start: Mapping[str, float] = field(default_factory=dict)  # timings that the engine reported at its start
    started: float = 0.0
    first: float = 0.0
    last: float = 0.0
    finish: FinishReason | None = None
    plain_s: float | None = None  # estimated cost of a token of plain decoding when the last round ended
    growth_s: float = 0.0  # how much longer it takes for each token before it
    n_ctx: int | None = None
    # what one took recently, on average; None if plain decoding did not run
    measured_s: float | None = None
    text: list[str] = field(default_factory=list)
    scored: list[Scored] = field(default_factory=list)

    def note(self, round_: Round, at: float) -> None:
        """Counts one round."""
        if not self.rounds:
            self.first, self.known_tokens = at, self.prompt_tokens
        self.last = at
        self.rounds += 1
        self.count(round_)
        self.finish = round_.finish

    def began(self, started: Started, at: float) -> None:
        """Notes that its turn has come."""
        self.started = self.first = self.last = at
        self.prompt_tokens = started.prompt_tokens
        self.known_tokens = self.cached_tokens = started.cached_tokens
        self.origin, self.broken, self.start = started.origin, started.broken, started.timings

    def read(self, known_tokens: int, at: float) -> bool:
        """Notes how much of its prompt has been read; False if that is nothing new."""
        if self.rounds or known_tokens <= self.known_tokens:  # it lost its slot, and reads again
            return False
        self.known_tokens, self.first, self.last = known_tokens, at, at
        return True

    def progress(self) -> dict[str, Any]:
        """Returns how much of the prompt has been read, in llama-server's format."""
        return {
            "total": self.prompt_tokens,
            "cache": self.cached_tokens,
            "processed": self.known_tokens,
            "time_ms": round((self.first - self.started) * 1000),
        }

    def edgespec_object(self, unread_calls: int, figures: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Returns the `edgespec` object of an answer, or {}: what is unusual, and figures of its dialect.

        unread_calls: calls that are content, because they could not be read.
        """
        unusual = {"normalized": list(self.normalized), "unread_calls": unread_calls}
        ours = {**(figures or {}), **{name: value for name, value in unusual.items() if value}}
        return {"edgespec": ours} if ours else {}

    def reuse(self) -> dict[str, Any]:
        """Returns where known tokens of the prompt were, and why others were evaluated again."""
        found: dict[str, Any] = (
            {"cached_from": {self.origin: self.cached_tokens}} if self.cached_tokens else {}
        )
        if why := self.broken:
            reason = {"tokens": why.again, "message": why.message, "was": why.was, "now": why.now}
            reason = {name: value for name, value in reason.items() if value not in (None, "")}
            found["evaluated_again"] = {**reason, "cause": why.cause}
        return found

    def timings(self, plain_s: float) -> dict[str, Any]:
        """Returns the figures under llama-server's names, and what speculation gained.

        speedup_estimated: what plain decoding would have taken, by the cost of one token at this length of
        text (plain_s: at its beginning), over what was taken; speedup_measured: by what tokens of plain
        decoding took here recently. Both are left out if nothing was drafted, too little was generated,
        or nothing was decoded plainly; n_ctx is left out if unknown: no figure is null.
        """
        prompt_n = self.known_tokens - self.cached_tokens
        prompt_s, predicted_s = max(0.0, self.first - self.started), max(0.0, self.last - self.first)
        after_first = self.n_tokens - 1
        one_s = (self.plain_s or plain_s) + self.growth_s * (self.prompt_tokens + self.n_tokens / 2)
        per_token_s = predicted_s / after_first if predicted_s and after_first > 0 else None
        measured_s = self.measured_s if self.drafted else None
        known = {
            "n_ctx": self.n_ctx,
            "speedup_estimated": one_s / per_token_s if self.drafted and per_token_s else None,
            "speedup_measured": measured_s / per_token_s if measured_s and per_token_s else None,
        }
        return {
            **self.start,
            "cache_n": self.cached_tokens,
            "prompt_n": prompt_n,
            "prompt_ms": prompt_s * 1000,
            "prompt_per_token_ms": prompt_s * 1000 / prompt_n if prompt_n else 0.0,
            "prompt_per_second": prompt_n / prompt_s if prompt_s else 0.0,
            "predicted_n": self.n_tokens,
            "predicted_ms": predicted_s * 1000,
            "predicted_per_token_ms": predicted_s * 1000 / after_first if after_first > 0 else 0.0,
            "predicted_per_second": after_first / predicted_s if predicted_s and after_first > 0 else 0.0,
            "draft_n": self.drafted,
            "draft_n_accepted": self.accepted,
            **self.reuse(),
            **{name: value for name, value in known.items() if value is not None},
        }
