"""The engine in a process of its own: requests come in at stdin, what became of them goes out at stdout.

It runs the engine and nothing else: no HTTP, no JSON, no templates. One thread reads and turns text into
tokens (llama.cpp lets go of the GIL meanwhile), the main thread submits, cancels and steps. The pipe is the
life line: when its owner is gone, even by kill -9, the pipe closes and the worker ends. Ctrl+C is for the
owner; SIGTERM ends the worker once what was accepted is answered.

stdout belongs to the messages alone: it is moved aside before llama.cpp is loaded, and whatever else is
printed goes to stderr, whose last lines the owner shows when a worker died.
"""

from __future__ import annotations

import codecs
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from edgespec.engine import Pair
from edgespec.errors import EdgeSpecError, PromptTooLongError, QueueFullError, SettingError
from edgespec.events import Candidate, Emitted, Failed, Happening, Reading, Started, TokenScore
from edgespec.memory.free import free_memory
from edgespec.messages import (
    Accepted,
    Cancel,
    FromWorker,
    Load,
    Loaded,
    LoadFailed,
    Loading,
    RefusalKind,
    Refused,
    Spell,
    Spelt,
    Stage,
    Step,
    Submit,
    Tokenize,
    Tokenized,
    packed,
    receive,
)  # fmt: skip
from edgespec.pair_settings import PairSettings
from edgespec.request import Request
from edgespec.scheduler import Engine

MOST_CACHE_RAM = 8 * 2**30
LAST_STAGE = 0.95  # of loading is done when measuring begins
FAR = 1000  # tokens; what a token takes longer behind so many is told per token
LAST_STEP_S = 5.0  # how long the engine may take to notice that its owner is gone
Tokens = NDArray[np.int32]


@dataclass(slots=True)
class Outlet:
    """The way to the owner. One that does not listen any more ends the worker."""

    pipe: BinaryIO
    lock: threading.Lock = field(default_factory=threading.Lock)

    def send(self, message: FromWorker) -> None:
        data = packed(message)
        with self.lock:
            try:
                self.pipe.write(data)
                self.pipe.flush()
            except OSError:
                os._exit(1)


class Intake:
    """What the owner says, read in a thread from the first moment, and its text turned into tokens there."""

    def __init__(self, pipe: BinaryIO, outlet: Outlet) -> None:
        self._pipe, self._outlet = pipe, outlet
        self.pair: Pair | None = None  # set before the owner is told that there is one
        self.items: queue.SimpleQueue[tuple[Submit, Tokens] | Cancel | None] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        while (message := receive(self._pipe)) is not None:
            if isinstance(message, Spell):
                self._spell(message)
            elif isinstance(message, Submit | Tokenize):
                try:
                    if isinstance(message, Submit) and self.pair:  # here nobody's tokens wait for it
                        shown = shown_tokens(self.pair, message.shown)
                        self.pair.prepare(message.grammar, message.sampling, shown)
                    tokens = self._tokens(message)
                except EdgeSpecError as error:
                    self._outlet.send(_refused(message.id, error))
                    continue
                if isinstance(message, Submit):
                    self.items.put((message, tokens))
                else:
                    self._outlet.send(Tokenized(message.id, tuple(tokens.tolist())))
            else:
                self.items.put(message)
        self.items.put(None)  # the owner is gone
        time.sleep(LAST_STEP_S)
        os._exit(0)

    def _spell(self, message: Spell) -> None:
        assert self.pair
        piece = self.pair.target.piece
        try:
            pieces = tuple(piece(token, special=True) for token in message.tokens)
        except EdgeSpecError as error:
            self._outlet.send(_refused(message.id, error))
        else:
            self._outlet.send(Spelt(message.id, pieces))

    def _tokens(self, message: Submit | Tokenize) -> Tokens:
        assert self.pair
        if isinstance(message.prompt, str):
            text = message.prompt.encode("utf-8", "replace")
            special = message.special if isinstance(message, Tokenize) else True
            return self.pair.target.tokenize(text, special=special, add_bos=message.add_bos)
        return np.array(message.prompt, np.int32)


