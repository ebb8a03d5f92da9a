"""The child process that embeds texts: llama.cpp may end it, and its server goes on."""

import base64
from pathlib import Path
from typing import Any

from edgespec.errors import EdgeSpecError, SettingError
from edgespec.llama.embedder import Embedder
from edgespec.system.json_child import answer_questions

_loaded: dict[str, Embedder] = {}


def answer(question: dict[str, Any]) -> dict[str, Any]:
    """Returns the vectors of texts, float32 as base64 one after the other, or what is wrong."""
    try:
        embedder = _loaded.get(question["file"])
        if embedder is None:
            embedder = _loaded[question["file"]] = Embedder(Path(question["file"]))
        texts = [embedder.tokens(text, truncate=question["truncate"]) for text in question["texts"]]
        found = embedder.vectors(texts)
    except EdgeSpecError as error:
        return {"error": str(error), "setting": isinstance(error, SettingError)}
    vectors = base64.b64encode(found.tobytes()).decode()
    return {"vectors": vectors, "width": embedder.width, "n_tokens": [text.size for text in texts]}


if __name__ == "__main__":
    answer_questions(answer)
