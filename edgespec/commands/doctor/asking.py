"""Asks the child that loads llama.cpp, and survives its end."""

from typing import Any

from edgespec.system.json_child import LONGEST_S, ChildDiedError, JsonChild


def ask(asked: dict[str, Any], *, timeout: float = LONGEST_S) -> dict[str, Any]:
    """Returns the child's answer; {"error": sentence} if it refuses, dies or takes too long."""
    with JsonChild("edgespec.commands.doctor.llama_child", longest_s=timeout) as child:
        try:
            return child.ask(asked)
        except ChildDiedError as error:
            return {"broken" if error.by_itself else "error": str(error)}
