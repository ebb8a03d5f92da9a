"""Messages -> prompt text, with the model's own Jinja template, as Transformers renders it.

A template is a stranger's program. It runs in a sandbox, in a process of its own with limits on time and
memory (`renderer.py`), so that neither loops nor gigantic strings reach the caller.
"""

import datetime
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from edgespec.chat.renderer import RENDERER
from edgespec.errors import TemplateError

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
    return RENDERER.rendered(_sane(template), _plain({**(variables or {}), **ours}), now)


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


def _plain(value: Any) -> Any:
    """Returns a value in dicts and lists, which can be sent to another process. Raises TemplateError."""
    try:
        return _in_dicts(value)
    except RecursionError:
        raise TemplateError(
            "the chat template cannot be given what lies hundreds of lists deep: flatten it"
        ) from None


def _in_dicts(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _in_dicts(item) for key, item in value.items()}
    return [_in_dicts(item) for item in value] if isinstance(value, list | tuple) else value
