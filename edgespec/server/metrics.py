"""The figures of /metrics, in Prometheus's format; under llama-server's names where it has the same figure.

Plain and speculative requests are counted separately (`mode`), so that a canary shows the live speed-up:
rate(edgespec_decode_seconds_total) over rate(edgespec_decode_tokens_total), plain against speculative.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from edgespec.core.values import Round
from edgespec.pairs.shown_name import shown_name
from edgespec.protocol.messages import Submit
from edgespec.server.choice_results import ChoiceResults
from edgespec.server.front_page import Recent
from edgespec.server.last_requests import LastRequests
from edgespec.server.supervisor import Supervisor
from edgespec.server.worker_life import WorkerLife

FIRST = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
EACH = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)

ANSWERS = frozenset({"ready", "unloaded"})  # states of the engine; the next request loads what was unloaded
ENOUGH = 50  # tokens of plain decoding after which its speed counts as known
KEPT = 0.8  # weight of older tokens after that many new ones


@dataclass(slots=True)
class Window:
    """What was done since the last look."""

    tokens: int = 0
    seconds: float = 0.0

    def note(self, tokens: int, seconds: float) -> None:
        self.tokens, self.seconds = self.tokens + tokens, self.seconds + seconds

    def take(self) -> float:
        """Returns tokens per second, 0 if there were none, and starts anew."""
        rate = self.tokens / self.seconds if self.seconds else 0.0
        self.tokens, self.seconds = 0, 0.0
        return rate


@dataclass(slots=True)
class Plain:
    """What plain decoding takes on one engine: sums over answers, in which older ones fade."""

    pid: int | None = None
    tokens: float = 0.0
    seconds: float = 0.0

    def note(self, tokens: int, seconds: float) -> None:
        kept = KEPT ** (tokens / ENOUGH)
        self.tokens, self.seconds = kept * self.tokens + tokens, kept * self.seconds + seconds

    @property
    def seconds_per_token(self) -> float | None:
        return self.seconds / self.tokens if self.tokens >= ENOUGH else None


class Metrics:
    """The figures of one server, in its own registry."""

    def __init__(self, engines: Supervisor) -> None:
        self.registry = CollectorRegistry()
        counter = partial(Counter, registry=self.registry)
        histogram = partial(Histogram, registry=self.registry)
        self._requests = counter("edgespec_requests", "answers ended", ["mode", "finish"])
        self._prompt = counter("llamacpp:prompt_tokens", "prompt tokens evaluated")
        self._cached = counter("llamacpp:prompt_tokens_cached", "prompt tokens reused")
        self._reused = counter("edgespec_prompt_tokens_reused", "the same, by where they were", ["origin"])
        why = "prompt tokens evaluated again, by who can change it"
        self._again = counter("edgespec_prompt_tokens_again", why, ["cause"])
        self._predicted = counter("llamacpp:tokens_predicted", "tokens generated")
        self._prompt_s = counter("llamacpp:prompt_seconds", "time for prompts")
        self._predicted_s = counter("llamacpp:tokens_predicted_seconds", "time for tokens after the first")
        self._read, self._written, self._longest = Window(), Window(), 0
        spec = "llamacpp:spec_decode_num"
        self._drafts = counter(f"{spec}_drafts", "drafts verified")
        self._drafted = counter(f"{spec}_draft_tokens", "tokens guessed")
        self._accepted = counter(f"{spec}_accepted_tokens", "guesses that stayed")
        by_place = f"{spec}_accepted_tokens_per_pos"
        self._by_place = counter(by_place, "guesses that stayed, by place", ["position"])
        self._engines, self.recent, self.last = engines, Recent(), LastRequests()
        self._plain: dict[WorkerLife, Plain] = {}
        self._tokens = counter("edgespec_decode_tokens", "tokens after the first", ["mode"])
        self._seconds = counter("edgespec_decode_seconds", "time for them", ["mode"])
        first, each = "from the turn to the first token", "time per token after the first"
        self._first = histogram("edgespec_ttft_seconds", first, buckets=FIRST)
        self._each = histogram("edgespec_tpot_seconds", each, ["mode"], buckets=EACH)
        up, restarts = "1 where requests are answered", "times the engine was started again"
        for name, text, value in (
            ("requests_running", "requests waiting or answered", lambda: engines.requests),
            ("engine_up", up, lambda: engines.current.state in ANSWERS),
            ("engine_restarts", restarts, lambda: sum(one.restarts for one in engines.workers.values())),
            ("draft_seconds", "time in the draft, current engine", lambda: engines.current.busy[0]),
            ("verify_seconds", "time in the target, current engine", lambda: engines.current.busy[1]),
        ):
            Gauge(f"edgespec_{name}", text, registry=self.registry).set_function(value)

    def emitted(self, round_: Round) -> None:
        """Counts a round."""
        self.recent.note(round_)
        self._predicted.inc(len(round_.tokens))
        if round_.drafted:
            self._drafts.inc()
            self._drafted.inc(round_.drafted)
            self._accepted.inc(round_.accepted)
            for place in range(round_.accepted):
                self._by_place.labels(str(place)).inc()

    def ended(self, choice: ChoiceResults, worker: WorkerLife, asked: Submit) -> None:
        """Counts a choice, whole or not."""
        if asked.request.choice == 0:
            self.last.note(asked.owner, shown_name(Path(worker.load.target)), choice)
        plain = asked.request.drafter == "none"
        mode = "plain" if plain else "speculative"
        self._requests.labels(mode, choice.finish or "cancelled").inc()
        self._prompt.inc(choice.known_tokens - choice.cached_tokens)
        self._cached.inc(choice.cached_tokens)
        self._reused.labels(choice.origin).inc(choice.cached_tokens)
        if why := choice.broken:
            self._again.labels(why.cause).inc(why.again)
        self._longest = max(self._longest, choice.prompt_tokens + choice.n_tokens)
        if choice.n_tokens:
            self._first.observe(choice.first - choice.started)
            self._prompt_s.inc(choice.first - choice.started)
            self._read.note(choice.known_tokens - choice.cached_tokens, choice.first - choice.started)
        if choice.n_tokens > 1 and plain:
            self._plain_of(worker).note(choice.n_tokens - 1, choice.last - choice.first)
        if choice.n_tokens > 1:
            self._tokens.labels(mode).inc(choice.n_tokens - 1)
            self._seconds.labels(mode).inc(choice.last - choice.first)
            self._predicted_s.inc(choice.last - choice.first)
            self._written.note(choice.n_tokens - 1, choice.last - choice.first)
            self._each.labels(mode).observe((choice.last - choice.first) / (choice.n_tokens - 1))

    def plain_s(self, worker: WorkerLife) -> float | None:
        """Returns seconds per token of recent plain decoding; None if there was too little of it."""
        return self._plain_of(worker).seconds_per_token

    def _plain_of(self, worker: WorkerLife) -> Plain:
        """Returns what is known of a pair; another process starts anew."""
        if worker not in self._plain or self._plain[worker].pid != worker.pid:
            self._plain[worker] = Plain(worker.pid)
        return self._plain[worker]

    def text(self) -> tuple[bytes, str]:
        """Returns the text of /metrics, and its media type."""
        return generate_latest(self.registry) + self._llama_servers().encode(), CONTENT_TYPE_LATEST

    def _llama_servers(self) -> str:
        """Returns figures with llama-server's names and types, which the client library would not write.

        Its speeds cover the time since the last look, and start anew.
        """
        workers = self._engines.workers.values()
        waiting, decodes = sum(one.waiting for one in workers), sum(one.decodes for one in workers)
        figures = (
            ("n_decode_total", "counter", "evaluations of the target", decodes),
            ("n_tokens_max", "counter", "most tokens of a prompt and its answer", self._longest),
            ("prompt_tokens_seconds", "gauge", "prompt tokens per second, since asked", self._read.take()),
            ("predicted_tokens_seconds", "gauge", "tokens per second, since asked", self._written.take()),
            ("requests_processing", "gauge", "requests in slots", self._engines.requests - waiting),
            ("requests_deferred", "gauge", "requests that wait for a slot", waiting),
            (
                "n_busy_slots_per_decode",
                "gauge",
                "requests in slots at an evaluation, on average",
                sum(one.in_slots for one in workers) / max(1, decodes),
            ),
        )
        lines = (
            f"# HELP llamacpp:{name} {text}\n# TYPE llamacpp:{name} {kind}\nllamacpp:{name} {value}\n"
            for name, kind, text, value in figures
        )
        return "".join(lines)
