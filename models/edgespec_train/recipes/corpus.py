"""Assemble the training text of one epoch, and the held-out text.

An epoch is a list of documents, each of one kind:

- code: pieces of modules, cut at top-level statements;
- docs: conversations about what things do;
- body: conversations that ask for code;
- talk: hand-written greetings; tool: conversations with tools; think: with visible reasoning;
- fim: fill-in-the-middle, prefix-suffix-middle order, a tenth of the text.

The epoch's number is the seed: phrasings, cuts and middles differ from epoch to epoch, the documentation
and the code do not. Held-out groups of modules (sources.py) never enter, nor any text equal to theirs.
"""

import ast
import random
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from edgespec_train.recipes import actions, dialogues, marks
from edgespec_train.recipes.dialogues import Message
from edgespec_train.recipes.sources import (
    Documented,
    SourceFile,
    fraction,
    group_of,
    is_held_out,
    read_files,
    read_items,
    read_topics,
)
from edgespec_train.recipes.template import render

PIECE = 5000  # characters of a code document, about 1,500 tokens
FIM_PIECE = 1700


@dataclass(frozen=True, slots=True)
class Document:
    """Hold a text with its control tokens written out, ready for the tokenizer."""

    kind: str
    group: str
    text: str


@dataclass(frozen=True, slots=True)
class Library:
    """Hold one side of the split."""

    files: tuple[SourceFile, ...]
    items: tuple[Documented, ...]
    topics: tuple[tuple[str, str], ...]


@lru_cache(maxsize=1)
def split() -> tuple[Library, Library]:
    """Return (training, held-out) sides of the standard library."""
    files, items, topics = read_files(), read_items(), read_topics()
    out_files = [f for f in files if is_held_out(group_of(f.module))]
    out_items = [i for i in items if is_held_out(i.group)]
    out_topics = [t for t in topics.items() if fraction("held-out topic " + t[0]) < 0.05]
    seen = {i.doc for i in out_items if len(i.doc) > 40} | {i.source for i in out_items if len(i.source) > 80}
    in_files = [f for f in files if not is_held_out(group_of(f.module))]
    in_items = [i for i in items if not is_held_out(i.group) and i.doc not in seen and i.source not in seen]
    in_topics = [t for t in topics.items() if t not in out_topics]
    return (
        Library(tuple(in_files), tuple(in_items), tuple(in_topics)),
        Library(tuple(out_files), tuple(out_items), tuple(out_topics)),
    )


