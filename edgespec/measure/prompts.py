"""What a pair is measured and verified on: prompts of five kinds that ship, or a file of the user's."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edgespec.errors import SettingError, TemplateError
from edgespec.system.named_file import read_text

if TYPE_CHECKING:
    from edgespec.engine.pair import Pair


LONGEST_FILE = 2**24  # characters; Spec-Bench has 0.7 million


@dataclass(frozen=True, slots=True)
class Prompt:
    """One thing to ask. raw: continue the text as it stands (control tokens spelt out in it are meant)."""

    name: str
    kind: str
    text: str
    raw: bool = False


CLAMP = '''def clamp(value, low, high):
    """Return value, or the bound that it is beyond."""
    if low > high:
        raise ValueError("low must not be greater than high")
    if value < low:
        return low
    if value > high:
        return high
    return value'''
QUEUE = '''class Queue:
    """First in, first out."""

    def __init__(self, maxsize=0):
        self.maxsize = maxsize
        self.items = []

    def put(self, item):
        if self.maxsize and len(self.items) >= self.maxsize:
            raise OverflowError("the queue is full")
        self.items.append(item)

    def get(self):
        if not self.items:
            raise LookupError("the queue is empty")
        return self.items.pop(0)'''
READER = """def read_table(path, separator=","):
    rows = []
    with open(path, encoding="utf-8") as file:
        for line in file:
            line = line.strip()
            if not line or line.startswith("#"):
                continue
            rows.append(line.split(separator))
    return rows"""

_TEXTS = (
    ("code", "Write a Python function that returns the n-th Fibonacci number, with a docstring."),
    ("explain", "What does `os.path.join` do? Explain it with an example."),
    ("chat", "Hello! Who are you, and what can you help me with?"),
    ("edit", f"Add type hints to this code, and change nothing else.\n\n```python\n{CLAMP}\n```"),
    (
        "fill",
        "Finish this function of the `textwrap` module:\n\n```python\n"
        'def indent(text, prefix, predicate=None):\n    """Add prefix to the beginning of each line."""\n```',
    ),
    ("code", "Write a Python class for a stack, with the methods push, pop, peek and is_empty."),
    ("explain", "How does the `collections` module differ from the built-in containers?"),
    ("chat", "I have a free afternoon and it is raining. What could I do?"),
    (
        "edit",
        f"Rename `items` to `entries` in this code and show all of it again.\n\n```python\n{QUEUE}\n```",
    ),
    (
        "fill",
        "Finish this class:\n\n```python\nclass Counter(dict):\n"
        '    """Dict subclass for counting hashable items."""\n\n    def most_common(self, n=None):\n```',
    ),
    ("code", "Write a Python script that reads a CSV file and prints the sum of every column."),
    ("explain", "Explain the difference between a list and a tuple in Python."),
    ("chat", "Write a short letter to a friend about a walk in the mountains."),
    (
        "edit",
        "Add a parameter `skip` for the number of first lines to leave out, and show the whole function."
        f"\n\n```python\n{READER}\n```",
    ),
    (
        "fill",
        "Finish this function:\n\n```python\ndef binary_search(values, wanted):\n"
        '    """Return the index of wanted in the sorted list values, or -1."""\n```',
    ),
)


def built_in() -> tuple[Prompt, ...]:
    """Returns the prompts that ship: three each of five kinds."""
    return tuple(Prompt(f"{kind}-{i // 5 + 1}", kind, text) for i, (kind, text) in enumerate(_TEXTS))


def read_prompts(path: Path) -> tuple[Prompt, ...]:
    """Reads a file of the user's. NAME.jsonl has one prompt a line; any other file is one prompt, whole.

    A line is of Spec-Bench (question_id, category, turns: the first turn is asked) or has "prompt" and, if
    wanted, "kind" and "raw". Raises SettingError, naming the line, for what is not understood.
    """
    content = read_text("--prompts", path, most=LONGEST_FILE, errors="replace")
    if path.suffix.lower() != ".jsonl":
        if not content.strip():
            raise SettingError(f"--prompts {path} is empty: put a prompt into it")
        return (Prompt(path.name, "file", content.rstrip("\n")),)
    lines = [(i, line) for i, line in enumerate(content.splitlines(), 1) if line.strip()]
    if not lines:
        raise SettingError(f"--prompts {path} is empty: write one JSON object per line")
    return tuple(_from_line(line, f"--prompts {path}, line {i}", str(i)) for i, line in lines)


def _from_line(line: str, where: str, number: str) -> Prompt:
    try:
        entry: Any = json.loads(line)
    except ValueError as error:
        raise SettingError(f"{where} is not JSON: {error}") from None
    if not isinstance(entry, dict):
        raise SettingError(f'{where} is not a JSON object: write {{"prompt": "...", "kind": "..."}}')
    turns = entry.get("turns")
    text = turns[0] if isinstance(turns, list) and turns else entry.get("prompt")
    if not isinstance(text, str) or not text.strip():
        raise SettingError(f'{where} has no text: give "prompt", or "turns" with at least one turn')
    name, kind = entry.get("question_id", number), entry.get("category", entry.get("kind", "file"))
    if not isinstance(kind, str) or not isinstance(entry.get("raw", False), bool):
        raise SettingError(f'{where}: "kind" must be a text and "raw" true or false')
    return Prompt(str(name), kind, text, entry.get("raw", False))


def by_kind(prompts: Iterable[Prompt]) -> list[list[Prompt]]:
    """Sorts prompts into rows: the first of every kind, the second of every kind, ..."""
    kinds: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        kinds.setdefault(prompt.kind, []).append(prompt)
    longest = max(map(len, kinds.values()), default=0)
    return [[of[i] for of in kinds.values() if i < len(of)] for i in range(longest)]


def tokenize(pair: Pair, prompts: Iterable[Prompt], *, raw: bool = False) -> dict[str, NDArray[np.int32]]:
    """Returns name -> tokens, by the model's chat template where it has one that takes them.

    raw: the texts are continued as they stand, as where there is no template.
    """
    chat = not raw and bool(pair.target.chat_template)
    tokens = {}
    for prompt in prompts:
        if chat and not prompt.raw:
            try:
                tokens[prompt.name] = pair.chat_tokens([{"role": "user", "content": prompt.text}])
                continue
            except TemplateError:
                chat = False  # nor does it take the next one, and refusing may take seconds
        tokens[prompt.name] = pair.prompt_tokens(prompt.text, special=True)
    return tokens


def fitting(
    pair: Pair, prompts: Sequence[Prompt], n_tokens: int, *, raw: bool = False
) -> tuple[list[Prompt], dict[str, NDArray[np.int32]]]:
    """Returns the prompts that leave room for `n_tokens` in the context, and the tokens of all."""
    tokens = tokenize(pair, prompts, raw=raw)
    return [prompt for prompt in prompts if tokens[prompt.name].size + n_tokens <= pair.n_ctx], tokens
