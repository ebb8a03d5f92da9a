"""The engine in its own process: requests come in at stdin, results go out at stdout.

It runs the engine and nothing else: no HTTP, no JSON, no templates. One thread reads and has requests
prepared (`request_reader.py`), the main thread submits, cancels and steps. When the owner ends, even by
kill -9, the pipe closes and the worker ends. Ctrl+C is for the owner; SIGTERM ends the worker once all
accepted requests are answered.

stdout is for the messages alone: it is moved aside before llama.cpp is loaded, and whatever else is
printed goes to stderr, whose last lines the owner shows when a worker died.
"""

import codecs
import gc
import os
import queue
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import replace

from edgespec.core.values import (
    Candidate,
    Emitted,
    EngineEvent,
    Failed,
    PromptProgress,
    Round,
    Started,
    TokenScore,
)
from edgespec.engine.engine import Engine
from edgespec.engine.outbox import Outbox
from edgespec.engine.pair import Pair
from edgespec.engine.pair_opening import about, cache_ram, open_pair, prompt_files, write_down
from edgespec.engine.past_texts import PastTexts
from edgespec.engine.request_reader import Ready, RequestReader, SlotRead, refused
from edgespec.engine.slot_actions import SlotActions
from edgespec.engine.state_keys import state_keys
from edgespec.engine.text_log import TextLog, read, text_log_of
from edgespec.engine.trials import Trials
from edgespec.errors import EdgeSpecError
from edgespec.llama import remote
from edgespec.llama.medium import Medium
from edgespec.llama.thread_count import Threads
from edgespec.protocol.messages import (
    Accepted,
    Cancel,
    LoadFailed,
    LoadRequest,
    Refused,
    SlotAction,
    StepReport,
    receive,
)  # fmt: skip
from edgespec.system import config

# Rounds within so many seconds are sent together: each message wakes the owner and its client, which take a
# core from the evaluation; a reader does not notice a fiftieth of a second.
TOGETHER_S = 0.02
# How long a thread that prepares a request may keep the interpreter from the engine, which needs it some ten
# times in a round: with Python's 5 ms, a long text that somebody else has tokenised halves an answer's speed.
SWITCH_S = 0.0005
PR_SET_PDEATHSIG = 1  # of linux/prctl.h