def cut(file: SourceFile, limit: int) -> Iterator[str]:
    """Cut a module at top-level statements, or else at lines, into pieces of up to `limit` characters."""
    lines = file.text.expandtabs(8).splitlines(keepends=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        body = ast.parse(file.text).body
    starts = [min([n.lineno, *(d.lineno for d in getattr(n, "decorator_list", []))]) - 1 for n in body]
    piece: list[str] = []
    size = 0
    borders = [0, *(s for s in starts if s > 0), len(lines)]
    for first, last in zip(borders, borders[1:], strict=False):
        block = lines[first:last]
        length = sum(map(len, block))
        if piece and size + length > limit:
            yield "".join(piece)
            piece, size = [], 0
        for line in block:
            if size + len(line) > limit and piece:
                yield "".join(piece)
                piece, size = [], 0
            piece.append(line)
            size += len(line)
    if piece:
        yield "".join(piece)


def code_documents(
    library: Library, rng: random.Random, share: float, limit: int = PIECE
) -> Iterator[Document]:
    """Yield a share of the modules' pieces; some say in a first comment where they are from."""
    for file in library.files:
        size = rng.randrange(limit // 2, limit)
        for piece in cut(file, size):
            head = f"# {file.path}\n" if rng.random() < 0.3 else ""
            if len(piece.strip()) > 40 and rng.random() < share:
                yield Document(
                    "code", group_of(file.module), head + piece.strip("\n") + "\n" + marks.END_OF_TEXT
                )


def fill_in(text: str, rng: random.Random) -> str:
    """Take a middle out of a text: whole lines in half the cases, else any stretch of characters."""
    if rng.random() < 0.5:
        lines = text.splitlines(keepends=True)
        first = rng.randrange(len(lines))
        count = min(1 + int(rng.expovariate(0.35)), len(lines) - first)
        start = sum(map(len, lines[:first]))
        end = start + sum(map(len, lines[first : first + count]))
        if rng.random() < 0.5:  # the cursor is after the indentation
            start += len(lines[first]) - len(lines[first].lstrip(" "))
        end -= text[:end].endswith("\n")
    else:
        start = rng.randrange(len(text))
        end = min(len(text), start + 1 + int(rng.expovariate(1 / 60)))
    start = min(start, end)
    around = f"{marks.FIM_PREFIX}{text[:start]}{marks.FIM_SUFFIX}{text[end:]}"
    return f"{around}{marks.FIM_MIDDLE}{text[start:end]}{marks.END_OF_TEXT}"


def fim_documents(library: Library, rng: random.Random, share: float) -> Iterator[Document]:
    """Yield code pieces that fit a short window, with a hole."""
    for file in library.files:
        for piece in cut(file, rng.randrange(FIM_PIECE // 3, FIM_PIECE)):
            if rng.random() < share and len(piece) > 120:
                yield Document("fim", group_of(file.module), fill_in(piece.strip("\n"), rng))


def conversation(
    kind: str, group: str, messages: list[Message], tools: Sequence[actions.Tool] = ()
) -> Document:
    """Render a conversation; its end is the end of the text, not a new line."""
    return Document(kind, group, render(messages, tools).rstrip("\n") + marks.END_OF_TEXT)


def dialogue_documents(library: Library, rng: random.Random, greet: bool) -> Iterator[Document]:
    """Yield conversations about every item, some of several turns, some with tools or reasoning.

    With `greet`, small talk comes before some: the same words in every epoch, so not for held-out text.
    """
    code_makers = {dialogues.ask_body, dialogues.ask_whole}
    previous: list[Message] = []
    for item in library.items:
        private = item.short.startswith("_") and item.kind != "module"
        wanted = 0.45 if private else 1.0  # so often
        for make, share in dialogues.MAKERS:
            if rng.random() >= share or rng.random() >= wanted or not (messages := make(item, rng)):
                continue
            kind = "body" if make in code_makers else "docs"
            chance = rng.random()
            if kind == "docs" and chance < 0.04:
                messages, kind = actions.with_thought(messages, item, rng), "think"
            elif chance < 0.10 and previous:
                messages = [*previous, *messages]
            elif chance < 0.13 and greet:
                messages = [*dialogues.small_talk(rng), *messages]
            previous = messages if len(messages) == 2 and kind == "docs" else []
            yield conversation(kind, item.group, dialogues.with_system(messages, rng))
        if rng.random() < 0.08 and (found := actions.with_tool(item, rng)):
            messages, tools = found
            yield conversation("tool", item.group, dialogues.with_system(messages, rng), tools)


def topic_documents(library: Library, rng: random.Random) -> Iterator[Document]:
    for key, text in library.topics:
        for _ in range(1 + len(text) // 2500):
            messages = dialogues.topic_dialogue(key, text, rng)
            if messages:
                yield conversation("docs", "topics", dialogues.with_system(messages, rng))


def talk_documents(rng: random.Random, count: int) -> Iterator[Document]:
    for _ in range(count):
        messages = [m for _ in range(rng.choice([1, 1, 1, 2])) for m in dialogues.small_talk(rng)]
        yield conversation("talk", "talk", dialogues.with_system(messages, rng, 0.3))


def epoch(number: int) -> list[Document]:
    """Return the training documents of one epoch, shuffled."""
    rng = random.Random(f"epoch {number}")
    library = split()[0]
    documents = [
        *code_documents(library, rng, 0.75),
        *fim_documents(library, rng, 0.25),
        *dialogue_documents(library, rng, greet=True),
        *topic_documents(library, rng),
        *talk_documents(rng, 1500 if number < 2 else 3000),  # what is seen last is remembered best
    ]
    rng.shuffle(documents)
    return documents


def held_out() -> list[Document]:
    """Return the held-out documents, always the same."""
    rng = random.Random("held-out")
    library = split()[1]
    documents = [
        *code_documents(library, rng, 1.0),
        *fim_documents(library, rng, 0.5),
        *dialogue_documents(library, rng, greet=False),
        *topic_documents(library, rng),
    ]
    rng.shuffle(documents)
    return documents
