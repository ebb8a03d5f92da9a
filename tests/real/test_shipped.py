"""The shipped pair answers if no file is named, and its template is the one it was trained on."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from commands import EDGESPEC
from real.embedded import BYTE_IDENTICAL, held_out_prompts, pair_files

from edgespec import load
from edgespec.engine.pair import Pair
from edgespec.llama.model import Model
from edgespec.pairs.check import check_pair


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with Pair(*pair_files(), BYTE_IDENTICAL) as pair:
        yield pair


def test_run_without_files_uses_the_pair_and_speculates() -> None:
    pair_files()
    # A fixed length: whether guesses pay is the machine's affair, and a busy one is right to make none.
    command = [*EDGESPEC, "run", "--json", "--threads", "1", "-n", "48", "--seed", "3", "--draft-length", "2"]
    done = subprocess.run([*command, "--raw", "import os\n\ndef "], capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures["text"]
    assert figures["drafted"] > 0
    assert 0 <= figures["acceptance_rate"] <= 1
    assert done.stderr == b""
    plain = subprocess.run(
        [*command, "--raw", "--no-draft", "import os\n\ndef "], capture_output=True, timeout=60
    )
    assert json.loads(plain.stdout)["drafted"] == 0


@pytest.mark.slow
def test_chat_without_files_uses_the_pair() -> None:
    pair_files()
    command = [*EDGESPEC, "chat", "--threads", "1", "-n", "24", "--seed", "3"]
    done = subprocess.run(
        command, input=b"What does `itertools.chain` do?\n", capture_output=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert b"tokens" in done.stderr


def test_load_without_files_gives_the_pair() -> None:
    target, draft = pair_files()
    with load() as pair:
        assert pair.target.path == Path(target)
        assert pair.draft and pair.draft.path == Path(draft)


def test_the_template_makes_of_messages_the_prompts_that_were_learned(pair: Pair) -> None:
    prompts = [prompt for prompt in held_out_prompts(40) if "messages" in prompt]
    assert len(prompts) > 5
    for prompt in prompts:
        rendered = pair.chat_tokens(prompt["messages"])
        assert np.array_equal(rendered, pair.prompt_tokens(prompt["prompt"], special=True))


def test_any_text_comes_back_byte_for_byte(pair: Pair) -> None:
    for text in ("def f(x):\n\treturn x\r\n", "naïve 日本語 🙂 שלום", "\x00\x01\x7f", " " * 100, "a" * 5000):
        tokens = pair.target.tokenize(text.encode(), special=False)
        assert pair.target.detokenize(tokens) == text.encode()


def test_the_pair_fits_and_a_changed_vocabulary_is_seen(tmp_path: Path) -> None:
    target, draft = pair_files()
    assert check_pair(target, draft) is None, "nothing is to be translated"
    data = bytearray(draft.read_bytes())
    with Model(draft, vocab_only=True) as model:
        text = max((t for t in model.vocabulary.texts[300:] if t.isalpha()), key=len)
    at = data.index(len(text).to_bytes(8, "little") + text) + 8
    data[at : at + len(text)] = bytes(reversed(text)) if text != text[::-1] else b"~" * len(text)
    other = tmp_path / "other.gguf"
    other.write_bytes(data)
    assert check_pair(target, other) is not None
