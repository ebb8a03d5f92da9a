"""Prompts for a model whose draft is trained: questions from templates, documentation, texts.

An eighth of each source is held out, by name: figures are measured on these, and no draft trains on them.
"""

import importlib.metadata
import json
import random
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from pydoc_data.topics import topics as reference

# plain words, written by hand
WORDS = json.loads(Path(__file__).with_name("topics.json").read_text(encoding="utf-8"))
SHARES = {"topic": 30, "fact": 6, "code": 8, "sum": 12, "german": 5, "text": 11}
HELD_OUT = 8  # one source in so many
LONGEST = 1500  # characters of a passage
OVER_TEXT = [
    "Summarize: {}",
    "Summarize the following text in two sentences.\n\n{}",
    "{}\n\nWhat is this about?",
    "Read the text and list its main points.\n\n{}",
    "{}\n\nExplain this in simple words.",
]
Turns = list[str]


def held_out(source: str) -> bool:
    """Return whether this one is held out."""
    return zlib.crc32(source.encode()) % HELD_OUT == 0


def passages_of(text: str, prose: bool = True) -> Iterator[str]:
    """Yield the paragraphs of a text, 200 to LONGEST characters each; `prose`: no code, no links."""
    for part in re.split(r"\n\s*\n", text):
        plain = " ".join(part.split()) if prose else part.strip("\n")
        letters = sum(c.isalpha() or c == " " for c in plain)
        if len(plain) >= 200 and (not prose or letters > 0.88 * len(plain) and "http" not in plain):
            yield plain[:LONGEST]


@cache
def passages() -> tuple[str, ...]:
    """Return paragraphs of prose from the documentation of Python and of the packages installed here."""
    texts = [str(reference[name]) for name in sorted(reference)]
    for package in sorted(importlib.metadata.distributions(), key=lambda d: str(d.metadata["Name"]).lower()):
        texts.append(package.read_text("METADATA") or "")
    return tuple(passage for text in texts for passage in passages_of(text))


def made(kind: str, rng: random.Random) -> tuple[str, Turns]:
    """Make a question of a kind of SHARES; return its topic, and its turns."""
    if kind == "topic":
        topic, other = rng.sample(WORDS["topics"], 2)
        return topic, [rng.choice(WORDS["forms"]).format(topic, other=other)]
    if kind == "fact":
        work, land = rng.choice(WORDS["works"]), rng.choice(WORDS["lands"])
        form = rng.choice(WORDS["facts"])
        return work if "{work}" in form else land, [form.format(work=work, land=land)]
    if kind == "code":
        what, form = rng.choice(WORDS["code"]), rng.choice(WORDS["code_forms"])
        return what, [form.format(what, lang=rng.choice(WORDS["code_languages"]))]
    if kind == "sum":
        a, b = rng.sample(WORDS["names"], 2)
        j, k, n, m = (rng.randrange(*span) for span in ((2, 7), (2, 12), (5, 30), (30, 200)))
        text = rng.choice(WORDS["sums"]).format(
            a=a, b=b, things=rng.choice(WORDS["things"]), j=j, k=k, n=n, m=m
        )
        return text, [text]
    if kind == "german":
        who, did, what = (
            rng.choice(part) for part in (WORDS["german_who"], WORDS["german_did"], WORDS["german_what"])
        )
        return what, [f"Translate German to English: {who} {did} , {what} ."]
    passage = rng.choice(passages())
    if rng.random() < 0.3:
        context = "\n".join((passage, rng.choice(passages())))[:1800]
        return passage, [
            f"{context}\n\nAnswer from the text above: {rng.choice(WORDS['forms'][:7]).format('it')}"
        ]
    return passage, [rng.choice(OVER_TEXT).format(passage)]


def over(text: str, rng: random.Random) -> tuple[str, Turns]:
    """Make a question over a passage."""
    return text, [rng.choice(OVER_TEXT).format(text)]


def questions(
    seed: int | str, *, shares: Mapping[str, int] = SHARES, own: Mapping[str, Sequence[Turns]] | None = None
) -> Iterator[tuple[str, Turns]]:
    """Yield topics and turns of questions, without end; kinds by `shares`, some of them `own`."""
    rng, own = random.Random(f"questions {seed}"), own or {}
    kinds, weights = list(shares), list(shares.values())
    while True:
        kind = rng.choices(kinds, weights)[0]
        if kind in own:
            turns = rng.choice(own[kind])
            yield turns[0], turns
        else:
            yield made(kind, rng)
