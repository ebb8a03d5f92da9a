"""What answering needs of the server: the pairs, the settings in force, and what outlives a request."""

import random
from dataclasses import replace
from typing import Literal

from edgespec.chat.well_known import template_or_fallback
from edgespec.pairs.adapters import Scales
from edgespec.protocol.messages import Loaded, LoadRequest, longest_text
from edgespec.server.embeddings import Embeddings
from edgespec.server.metrics import Metrics
from edgespec.server.own_calls import OwnCalls
from edgespec.server.pairs import Pairs
from edgespec.server.settings import RequestDefaults, ServerSettings
from edgespec.server.supervisor import Supervisor
from edgespec.server.worker_life import WorkerLife


class Answering:
    """The server, as requests see it; `PairSession` is what one of them sees of its pair."""

    def __init__(
        self, engines: Supervisor, settings: ServerSettings, pairs: Pairs, embeddings: Embeddings
    ) -> None:
        self.engines, self.settings, self.pairs, self.embeddings = engines, settings, pairs, embeddings
        self.metrics, self.calls = Metrics(engines), OwnCalls()
        self._random = random.Random()
        self._scales: dict[WorkerLife, Scales] = {}  # where they were changed

    def worker(self, name: str | None) -> WorkerLife:
        """Returns the pair of a name, loaded or not; the current one without a name. Raises Refusal."""
        return self.engines.of(self.pairs.called(name))

    def defaults(self, worker: WorkerLife, about: Loaded) -> RequestDefaults:
        """Returns the defaults of a request. A share of the requests gets no drafter, for comparison."""
        defaults = self.settings.defaults
        drafter = "none" if self._random.random() < self.settings.canary else defaults.drafter
        sampling, scales = {**about.sampling, **defaults.sampling}, self.scales(worker, about)
        return replace(defaults, sampling=sampling, drafter=drafter, adapters=scales)

    def scales(self, worker: WorkerLife, about: Loaded) -> Scales:
        """Returns the scales of a pair's adapters where a request names none."""
        return self._scales.get(worker, tuple(adapter.scale for adapter in about.adapters))

    def set_scales(self, worker: WorkerLife, scales: Scales) -> None:
        """Changes these."""
        self._scales[worker] = scales

    def longest(self) -> tuple[int | None, list[str]]:
        """Returns how many characters a text may have, if known, and the names of models that may differ."""
        worker = self.engines.current
        if worker.about is None or worker.state != "ready":
            return None, []
        others = [pair for pair in self.pairs.known() if pair.load != worker.load]
        names = [name for pair in others for name in (pair.name, pair.target)]
        return longest_text(worker.about.n_ctx), names

    def template(self, load: LoadRequest, about: Loaded, *, tools: bool = False) -> str:
        """Returns the chat template: the one given, the model's own (for tools, if it has one), or ChatML."""
        own = tools and about.tool_template
        return self._given(load) or own or template_or_fallback(about.chat_template)

    def _given(self, load: LoadRequest) -> str | None:
        return self.settings.chat_template if self.pairs.is_first(load) else None

    def template_source(self, load: LoadRequest, about: Loaded) -> Literal["given", "model", "chatml"]:
        """Returns where the chat template comes from."""
        if self._given(load):
            return "given"
        return "model" if about.chat_template else "chatml"
