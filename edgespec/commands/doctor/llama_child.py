"""The doctor's child process: loads llama.cpp, reports its build, or measures a pair.

llama.cpp may abort it at any time; the doctor then reports that.
"""

from dataclasses import asdict
from typing import Any

from edgespec.errors import EdgeSpecError
from edgespec.system.json_child import LONGEST_S, ChildDiedError, JsonChild, answer_questions


def ask(asked: dict[str, Any], *, timeout: float = LONGEST_S) -> dict[str, Any]:
    """Asks the child; {"error": sentence} if it refuses, dies or takes too long."""
    with JsonChild("edgespec.commands.doctor.llama_child", longest_s=timeout) as child:
        try:
            return child.ask(asked)
        except ChildDiedError as error:
            return {"error": str(error)}


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    """Answers one question in the child, or says why not."""
    try:
        if "target" in asked:
            from edgespec.measure.short_run import measured

            return measured(asked)
        from edgespec.llama.devices import cpu_features, devices
        from edgespec.llama.remote import has_rpc

        found = [asdict(device) for device in devices()]
        return {"devices": found, "features": cpu_features(), "rpc": has_rpc()}
    except EdgeSpecError as error:
        return {"error": str(error)}
    except (ImportError, OSError, RuntimeError) as error:  # of loading the library itself
        return {"error": f"{type(error).__name__}: {error}".splitlines()[0]}


if __name__ == "__main__":
    answer_questions(answer)
