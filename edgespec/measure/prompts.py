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


BUILT_IN = Path(__file__).with_suffix(".jsonl")
LONGEST_FILE = 2**24  # characters; Spec-Bench has 0.7 million


@dataclass(frozen=True, slots=True)
class Prompt:
    """One thing to ask. raw: continue the text as it stands (control tokens spelt out in it are meant)."""

    name: str
    kind: str
    text: str
    raw: bool = False


def built_in() -> tuple[Prompt, ...]:
    """Returns the prompts that ship: three each of five kinds."""
    return read_prompts(BUILT_IN)


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
