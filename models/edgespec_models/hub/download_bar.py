"""Tells how far a download of the hub's client is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def bar_of(on_bytes: Callable[[int], None]) -> Any:
    """Returns a class that the client takes for a progress bar, and that reports bytes of this file."""

    class Bar:
        """The client's interface of a bar; `update_transfer` keeps Xet from making a second one."""

        format_dict: dict[str, float] = {}

        def __init__(self, *_: object, initial: int = 0, total: int | None = None, **__: object) -> None:
            self.n, self.total = initial, total

        def __enter__(self) -> Bar:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def update(self, n: float | None = 1) -> None:
            self.n += int(n or 0)
            on_bytes(self.n)

        def update_transfer(self, n: float) -> None:
            pass

        def set_postfix_str(self, *_: object, **__: object) -> None:
            pass

        def set_transfer_postfix_str(self, *_: object, **__: object) -> None:
            pass

        def refresh(self) -> None:
            pass

        def close(self) -> None:
            pass

    return Bar