class Worker:
    """One pair and its requests, from the first message to the last."""

    def __init__(self, pair: Pair, engine: Engine, intake: Intake, outlet: Outlet) -> None:
        self._pair, self._engine, self._intake, self._outlet = pair, engine, intake, outlet
        self._pieces: dict[str, codecs.IncrementalDecoder] = {}  # of those who want them
        self.draining = False
        self._used = False  # costs are looked at again only where somebody has use for them
        self._decodes = self._in_slots = 0  # what the next `Step` tells

    def run(self) -> None:
        """Works until the owner is gone, or, after SIGTERM, until nothing is left to answer."""
        while not (self.draining and self._engine.idle):
            try:
                while True:
                    wait = self._engine.idle and not self.draining
                    item = self._intake.items.get(wait, timeout=0.5 if wait else None)
                    if item is None:
                        return
                    self._take(item)
            except queue.Empty:
                if self._engine.idle and self._used and not self._engine.tidy():
                    self._pair.look_again()
            if not self._engine.idle:
                self._used = True
                began, calls = time.monotonic(), self._pair.decodes
                happenings = self._engine.step()
                self._decodes += self._pair.decodes - calls
                self._in_slots += (self._pair.decodes - calls) * self._engine.in_slots
                self._tell(began, happenings)

    def _take(self, item: tuple[Submit, Tokens] | Cancel) -> None:
        if isinstance(item, Cancel):
            self._engine.cancel(item.id)
            self._pieces.pop(item.id, None)
            return
        message, tokens = item
        if self.draining:
            sentence = "the engine is ending: try again in a moment"
            self._outlet.send(Refused(message.id, "draining", sentence))
            return
        try:
            self._engine.submit(message.id, tokens, self._request(message))
        except EdgeSpecError as error:
            self._outlet.send(_refused(message.id, error))
            return
        if message.pieces:
            self._pieces[message.id] = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._outlet.send(Accepted(message.id, len(tokens)))

    def _request(self, message: Submit) -> Request:
        sampling = message.sampling
        if message.ignore_eos:
            never = dict.fromkeys(self._pair.target.end_tokens, float("-inf"))
            sampling = replace(sampling, logit_bias={**sampling.logit_bias, **never})
        return Request(
            sampling=sampling,
            max_tokens=self._pair.n_ctx if message.max_tokens is None else message.max_tokens,
            stop=message.stop,
            seed=message.seed,
            choice=message.choice,
            drafter=message.drafter,
            draft_length=message.draft_length,
            scoring=message.scoring,
            shown=shown_tokens(self._pair, message.shown),
            grammar=message.grammar,
        )

    def _tell(self, began: float, happenings: Iterable[Happening]) -> None:
        said: list[Started | Reading | Emitted | Refused] = []
        pieces: dict[str, tuple[str, ...]] = {}
        for happening in happenings:
            if isinstance(happening, Failed):
                said.append(_refused(happening.id, happening.error))
                continue
            if isinstance(happening, Emitted) and happening.round.scores:
                happening = self._spelt(happening)
            said.append(happening)
            if isinstance(happening, Emitted) and (decoder := self._pieces.get(happening.id)):
                piece = self._pair.target.piece
                pieces[happening.id] = tuple(decoder.decode(piece(token)) for token in happening.round.tokens)
                if happening.round.finish:
                    del self._pieces[happening.id]
        if said:
            busy, plain_s = self._pair.busy(), self._pair.costs().target.seconds(1)
            counts = self._decodes, self._in_slots
            self._decodes = self._in_slots = 0
            self._outlet.send(Step(began, time.monotonic(), tuple(said), pieces, busy, plain_s, *counts))

    def _spelt(self, emitted: Emitted) -> Emitted:
        """Returns a round with the bytes of the tokens that its scores name."""

        def spell(candidate: Candidate) -> Candidate:
            return replace(candidate, spelt=self._pair.target.piece(candidate.token))

        scores = tuple(
            TokenScore(spell(score.said), tuple(map(spell, score.top))) for score in emitted.round.scores
        )
        return Emitted(emitted.id, replace(emitted.round, scores=scores))


