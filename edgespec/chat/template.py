"""Messages -> prompt text, with the model's own Jinja template, as Transformers renders it.

A template is a stranger's program. It runs in a sandbox, in a process of its own with limits on time and
memory (`sandbox.py`), so that neither loops nor gigantic strings reach the caller.
"""

import atexit
import datetime
import os
import pickle
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from edgespec.chat.generated import Generated
from edgespec.errors import TemplateError, TemplateOverrunError
from edgespec.system.limited_child import GIVEN_UP, LOOK_S, REFUSED, TEXT, TOO_MUCH, LimitedChild, Limits

_ADVICE = "give the model another with --chat-template-file, or shorten the conversation"
_ENDING = "the chat template was not rendered: the program is ending"


class Renderer:
    """Asks the child, one question at a time; thread-safe. It is replaced when it overruns.

    It starts at the first question or at `warm`, in about 0.1 s; a question takes a fraction of a millisecond
    more than rendering does. `limited_child.py` says what limits it.
    """

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self._closings = 0
        self._forget()
        atexit.register(self._discard)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget)  # the pipes are the parent's

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._child: LimitedChild | None = None

    def rendered(self, template: str, values: Mapping[str, Any], now: datetime.datetime | None) -> str:
        """Returns a template's text. Raises TemplateError, and TemplateOverrunError."""
        return self._ask({"what": "text", "template": template, "values": values, "now": now})

    def names_wanted(self, template: str) -> frozenset[str]:
        """Returns the names of the variables that a template reads. Raises TemplateOverrunError."""
        return frozenset(self._ask({"what": "names", "template": template}).split("\n")) - {""}

    def warm(self) -> None:
        """Starts the child, without waiting for it."""
        if self._lock.acquire(blocking=False):  # else it is being asked, and runs
            try:
                self._running()
            finally:
                self._lock.release()

    def close(self) -> None:
        """Ends the child at once: who waits for it gets a TemplateError. A later question starts another."""
        self._closings += 1
        if child := self._child:
            child.kill()

    def _ask(self, question: dict[str, Any]) -> str:
        closings = self._closings
        asked = pickle.dumps(question, pickle.HIGHEST_PROTOCOL)
        with self._turn():
            for _ in range(2):  # a child that somebody else has ended is not the template's fault
                if closings != self._closings:
                    raise TemplateError(_ENDING)
                kind, text = self._answer(asked)
                if kind == TEXT:
                    return text
                if kind == REFUSED:
                    raise TemplateError(text)
                self._discard()
                if kind == TOO_MUCH:
                    raise TemplateOverrunError(f"the chat template {text}: {_ADVICE}")
        raise TemplateError(f"the chat template ended the process that renders it, twice: {_ADVICE}")

    @contextmanager
    def _turn(self) -> Iterator[None]:
        given_up = GIVEN_UP.get()
        while not self._lock.acquire(timeout=LOOK_S if given_up else -1):
            if given_up and given_up.is_set():
                raise TemplateError(_ENDING)
        try:
            yield
        finally:
            self._lock.release()

    def _answer(self, asked: bytes) -> tuple[bytes, str]:
        try:
            return self._running().answer(asked, self.limits)
        except BaseException:  # Ctrl+C: its answer would be taken for that of the next question
            self._discard()
            raise

    def _running(self) -> LimitedChild:
        if self._child is None or not self._child.runs():
            self._discard()
            self._child = LimitedChild("edgespec.chat.sandbox")
        return self._child

    def _discard(self) -> None:
        child, self._child = self._child, None
        if child:
            child.end()


RENDERER = Renderer()
"""The one of this process."""


Message = Mapping[str, Any]
LONGEST_TEMPLATE = 1 << 20  # characters; the longest of well-known models has 17,000


def render(
    template: str,
    messages: Sequence[Message],
    *,
    bos: str = "",
    eos: str = "",
    tools: Sequence[Mapping[str, Any]] | None = None,
    documents: Sequence[Mapping[str, Any]] | None = None,
    add_generation_prompt: bool = True,
    variables: Mapping[str, Any] | None = None,
    now: datetime.datetime | None = None,
) -> str:
    """Returns the prompt for the assistant's next turn (without add_generation_prompt: the turns alone).

    messages: {"role", "content", ...} in order. bos, eos: texts of those tokens. variables: what clients
    call `chat_template_kwargs`; they cannot set the names above. Raises TemplateError with
    the template's own complaint if it refuses the messages, or with the place if it is broken, and
    TemplateOverrunError if it takes more time or memory than any template needs.
    """
    ours = {
        "messages": messages,
        "tools": tools,
        "documents": documents,
        "add_generation_prompt": add_generation_prompt,
        "bos_token": bos,
        "eos_token": eos,
    }
    try:
        values = _in_dicts({**(variables or {}), **ours})
    except RecursionError:
        raise TemplateError(
            "the chat template cannot be given what lies hundreds of lists deep: flatten it"
        ) from None
    return RENDERER.rendered(_sane(template), values, now)


@lru_cache(maxsize=8)
def names_wanted(template: str) -> frozenset[str]:
    """Returns the names of the variables that a template reads. Raises TemplateError as `render` does."""
    return RENDERER.names_wanted(_sane(template))


def _sane(template: str) -> str:
    if len(template) > LONGEST_TEMPLATE:
        raise TemplateError(
            f"the chat template has {len(template):,} characters, more than the {LONGEST_TEMPLATE:,} that "
            "are read: name another with --chat-template-file"
        )
    return template


def _in_dicts(value: Any) -> Any:
    """Returns a value in dicts and lists, which can be sent to another process."""
    if isinstance(value, Generated):
        return value
    if isinstance(value, Mapping):
        return {key: _in_dicts(item) for key, item in value.items()}
    return [_in_dicts(item) for item in value] if isinstance(value, list | tuple) else value
