"""The child process that encodes pictures and sounds: llama.cpp may end it, and the engine goes on."""

import base64
from pathlib import Path
from typing import Any

from edgespec.errors import EdgeSpecError, SettingError
from edgespec.llama.projector import Piece, Projector
from edgespec.system.json_child import answer_questions
from edgespec_models.fit.need import RAM

_loaded: list[Projector] = []


def answer(question: dict[str, Any]) -> dict[str, Any]:
    """Returns the pieces of a picture or sound, or what the projector can do, or what is wrong."""
    try:
        if not _loaded:
            files = Path(question["projector"]), Path(question["target"])
            _loaded.append(Projector(*files, on_gpu=question["on_gpu"]))
        projector = _loaded[0]
        if "width" in question:
            picture = projector.picture(question["width"], question["height"], question["data"])
            return {"pieces": list(map(_sent, picture))}
        if "data" in question:
            return {"pieces": list(map(_sent, projector.sound(question["data"])))}
    except EdgeSpecError as error:
        return {"error": str(error), "setting": isinstance(error, SettingError)}
    buffers = projector.memory[RAM].compute if RAM in projector.memory else 0
    return {
        "sees": projector.sees,
        "hears": projector.hears,
        "at_once": projector.at_once,
        "buffers": buffers,
    }


def _sent(piece: Piece) -> Piece:
    """Returns a piece whose arrays are text."""
    if "tokens" in piece:
        return piece
    arrays = {name: base64.b64encode(piece[name].tobytes()).decode() for name in ("rows", "places", "moves")}
    return {**piece, **arrays, "n": len(piece["rows"])}


if __name__ == "__main__":
    answer_questions(answer)
