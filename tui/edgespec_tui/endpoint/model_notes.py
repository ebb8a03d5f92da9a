"""What a popular first model is good for, in a sentence, and what to ask it."""

from dataclasses import dataclass
from pathlib import Path

from edgespec.client.answer import Info
from edgespec_models.shelf.catalogue import STARTER as NAME
from edgespec_models.shelf.catalogue import find


@dataclass(frozen=True, slots=True)
class Note:
    """What to know of a model before the first question."""

    what: str
    better: str  # what a pull leads to
    asks: tuple[str, ...]  # questions that it can handle


EMBEDDED = Note(
    "This tiny pair ships with EdgeSpec: it knows a little about Python's library and nothing else.",
    "a real model",
    ("What does `os.path.join` do?", "Write a function that counts words."),
)
STARTER = Note(
    "This is a small model (135 million parameters): it talks about anything and is often wrong.",
    "a larger one",
    (
        "What helps me sleep better?",
        "Write a short story about a lighthouse.",
    ),
)
PULL = "run `edgespec pull`"
SMALL = find(NAME)


def note_of(info: Info) -> Note | None:
    """Returns the note on a model; None for one that people have chosen."""
    if info.embedded:
        return EMBEDDED
    if info.speculates and info.model in (SMALL.name, Path(SMALL.target.file).stem):
        return STARTER
    return None
