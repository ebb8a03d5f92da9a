"""The child process that renders templates."""

from typing import Any

from edgespec.chat.sandbox import names_wanted, rendered
from edgespec.errors import TemplateError
from edgespec.system.limited_child import answer_within


def answer(asked: dict[str, Any]) -> str:
    """Returns a template's text, or the names that it reads. Raises TemplateError."""
    if asked["what"] == "names":
        return "\n".join(sorted(names_wanted(asked["template"])))
    return rendered(asked["template"], asked["values"], asked["now"])


if __name__ == "__main__":
    answer_within(answer, TemplateError)
