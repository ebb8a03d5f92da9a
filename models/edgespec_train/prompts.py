"""The prompts for a target whose draft is trained: questions, the user's files, its earlier texts."""

from __future__ import annotations

import os
import random
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from edgespec.chat.template import render
from edgespec.engine.text_log import KeptText
from edgespec.errors import SettingError, TemplateError
from edgespec_models.gguf.header import Header
from edgespec_models.gguf.vocabulary import NO_TOKEN, vocabulary_of
from edgespec_train.recorded import TEMPERATURES, PromptToRecord

if TYPE_CHECKING:
    from edgespec_train.hidden import Hidden

PROMPT = 512  # tokens
NEW = 192  # tokens of an answer
CONTEXT = PROMPT + NEW
LARGEST_FILE = 1 << 20  # bytes
MOST_FILES = 2000
OWN_AGAIN = 4  # times that a user's prompt is answered anew, in a session
OWN_OF_EACH = 3  # of these before each other question
OWN_SHARE = 60  # of questions over the user's files; questions from templates have 72 in all


@dataclass(frozen=True, slots=True)
class TrainingPrompts:
    """Makes prompts; held-out ones are never among those for training."""

    template: str | None
    bos: str
    eos: str
    passages: tuple[str, ...]  # of the user's files
    own: tuple[KeptText, ...]  # the target's answers to the user

    def held_out(self, target: Hidden) -> Iterator[PromptToRecord]:
        """Yields held-out prompts: the user's if there are enough of them, else questions."""
        own = [text for text in self.own if is_held_out(text)]
        for text in own:
            yield PromptToRecord(list(text.prompt), text.temperature, 0, text.answer)
        for n, ids in enumerate(self._prompts(target, -1, held_out=True)):
            yield PromptToRecord(ids, TEMPERATURES[n % len(TEMPERATURES)], NEW)

    def training(self, target: Hidden, seed: int, recorded: frozenset[int]) -> Iterator[PromptToRecord]:
        """Yields prompts for training. recorded: digests of texts that exist already."""
        for text in self.own:
            if not is_held_out(text) and digest((*text.prompt, *text.answer)) not in recorded:
                yield PromptToRecord(list(text.prompt), text.temperature, 0, text.answer)
        again = self._own_again(seed)
        for n, ids in enumerate(self._prompts(target, seed, held_out=False)):
            yield from islice(again, OWN_OF_EACH)
            yield PromptToRecord(ids, TEMPERATURES[n % len(TEMPERATURES)], NEW)

    def _own_again(self, seed: int) -> Iterator[PromptToRecord]:
        """Yields the user's own prompts, each to be answered anew several times: more of what is wanted."""
        rng = random.Random(f"again {seed}")
        mine = sorted({text.prompt for text in self.own if not is_held_out(text)})
        for turn in range(OWN_AGAIN if mine else 0):
            for n, prompt in enumerate(rng.sample(mine, len(mine))):
                if len(prompt) <= PROMPT:
                    yield PromptToRecord(list(prompt), TEMPERATURES[(n + turn) % len(TEMPERATURES)], NEW)

    def _prompts(self, target: Hidden, seed: int, *, held_out: bool) -> Iterator[list[int]]:
        """Yields prompts that are no longer than PROMPT, without end."""
        from edgespec_train import questions

        rng = random.Random(f"own {seed}")
        mine = [text for text in self.passages if questions.held_out(text) == held_out]
        shares = {**questions.SHARES, "own": OWN_SHARE} if mine else questions.SHARES
        over = {"own": [questions.over(text, rng)[1] for text in mine]}
        for about, turns in questions.questions(seed, shares=shares, own=over):
            if turns in over["own"] or questions.held_out(about) == held_out:
                ids = self._tokens(target, turns[0])
                if 0 < len(ids) <= PROMPT:
                    yield ids

    def _tokens(self, target: Hidden, question: str) -> list[int]:
        if self.template is None:
            return target.tokenise(question, special=False)
        messages = [{"role": "user", "content": question}]
        text = render(self.template, messages, bos=self.bos, eos=self.eos)
        return target.tokenise(text, bos=not (self.bos and text.startswith(self.bos)))


def prompts_for(header: Header, passages: Sequence[str], own: Sequence[KeptText]) -> TrainingPrompts:
    """Returns the prompts of a target. Raises TemplateError if its template takes no question."""
    template = header.metadata.get("tokenizer.chat_template")
    vocabulary = vocabulary_of(header)

    def text(token: int) -> str:
        return "" if token == NO_TOKEN else vocabulary.texts[token].decode("utf-8", "replace")

    found = TrainingPrompts(
        template if isinstance(template, str) and template.strip() else None,
        text(vocabulary.bos),
        text(vocabulary.eos),
        tuple(passages),
        tuple(text for text in own if _usable(text, len(vocabulary.texts))),
    )
    if found.template is not None:
        try:
            render(found.template, [{"role": "user", "content": "?"}], bos=found.bos, eos=found.eos)
        except TemplateError as error:
            raise TemplateError(f"{header.name} cannot be used: {error}") from None
    return found


def _usable(text: KeptText, n_vocab: int) -> bool:
    return len(text.prompt) + len(text.answer) <= CONTEXT and max(*text.prompt, *text.answer) < n_vocab


def is_held_out(text: KeptText) -> bool:
    """True for one text of the user's in eight, by its prompt: nothing is trained on it."""
    from edgespec_train.questions import HELD_OUT

    return digest(text.prompt) % HELD_OUT == 0


def digest(ids: Sequence[int]) -> int:
    """Returns a number that identifies a text."""
    return zlib.crc32(np.asarray(ids, np.uint32).tobytes())


def passages_in(folder: str) -> list[str]:
    """Returns the paragraphs of the text files in a folder, and in those below. Raises SettingError."""
    from edgespec_train.questions import passages_of

    root = Path(os.path.expanduser(folder))
    if not root.is_dir():
        raise SettingError(f"--texts {folder}: there is no such folder")
    found: list[str] = []
    files = 0
    for path in sorted(root.rglob("*")):
        if files >= MOST_FILES:
            break
        try:
            if not path.is_file() or path.stat().st_size > LARGEST_FILE:
                continue
            text = path.read_bytes().decode("utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        if "\0" not in text:
            files += 1
            found += passages_of(text, prose=False)
    if not found:
        raise SettingError(
            f"--texts {folder}: no text file has a paragraph of 200 characters: name another folder"
        )
    return found
