"""Calls that were generated lately, by their values: what comes back is rendered as it was written.

Clients parse a call's arguments and write them anew, with other spacing or other order of keys. The values
are the same, but the prompt differs from what the model wrote, and all behind that is evaluated again.
"""

import json
from collections import OrderedDict
from contextvars import ContextVar
from hashlib import sha256

from edgespec.chat.generated import Generated

MOST = 512  # calls
LONGEST = 65_536  # characters of arguments

OWNER: ContextVar[str] = ContextVar("OWNER", default="")  # whose request is being answered; "" without keys


class OwnCalls:
    """The last calls of all owners; each sees its own."""

    def __init__(self) -> None:
        self._texts: OrderedDict[bytes, str] = OrderedDict()

    def note(self, name: str, arguments: str) -> None:
        """Remembers a call as it was generated."""
        if len(arguments) <= LONGEST and (key := _key(name, arguments)):
            self._texts[key] = arguments
            self._texts.move_to_end(key)
            if len(self._texts) > MOST:
                self._texts.popitem(last=False)

    def as_generated(self, name: str, arguments: object) -> object:
        """Returns the arguments of a call as they were generated, if they were; else as they are."""
        key = _key(name, arguments)
        text = self._texts.get(key) if key else None
        values = json.loads(text) if text else None
        return Generated(values, text) if text and isinstance(values, dict) else arguments


def _key(name: str, arguments: object) -> bytes | None:
    """Returns what equal calls of one owner share; None for what is no JSON."""
    try:
        values = json.loads(arguments) if isinstance(arguments, str) else arguments
        call = json.dumps([OWNER.get(), name, values], sort_keys=True)
    except (ValueError, TypeError, RecursionError):
        return None
    return sha256(call.encode()).digest()
