"""Asking llama.cpp how much memory a model would take, without loading it.

The question goes to a child process, because llama.cpp aborts on files that it does not like. The
child is kept for further questions: choosing layers and context takes several. Starting it takes
half a second, an answer a few milliseconds to a tenth of a second.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from edgespec.errors import (
    MachineLostError,
    ModelFileError,
    ModelUnsupportedError,
    SettingError,
    UnknownPlaceError,
)
from edgespec.llama.memory_question import Question
from edgespec.system.closing import Closing
from edgespec.system.json_child import ChildDiedError, JsonChild
from edgespec_models.fit.need import Device, FlashAttention, Need, Parts

CHILD = "edgespec.llama.memory_child"
_ERRORS = {
    kind.__name__: kind
    for kind in (ModelFileError, ModelUnsupportedError, SettingError, MachineLostError, UnknownPlaceError)
}


def llama_build() -> dict[str, Any]:
    """Returns devices and abilities of the installed llama.cpp; {"error": sentence} if it does not load."""
    with JsonChild(CHILD, longest_s=60.0) as child:
        try:
            return child.ask({"build": True})
        except ChildDiedError as error:
            return {"error": str(error)}


class MemoryOracle(Closing):
    """Learns from llama.cpp what a model would take. Use it in a `with`: the child ends with it."""

    def __init__(self) -> None:
        self._child = JsonChild(CHILD)
        self._known: dict[Question, Need] = {}

    def close(self) -> None:
        """Ends the child."""
        self._child.close()

    def need(self, question: Question) -> Need:
        """Returns what the model would take.

        Raises ModelFileError or ModelUnsupportedError as loading it would, EngineDiedError if llama.cpp
        ended the child.
        """
        if question not in self._known:
            answer = self._ask(asdict(question))
            devices = {name: Parts(**parts) for name, parts in answer["devices"].items()}
            attention = answer.get("attention")
            self._known[question] = Need(
                devices, answer["n_layers"], attention=FlashAttention(*attention) if attention else None
            )
        return self._known[question]

    def projector(self, path: str) -> Need:
        """Returns what a projector takes: its weights are read for it, and room is made for a picture."""
        devices = self._ask({"projector": path})["devices"]
        return Need({name: Parts(**parts) for name, parts in devices.items()}, 0)

    def devices(self) -> list[Device]:
        """Returns the graphics cards that this build of llama.cpp can use."""
        return [Device(**device) for device in self._ask({"devices": True})["devices"]]

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        answer = self._child.ask(question)
        if "error" in answer:
            raise _ERRORS[answer["error"]](answer["message"])
        return answer
