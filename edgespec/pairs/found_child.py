"""The child that looks for models of other programs, and reads which of them fit together."""

import os
from contextlib import suppress
from typing import Any

from edgespec.system.json_child import answer_questions
from edgespec_models.shelf.found import FoundModel, find_models, find_pairs

NICE = 15


def look(question: dict[str, Any]) -> dict[str, Any]:
    """Returns the usable models, each with its draft if there is one. The largest are read first."""
    models = sorted(find_models(), key=lambda model: -model.size)[: question["most"]]
    pairs, useless = find_pairs(models)
    drafts = {target.paths: draft for target, draft in pairs}
    return {"found": [_described(m, drafts.get(m.paths)) for m in models if m.label not in useless]}


def _described(model: FoundModel, draft: FoundModel | None) -> dict[str, Any]:
    return {
        "program": model.program,
        "label": model.label,
        "target": _files(model),
        "draft": draft and _files(draft),
        "draft_label": draft and draft.label,
    }


def _files(model: FoundModel) -> dict[str, Any]:
    return {"paths": [str(path.absolute()) for path in model.paths], "size": model.size}


if __name__ == "__main__":
    if hasattr(os, "nice"):
        with suppress(OSError):
            os.nice(NICE)
    answer_questions(look)
