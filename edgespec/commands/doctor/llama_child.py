"""The doctor's child process: loads llama.cpp, reports its build, or measures a pair.

Prints one JSON object. llama.cpp may abort it at any time; the doctor then says so.
"""

from dataclasses import asdict
from typing import Any

from edgespec.system.json_child import answer_questions


def build() -> dict[str, Any]:
    """Returns what llama.cpp was built for, and what it finds."""
    from edgespec.llama.devices import cpu_features, devices
    from edgespec.llama.remote import has_rpc

    found = [asdict(device) for device in devices()]
    return {"devices": found, "features": cpu_features(), "rpc": has_rpc()}


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    """Answers one question, or says why not."""
    from edgespec.errors import EdgeSpecError

    try:
        if asked["what"] == "build":
            return build()
        from edgespec.measure.short_run import measured

        return measured(asked)
    except EdgeSpecError as error:
        return {"error": str(error)}
    except (ImportError, OSError, RuntimeError) as error:  # of loading the library itself
        return {"broken": f"{type(error).__name__}: {error}".splitlines()[0]}


if __name__ == "__main__":
    answer_questions(answer)