def shown_tokens(pair: Pair, texts: tuple[str, ...]) -> frozenset[int]:
    """Returns the tokens that are written so; texts that are no single token are shown anyway."""
    tokenize = pair.target.tokenize
    found = (tokenize(text.encode(), special=True, add_bos=False) for text in texts)
    return frozenset(tokens.item(0) for tokens in found if tokens.size == 1)


def _refused(id: str, error: EdgeSpecError) -> Refused:
    kinds: tuple[tuple[type[EdgeSpecError], RefusalKind], ...] = (
        (PromptTooLongError, "too_long"), (QueueFullError, "queue_full"), (SettingError, "setting"),
    )  # fmt: skip
    kind: RefusalKind = next((name for of, name in kinds if isinstance(error, of)), "engine")
    if isinstance(error, PromptTooLongError):
        return Refused(id, kind, str(error), error.n_prompt, error.n_ctx)
    return Refused(id, kind, str(error))


class Progress:
    """Tells the owner how far loading is: each new stage, and every hundredth of the whole."""

    def __init__(self, outlet: Outlet) -> None:
        self._outlet, self._said = outlet, ("", -1)

    def __call__(self, stage: Stage, progress: float) -> None:
        if (stage, round(100 * progress)) != self._said:
            self._said = stage, round(100 * progress)
            self._outlet.send(Loading(stage, progress))


def open_pair(load: Load, outlet: Outlet) -> Pair:
    """Loads what the owner asks for, and measures it where its costs are not known."""
    progress = Progress(outlet)
    pair = Pair(load.target, load.draft, load.settings, on_progress=progress)
    progress("measuring", LAST_STAGE)
    pair.costs()
    return pair


def cache_ram(settings: PairSettings) -> int:
    """Returns how many bytes of host memory may keep prompts that are in no slot any more."""
    if settings.cache_ram is not None:
        return settings.cache_ram
    free, _ = free_memory()
    return min(free // 4, MOST_CACHE_RAM)


def about(pair: Pair) -> Loaded:
    """Returns what the owner has to know of a pair."""
    target = pair.target
    plain = pair.costs().target
    return Loaded(
        name=target.path.stem,
        draft_name=pair.draft.path.stem if pair.draft else None,
        n_ctx=pair.n_ctx,
        n_ctx_train=target.n_ctx_train,
        n_vocab=target.n_vocab,
        n_bytes=target.path.stat().st_size,
        chat_template=target.chat_template,
        bos=target.bos_text,
        eos=target.eos_text,
        sampling={k: v for k, v in target.metadata.items() if k.startswith("general.sampling.")},
        plain_s=plain.seconds(1),
        plain_growth_s=(plain.seconds(1, FAR) - plain.seconds(1)) / FAR,
        path=str(target.path),
        slots=pair.slots,
        bos_token=target.vocabulary.bos if target.vocabulary.add_bos else None,
        fill=target.fill_tokens,
    )


def main() -> int:
    """Runs a worker for the process that started it; returns its exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    pipe, outlet = os.fdopen(os.dup(0), "rb"), Outlet(os.fdopen(os.dup(1), "wb"))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    load = receive(pipe)
    if not isinstance(load, Load):
        return 2
    intake = Intake(pipe, outlet)
    try:
        pair = open_pair(load, outlet)
    except EdgeSpecError as error:
        outlet.send(LoadFailed(str(error), error.exit_code))
        return error.exit_code
    with pair:
        intake.pair = pair
        ram = cache_ram(load.settings)
        engine = Engine(pair, slots=pair.slots, queue=load.queue, cache_ram=ram)
        worker = Worker(pair, engine, intake, outlet)
        signal.signal(signal.SIGTERM, lambda *_: setattr(worker, "draining", True))
        outlet.send(about(pair))
        worker.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
