"""Takes samples of llama-server, on the same files as EdgeSpec's and with empty caches, as EdgeSpec's are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import psutil
from numpy.typing import NDArray
from peer import Completion, LlamaServer
from peer_command import PeerError, PeerSettings

from edgespec.measure.figures import Sample
from edgespec.measure.lines import Line, Unit
from edgespec.measure.takers import WARM_UP_TOKENS, Asked, Cancelled, whose

FREE_SHARE = 0.5  # of the free memory, for peers that are kept running


class PeerTaker:
    """Takes samples from llama-server: one process for each draft length, started when first needed.

    They are kept running if all of them together fit into half of the free memory; otherwise each ends
    before the next is started. Use it in a `with`.
    """

    def __init__(
        self,
        settings: PeerSettings,
        lines: Sequence[Line],
        asked: Asked,
        prompts: dict[str, NDArray[np.int32]],
        cancelled: Cancelled,
    ) -> None:
        self.settings, self.asked, self.prompts, self.cancelled = settings, asked, prompts, cancelled
        n_servers = len({(line.plain, line.draft_length) for line in lines})
        files = [path for path in (settings.target, settings.draft) if path]
        weight = n_servers * sum(path.stat().st_size for path in files)
        self.keeps = weight < FREE_SHARE * psutil.virtual_memory().available
        self._running: dict[tuple[bool, int | None], LlamaServer] = {}
        self._failed: PeerError | None = None

    def __enter__(self) -> PeerTaker:
        return self

    def __exit__(self, *_: object) -> None:
        self._close_all()

    def _close_all(self) -> None:
        while self._running:
            self._running.popitem()[1].close()

    def warm_up(self, lines: Sequence[Line]) -> None:
        """Starts what is kept running, before time counts. A failure is reported at the first sample."""
        try:
            for line in lines:
                if self.keeps and not self.cancelled():
                    self._server(line)
        except PeerError as error:
            self._failed = error
            self._close_all()

    def _server(self, line: Line) -> LlamaServer:
        key = (line.plain, line.draft_length)
        if key not in self._running:
            if not self.keeps:
                self._close_all()
            guessing = replace(self.settings, draft_length=line.draft_length)
            settings = self.settings.plain if line.plain else guessing
            server = self._running[key] = LlamaServer(settings, cancelled=self.cancelled)
            warm_up = self.asked.sampling_for(line)
            server.complete([1], sampling=warm_up, max_tokens=WARM_UP_TOKENS)
        return self._running[key]

    def __call__(self, line: Line, unit: Unit) -> Sample | None:
        if self._failed:
            raise self._failed
        seed = self.asked.seed + unit.repeat
        try:
            answer = self._server(line).complete(
                self.prompts[unit.prompt.name].tolist(),
                sampling=self.asked.sampling_for(line),
                max_tokens=self.asked.max_tokens,
                seed=seed,
                stop=self.asked.stop,
            )
        except PeerError:
            self._close_all()
            raise
        return peer_sample(answer, line, unit, seed)


def peer_sample(answer: Completion, line: Line, unit: Unit, seed: int) -> Sample:
    """Returns the peer's answer as a sample; it reports neither its rounds nor where its time went."""
    ended = answer.finish_reason == "stop" and not answer.text.strip() == ""
    return Sample(
        *whose(line, unit, seed),
        n_tokens=max(0, answer.steps + 1 - ended),
        prompt_tokens=answer.n_prompt,
        ttft_s=answer.prompt_s,
        steps=answer.steps,
        decode_s=answer.decode_s,
        wall_s=answer.wall_s,
        drafted=answer.drafted,
        accepted=answer.accepted,
        seconds=None,
        rounds=(),
        finish_reason=answer.finish_reason,
        text=answer.text,
    )
