"""Client libraries that are imported when they are first used.

Every worker of the tests reads every test file, and some of these take seconds.
"""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType
from typing import Any


def late(name: str) -> Any:
    """Returns a module that is loaded with its first attribute."""
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.find_spec(name)
    assert spec and spec.loader, f"{name} is not installed"
    loader = importlib.util.LazyLoader(spec.loader)
    spec.loader = loader
    module: ModuleType = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    loader.exec_module(module)
    return module


anthropic = late("anthropic")
ollama = late("ollama")
openai = late("openai")
