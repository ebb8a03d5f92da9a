"""What is asked of an engine worker, and who waits for its answers."""

import asyncio
import itertools
from collections.abc import Callable, Sequence
from typing import TypeVar

from edgespec.core.attachment import Mixed
from edgespec.core.values import Emitted, PromptProgress, Started
from edgespec.protocol.messages import (
    MOST_TOKENS,
    Accepted,
    Cancel,
    LargeBodies,
    Loaded,
    Ping,
    SlotAction,
    SlotDone,
    SlotName,
    Spell,
    Spelt,
    Submit,
    Tokenize,
    Tokenized,
    ToWorker,
)
from edgespec.server.engine_status import State
from edgespec.server.refusal import Refusal, invalid
from edgespec.server.worker_process import WorkerProcess

_T = TypeVar("_T")
WorkerEvent = Accepted | Started | PromptProgress | Emitted | Tokenized | Spelt | SlotDone | Refusal
Listener = Callable[[str, WorkerEvent, float], None]  # id, what, the worker's clock


class WorkerRequests:
    """The requests of a worker, if there is one."""

    def __init__(self) -> None:
        self.state: State = "unloaded"
        self.about: Loaded | None = None
        self._process: WorkerProcess | None = None
        self._listeners: dict[str, Listener] = {}
        self._pings: dict[int, asyncio.Event] = {}  # pings that wait for their answer
        self._numbers = itertools.count(1)
        self._refusing: Refusal | None = None  # why no request is taken now

    @property
    def requests(self) -> int:
        """How many requests are running or waiting."""
        return len(self._listeners)

    @property
    def waiting(self) -> int:
        """How many of them wait for a slot."""
        return max(0, self.requests - (self.about.slots if self.about else 0))

    def absence(self) -> Refusal:
        """Returns why there is no engine now, and when to come again."""
        raise NotImplementedError

    def _moved(self) -> None:
        """Wakes who waits for changes."""
        raise NotImplementedError

    def check(self) -> None:
        """Raises Refusal if no request is taken now."""
        if self._refusing:
            raise self._refusing

    def submit(self, message: Submit, listener: Listener) -> None:
        """Submits a request to the worker; raises Refusal if there is none. Do it under a `lease`."""
        self.check()
        if self.state != "ready":
            raise self.absence()
        self._listeners[message.id] = listener
        self._send(message)

    def cancel(self, id: str) -> None:
        """Forgets a request, here and in the worker."""
        if self._listeners.pop(id, None) and self.state == "ready":
            self._send(Cancel(id))
            self._moved()

    def note_large_bodies(self, n: int) -> None:
        """Tells the engine how many large bodies are being read: it leaves them a core."""
        if self.state == "ready":
            self._send(LargeBodies(n))

    async def tokenize(self, prompt: str, *, add_bos: bool, special: bool = True) -> tuple[int, ...]:
        """Returns the tokens of a text; raises Refusal if no worker answers, or they are too many."""
        answer = await self._ask(Tokenize(self._id(), prompt, add_bos, special), Tokenized)
        if answer.n > MOST_TOKENS:
            sentence = (
                f"the text has {answer.n:,} tokens, and {MOST_TOKENS:,} are handled at once: shorten it"
            )
            raise invalid(None, sentence)
        return tuple(answer.tokens)

    async def n_tokens(self, prompt: str | Mixed, *, add_bos: bool) -> int:
        """Returns how many tokens a text has; raises Refusal as `tokenize` does."""
        return (await self._ask(Tokenize(self._id(), prompt, add_bos, True), Tokenized)).n

    async def spell(self, tokens: Sequence[int]) -> tuple[bytes, ...]:
        """Returns the bytes of each token; raises Refusal, also for a token that does not exist."""
        return (await self._ask(Spell(self._id(), tuple(tokens)), Spelt)).pieces

    async def slot_action(self, slot: int, action: SlotName, path: str) -> SlotDone:
        """Saves a slot's text to a file, restores it, or has it forgotten; raises Refusal."""
        return await self._ask(SlotAction(self._id(), slot, action, path), SlotDone)

    def _id(self) -> str:
        return f"t{next(self._numbers)}"

    async def _ask(self, message: Tokenize | Spell | SlotAction, kind: type[_T]) -> _T:
        """Returns the answer to a question, which is of this kind. Raises Refusal."""
        if self.state != "ready":
            raise self.absence()
        answer: asyncio.Future[WorkerEvent] = asyncio.get_running_loop().create_future()

        def listen(_id: str, event: WorkerEvent, _at: float) -> None:
            if isinstance(event, Refusal) and not answer.done():
                answer.set_exception(event)
            elif not answer.done():
                answer.set_result(event)

        self._listeners[message.id] = listen
        self._send(message)
        try:
            event = await answer
            assert isinstance(event, kind)
            return event
        finally:
            self.cancel(message.id)

    def dismiss(self, reason: Refusal) -> None:
        """Ends all waiting requests, with the reason."""
        waiting, self._listeners = self._listeners, {}
        for id, listener in waiting.items():
            if self.state == "ready":
                self._send(Cancel(id))
            listener(id, reason, 0.0)

    def _send(self, message: ToWorker) -> None:
        if self._process:
            self._process.send(message)

    async def responds(self, seconds: float) -> bool:
        """Returns whether the worker answers within `seconds`."""
        if self.state != "ready":
            return False
        number = next(self._numbers)
        answered = self._pings[number] = asyncio.Event()
        self._send(Ping(number))
        try:
            await asyncio.wait_for(answered.wait(), seconds)
        except TimeoutError:
            return False
        finally:
            del self._pings[number]
        return True

    def _pass_on(self, id: str, event: WorkerEvent, at: float) -> None:
        listener = self._listeners.get(id)
        if not listener:
            return
        if isinstance(event, Refusal) or (isinstance(event, Emitted) and event.round.finish):
            del self._listeners[id]
            self._moved()
        listener(id, event, at)
