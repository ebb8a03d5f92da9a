"""Choose the held-out prompts that ship with the pair, for anybody's tests and measurements.

Each line of the file is `{"kind": ..., "prompt": ...}`; a conversation has `messages` too (its `prompt` is
in the chat template). `prompt` is raw text with its control tokens written out.
"""

import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from edgespec_models.kept_file import write_whole
from edgespec_train.recipes import corpus, marks
from edgespec_train.recipes.template import render

COUNTS = {"docs": 22, "body": 18, "code": 18, "fim": 14}
LIMITS = {"docs": 300, "body": 500, "code": 600, "fim": 700}  # characters
TURN = re.compile(re.escape(marks.TURN_START) + r"(\w+)\n(.*?)" + re.escape(marks.TURN_END), re.DOTALL)


def first_turns(text: str) -> list[dict[str, str]]:
    """Return the messages of a rendered conversation up to the first user's."""
    messages = []
    for role, content in TURN.findall(text):
        messages.append({"role": role, "content": content})
        if role == "user":
            break
    return messages


def prompt_of(document: corpus.Document, rng: random.Random) -> dict[str, Any]:
    """Cut a held-out document where the pair should continue."""
    if document.kind == "fim":
        return {"prompt": document.text[: document.text.index(marks.FIM_MIDDLE) + len(marks.FIM_MIDDLE)]}
    if document.kind == "code":
        lines = document.text.splitlines(keepends=True)
        first = rng.randrange(max(1, len(lines) - 12))
        return {"prompt": "".join(lines[first : first + 12]).rstrip("\n") + "\n"}
    messages = first_turns(document.text)
    return {"messages": messages, "prompt": render(messages, add_generation_prompt=True)}


def choose() -> Iterator[dict[str, Any]]:
    """Yield the prompts, kind by kind; a module gives at most a fifth of its kind."""
    rng = random.Random("prompts")
    documents = corpus.held_out()
    for kind, count in COUNTS.items():
        taken: dict[str, int] = {}
        texts: set[str] = set()
        for document in documents:
            if document.kind != kind or taken.get(document.group, 0) >= max(3, count // 5):
                continue
            found = prompt_of(document, rng)
            if (
                not 30 <= len(found["prompt"]) <= LIMITS[kind]
                or found["prompt"] in texts
                or not found["prompt"].isascii()
            ):
                continue
            texts.add(found["prompt"])
            taken[document.group] = taken.get(document.group, 0) + 1
            yield {"kind": kind, **found}
            if len(texts) == count:
                break


def write(path: Path) -> int:
    """Write the file at once; return how many prompts it has."""
    lines = [json.dumps(p, ensure_ascii=False) for p in choose()]
    write_whole(path, "\n".join(lines) + "\n", private=False)
    return len(lines)


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
