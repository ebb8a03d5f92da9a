"""Client libraries that are imported when they are first used.

Every worker of the tests reads every test file, and some of these take seconds.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


class Late:
    """A module that is imported for its first public name. (pytest asks all that a file holds.)"""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(import_module(self._name), name)


anthropic: Any = Late("anthropic")
ollama: Any = Late("ollama")
openai: Any = Late("openai")
