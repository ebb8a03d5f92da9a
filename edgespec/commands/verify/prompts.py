"""Prompts of several kinds that any model can continue: what a pair is tried on where nobody names a text.

They are raw text, so that they work with every vocabulary; a question goes through the model's chat
template where it has one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from edgespec.engine.pair import Pair
from edgespec.errors import SettingError, TemplateError

Kind = Literal["code", "prose", "chat", "copying"]


@dataclass(frozen=True, slots=True)
class SamplePrompt:
    """A text to continue; of kind "chat" a question to answer."""

    kind: Kind
    text: str


_PARSER = '''import argparse


def read_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Count the words of a file.")
    parser.add_argument("path", help="the file to read")
    parser.add_argument("--encoding", default="utf-8", help="how its text is encoded")
    return parser.parse_args()


'''

_STACK = '''class Stack:
    """A list that is used from one end only."""

    def __init__(self):
        self.items = []

    def push(self, item):
        self.items.append(item)

    def pop(self):
        if not self.items:
            raise IndexError("pop from an empty stack")
        return self.items.pop()

    def '''

_SQL = """-- Orders of the last month, with the name of the customer, the largest first.
CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT NOT NULL, city TEXT);
CREATE TABLE orders (id INTEGER PRIMARY KEY, customer_id INTEGER, total REAL, placed_on DATE);

SELECT """

_HARBOUR = """The harbour was quiet when the last boat came in. Two men stood on the pier with a lamp \
between them, and neither of them spoke until the rope was made fast. Then the older one took off his \
cap and said"""

_FILES = """A file system keeps the names of files apart from what is in them. A name is an entry in a \
directory; it points to a record that says how long the file is, who may read it, and where on the disk its \
blocks are. When a file is renamed,"""

_LETTER = """Dear Sir or Madam,

I am writing to you about the washing machine that I bought in your shop three weeks ago. On the first day \
it worked as it should. Since then"""

_ROWS = """Write every line of the first list again, in the same order, with nothing changed.

First list:
name,colour,count
apple,red,12
pear,green,7
plum,blue,31
cherry,red,140
lemon,yellow,9

Second list:
name,colour,count
apple,red,12
pear,green,7
"""

_RENAME = '''# before
def area(width, height):
    """Return the area of a rectangle."""
    if width < 0 or height < 0:
        raise ValueError("lengths are not negative")
    return width * height


# after: the same function, with type hints
def area(width: float, height: float) -> float:
    """Return the area of a rectangle."""
    if width < 0 or height < 0:
'''

_RHYME = """This is the farmer that sowed the corn, that fed the cock that crowed in the morn, that woke the \
priest all shaven and shorn.
This is the horse and the hound and the horn, that belonged to the farmer that sowed the corn, that fed the \
cock that crowed in the morn, that woke"""

SAMPLE_PROMPTS: tuple[SamplePrompt, ...] = (
    SamplePrompt("code", _PARSER + "def "),
    SamplePrompt("prose", _HARBOUR),
    SamplePrompt("chat", "What is the difference between a list and a tuple in Python?"),
    SamplePrompt("copying", _ROWS),
    SamplePrompt("code", _STACK),
    SamplePrompt("prose", _FILES),
    SamplePrompt("chat", "Explain in a few sentences why the sky is blue."),
    SamplePrompt("copying", _RENAME),
    SamplePrompt("code", _SQL),
    SamplePrompt("prose", _LETTER),
    SamplePrompt("chat", "Write a short poem about a lighthouse."),
    SamplePrompt("copying", _RHYME),
)


@dataclass(frozen=True, slots=True)
class Prompt:
    """A text to continue, as the model's tokens."""

    kind: str
    tokens: NDArray[np.int32]


def fitting_prompts(pair: Pair, n_tokens: int) -> list[Prompt]:
    """Returns the sample prompts as tokens, those that leave room for `n_tokens` in the context.

    Questions go through the chat template where there is one that takes them.
    """
    found, asks = [], True
    for sample in SAMPLE_PROMPTS:
        tokens = pair.prompt_tokens(sample.text)
        if sample.kind == "chat":
            tokens = pair.prompt_tokens(f"Question: {sample.text}\nAnswer:")
            try:
                tokens = pair.chat_tokens([{"role": "user", "content": sample.text}]) if asks else tokens
            except TemplateError:
                asks = False  # nor does it take the next one, and refusing may take seconds
        if tokens.size + n_tokens + 1 < pair.n_ctx:
            found.append(Prompt(sample.kind, tokens))
    if not found:
        raise SettingError(f"the context of {pair.n_ctx:,} tokens has no room for a text: raise --ctx")
    return found