class Worker:
    """One pair and its requests, from the first message to the last."""

    def __init__(
        self,
        pair: Pair,
        engine: Engine,
        reader: RequestReader,
        outbox: Outbox,
        text_log: TextLog | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """text_log: keeps the texts, if wanted."""
        self._text_log, self._clock = text_log, clock
        self._older = read(text_log.folder) if text_log else iter(())  # read while there is nothing to do
        self._pair, self._engine, self._reader, self._outbox = pair, engine, reader, outbox
        self._pieces: dict[str, _TokenTexts] = {}  # of those that want them
        self._speaking: set[str] = set()  # requests whose first round was sent
        self._media: dict[str, tuple[Medium, ...]] = {}  # of requests that may read theirs again
        self._held_since = 0.0  # when the oldest held round was held
        self.draining = False
        self._actions = SlotActions(engine, outbox, lambda: state_keys(pair.contexts)["target"])
        self._used = False  # costs are measured again only if somebody uses them
        self._decodes = self._in_slots = 0  # for the next `StepReport`

    def run(self) -> None:
        """Works until the owner is gone, or, after SIGTERM, until nothing is left to answer."""
        while not (self.draining and self._engine.idle and self._reader.idle):
            try:
                while True:
                    self._actions.work()
                    wait = self._engine.idle and not (self.draining and self._reader.idle)
                    item = self._reader.items.get(wait, timeout=0.5 if wait else None)
                    if item is None:
                        return
                    self.take(item)
            except queue.Empty:
                if self._engine.idle:
                    remote.end_if_lost(self._pair.settings.rpc)
                idle = self._engine.idle and not self._reader.own_work  # no picture is being encoded, either
                for text in next(self._older, ()) if idle else ():
                    self._pair.streams.remember(text.prompt, text.answer)
                if idle and self._used and not self._engine.tidy():
                    self._pair.look_again()
            if not self._engine.idle:
                self._used = True
                Threads.own_work = self._reader.own_work
                began, calls = self._clock(), self._pair.decodes
                self._reader.step_began = began
                events = self._engine.step()
                self._reader.step_began = None
                self._decodes += self._pair.decodes - calls
                self._in_slots += (self._pair.decodes - calls) * self._engine.in_slots
                self.report(began, events)

    def take(self, item: Ready | Cancel | SlotAction | SlotRead) -> None:
        """Does what the web process asks for, as the reader hands it over."""
        if isinstance(item, SlotAction):
            self._actions.take(item, self._reader.items.put)
            return
        if isinstance(item, SlotRead):
            self._actions.has_read(item)
            return
        if isinstance(item, Cancel):
            self._engine.cancel(item.id)
            self._forget(item.id)
            return
        message = item.message
        if not self._reader.takes(message):
            return
        if self.draining:
            sentence = "the engine is stopping: try again in a moment"
            self._outbox.send(Refused(message.id, "draining", sentence))
            return
        try:
            self._engine.submit(
                message.id,
                item.tokens,
                message.request,
                item.borders,
                message.owner,
                replays=isinstance(message.prompt, str),
            )
        except EdgeSpecError as error:
            self._outbox.send(refused(message.id, error))
            return
        except Exception as error:  # ours: nothing was begun, so others continue
            traceback.print_exc()
            self._outbox.send(refused(message.id, error))
            return
        if item.media:
            self._media[message.id] = item.media
        if message.pieces:
            self._pieces[message.id] = _TokenTexts(self._pair.streams.spelling(message.request.shown))
        plain = not (message.request.governed or message.request.ignore_eos or item.media)
        if self._text_log and plain:
            self._text_log.begin(message.id, item.tokens.tolist(), message.request.sampling.temperature)
        self._outbox.send(Accepted(message.id, len(item.tokens)))

    def report(self, began: float, events: Iterable[EngineEvent]) -> None:
        """Sends what a step brought."""
        messages: list[Started | PromptProgress | Emitted | Refused] = []
        for event in events:
            if isinstance(event, Failed):
                self._forget(event.id)
                messages.append(refused(event.id, event.error))
            else:
                messages.append(self._emitted(event) if isinstance(event, Emitted) else event)
        if messages:
            busy, plain_s = self._pair.busy(), self._pair.costs().target.seconds(1)
            counts = self._decodes, self._in_slots
            self._decodes = self._in_slots = 0
            step = StepReport(began, self._clock(), tuple(messages), busy, plain_s, *counts)
            (self._outbox.hold if self._may_wait(step) else self._outbox.send)(step)
        else:
            self._outbox.release()

    def _may_wait(self, step: StepReport) -> bool:
        """Returns whether this may be sent with the next step, which will take as long as this one took.

        First and last rounds, and whatever is no round, are sent at once.
        """
        usual = True
        for event in step.events:
            if not isinstance(event, Emitted):
                usual = False
            elif event.round.finish:
                self._speaking.discard(event.id)
                usual = False
            elif event.id not in self._speaking:
                self._speaking.add(event.id)
                usual = False
        if not self._outbox.held:
            self._held_since = step.at
        return usual and 2 * step.at - step.began - self._held_since < TOGETHER_S

    def _emitted(self, emitted: Emitted) -> Emitted:
        """Keeps a round's text if that is wanted; returns it with the texts that its request asked for."""
        id, round_ = emitted.id, emitted.round
        if self._text_log:
            self._text_log.add(id, round_.tokens, ended=round_.finish is not None)
        if round_.finish:
            self._media.pop(id, None)
        spelt = self._pieces.pop(id, None) if round_.finish else self._pieces.get(id)
        pieces = tuple(map(spelt.of, round_.tokens)) if spelt else ()
        return Emitted(id, self._spelt(round_) if round_.scores else round_, pieces, emitted.seconds)

    def _forget(self, id: str) -> None:
        """Forgets a request that will not be answered to its end."""
        self._pieces.pop(id, None)
        self._media.pop(id, None)
        self._speaking.discard(id)
        if self._text_log:
            self._text_log.drop(id)

    def _spelt(self, round_: Round) -> Round:
        """Returns a round with the bytes of the tokens that its scores name."""

        def spell(candidate: Candidate) -> Candidate:
            return replace(candidate, spelt=self._pair.target.piece(candidate.token))

        scores = (TokenScore(spell(one.chosen), tuple(map(spell, one.top))) for one in round_.scores)
        return round_._replace(scores=tuple(scores))


class _TokenTexts:
    """The text of single tokens: what each adds to the text so far."""

    def __init__(self, spelling: Callable[[int], bytes]) -> None:
        self._spelling = spelling
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def of(self, token: int) -> str:
        return self._decoder.decode(self._spelling(token))


def _wake_at_the_end_of_our_owner() -> None:
    """Has a stopped worker continue when its owner ends, or it would stay for ever (Linux)."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGCONT)


def main() -> int:
    """Runs a worker for the process that started it; returns its exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.setswitchinterval(SWITCH_S)
    _wake_at_the_end_of_our_owner()
    pipe, outbox = os.fdopen(os.dup(0), "rb"), Outbox(os.fdopen(os.dup(1), "wb"))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    load = receive(pipe)
    if not isinstance(load, LoadRequest):
        return 2
    reader = RequestReader(pipe, outbox, most=load.queue + load.settings.slots)
    try:
        pair = open_pair(load, outbox)
    except EdgeSpecError as error:
        outbox.send(LoadFailed(str(error), error.exit_code))
        return error.exit_code
    with pair, Trials(pair.streams.control_pieces) as trials:
        pair.streams.matchers.lark = trials.lark
        reader.pair = pair
        ram, files = cache_ram(load.settings), prompt_files(pair)
        reader.past = past = PastTexts(pair.streams.piece)
        engine = Engine(pair, slots=pair.slots, queue=load.queue, cache_ram=ram, files=files, past=past)
        most = load.settings.keep_texts
        text_log = text_log_of(config.data_folder(), pair.target.path, most) if most else None
        worker = Worker(pair, engine, reader, outbox, text_log)
        signal.signal(signal.SIGTERM, lambda *_: setattr(worker, "draining", True))
        gc.freeze()  # what is there by now stays: it is looked at neither between tokens nor at the end
        outbox.send(about(pair))
        worker.run()
        if files:
            write_down(engine, files)
        if reader.busy:  # nobody waits for that, and the pair must not be freed before
            trials.close()
            os._exit(0)
    return 0


if __name__ == "__main__":
    sys.exit(main())
