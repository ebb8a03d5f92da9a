"""Arguments of a call as a model wrote them: values for a template that reads them, text for one that prints.

A module of its own, because both the server and the child process that renders templates know it.
"""

from typing import Any


class Generated(dict[str, Any]):
    """The arguments, and their text, with the spacing that the model chose."""

    def __init__(self, values: dict[str, Any], text: str) -> None:
        super().__init__(values)
        self.text = text

    def __reduce__(self) -> tuple[type["Generated"], tuple[dict[str, Any], str]]:
        return Generated, (dict(self), self.text)
