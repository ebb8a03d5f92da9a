"""Messages -> prompt text, with the model's own Jinja template, as Transformers renders it.

A template is a stranger's program. It runs in a sandbox, in a process of its own with limits on time and
memory (`sandbox.py`), so that neither loops nor gigantic strings reach the caller.
"""

import atexit
import datetime
import os
import pickle
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from edgespec.chat.generated import Generated
from edgespec.errors import GivenUpError, TemplateError, TemplateOverrunError
from edgespec.system.limited_child import REFUSED, TEXT, TOO_MUCH, Limits
from edgespec.system.limited_children import LimitedChildren

_ADVICE = "give the model another with --chat-template-file, or shorten the conversation"
_ENDING = "the chat template was not rendered: the program is ending"


class Renderer:
    """Asks a child that is kept, one question at a time; thread-safe.

    It starts at the first question or at `warm`, in about 0.1 s; a question takes a fraction of a millisecond
    more than rendering does. `limited_child.py` says what limits it.
    """

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self._begin()
        atexit.register(lambda: self._children.close())
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._begin)  # the pipes are the parent's

    def _begin(self) -> None:
        self._children = LimitedChildren("edgespec.chat.sandbox")
        self.warm = self._children.warm

    def rendered(self, template: str, values: Mapping[str, Any], now: datetime.datetime | None) -> str:
        """Returns a template's text. Raises TemplateError, and TemplateOverrunError."""
        return self._ask({"what": "text", "template": template, "values": values, "now": now})

    def names_wanted(self, template: str) -> frozenset[str]:
        """Returns the names of the variables that a template reads. Raises TemplateOverrunError."""
        return frozenset(self._ask({"what": "names", "template": template}).split("\n")) - {""}

    def close(self) -> None:
        """Ends the child at once: who waits for it gets a TemplateError. A later question starts another."""
        self._children.kill()

    def _ask(self, question: dict[str, Any]) -> str:
        asked = pickle.dumps(question, pickle.HIGHEST_PROTOCOL)
        for _ in range(2):  # a child that somebody else has ended is not the template's fault
            try:
                kind, text = self._children.answer(asked, self.limits)
            except GivenUpError:
                raise TemplateError(_ENDING) from None
            if kind == TEXT:
                return text
            if kind == REFUSED:
                raise TemplateError(text)
            if kind == TOO_MUCH:
                raise TemplateOverrunError(f"the chat template {text}: {_ADVICE}")
        raise TemplateError(f"the chat template ended the process that renders it, twice: {_ADVICE}")


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
