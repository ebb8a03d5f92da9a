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
from edgespec.server.refusal import Refusal, invalid

_T = TypeVar("_T")
WorkerEvent = Accepted | Started | PromptProgress | Emitted | Tokenized | Spelt | SlotDone | Refusal
Listener = Callable[[str, WorkerEvent, float], None]  # id, what, the worker's clock


class WorkerRequests:
    """The requests of one pair's worker, whichever process that is by now."""

    def __init__(
        self, send: Callable[[ToWorker], None], refuse: Callable[[], None], moved: Callable[[], None]
    ) -> None:
        """send: to a worker that is ready, else nowhere. refuse: raises Refusal if none is. moved: called
        when a request has ended."""
        self._send, self._refuse, self._moved = send, refuse, moved
        self._listeners: dict[str, Listener] = {}
        self._pings: dict[int, asyncio.Event] = {}  # those that wait for their answer
        self._numbers = itertools.count(1)

    def __len__(self) -> int:
        """How many requests are running or waiting."""
        return len(self._listeners)

    def submit(self, message: Submit, listener: Listener) -> None:
        """Submits a request to the worker; raises Refusal if there is none. Do it under a `lease`."""
        self._refuse()
        self._listeners[message.id] = listener
        self._send(message)

    def cancel(self, id: str) -> None:
        """Forgets a request, here and in the worker."""
        if self._listeners.pop(id, None):
            self._send(Cancel(id))
            self._moved()

    def note_large_bodies(self, n: int) -> None:
        """Tells the engine how many large bodies are being read: it leaves them a core."""
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
        self._refuse()
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
            self._send(Cancel(id))
            listener(id, reason, 0.0)

    async def responds(self, seconds: float) -> bool:
        """Returns whether the worker answers within `seconds`."""
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

    def pong(self, number: int) -> None:
        """Takes the answer to a ping."""
        if answered := self._pings.get(number):
            answered.set()

    def pass_on(self, id: str, event: WorkerEvent, at: float) -> None:
        """Gives an event to who waits for it, if anybody does."""
        listener = self._listeners.get(id)
        if not listener:
            return
        if isinstance(event, Refusal) or (isinstance(event, Emitted) and event.round.finish):
            del self._listeners[id]
            self._moved()
        listener(id, event, at)
