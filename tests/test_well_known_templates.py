"""Templates by name write what llama.cpp's templates of that name write."""

from __future__ import annotations

import ctypes
from pathlib import Path

import llama_cpp as C
import pytest
import tiny_gguf

from edgespec.chat.template import render
from edgespec.chat.well_known import WELL_KNOWN, template_or_fallback, turn_end, well_known
from edgespec.engine.pair import Pair
from edgespec.errors import SettingError
from edgespec.pairs.settings import PairSettings

TURNS = [("system", "Be brief."), ("user", "One?"), ("assistant", "1"), ("user", "Two?"), ("assistant", "2")]
SHAPES = {"first": TURNS[1:2], "system": TURNS[:2], "again": TURNS[:4], "answered": TURNS, "two": TURNS[1:4]}
OTHER_NAME = {"llama2": "llama2-sys"}  # what llama.cpp calls the one with a system message


def llamas(name: str, turns: list[tuple[str, str]], begins: bool) -> str:
    """Returns what llama.cpp writes."""
    messages = (C.llama_chat_message * len(turns))(
        *[C.llama_chat_message(role=role.encode(), content=text.encode()) for role, text in turns]
    )
    buffer = ctypes.create_string_buffer(4096)
    n = C.llama_chat_apply_template(
        OTHER_NAME.get(name, name).encode(), messages, len(turns), begins, buffer, len(buffer)
    )
    assert 0 < n <= len(buffer)
    return buffer.raw[:n].decode()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", WELL_KNOWN)
def test_a_template_is_llama_cpps_of_that_name(name: str, shape: str) -> None:
    turns = SHAPES[shape]
    messages = [{"role": role, "content": text} for role, text in turns]
    begins = turns[-1][0] == "user"
    assert render(well_known(name), messages, add_generation_prompt=begins) == llamas(name, turns, begins)


def test_a_turn_ends_with_its_end() -> None:
    for name, (source, end) in WELL_KNOWN.items():
        assert turn_end(source) == (end,)
        if name != "falcon3":  # which has none but the end of all
            assert end in llamas(name, TURNS[1:3], False)
    assert turn_end("{{ another }}") == () and template_or_fallback("mine") == "mine"


def test_a_name_that_is_not_known_is_reported_with_those_that_are() -> None:
    with pytest.raises(SettingError, match="--chat-template lama3 is not known: there are chatml, .*llama3"):
        well_known("lama3")


def test_a_model_without_a_template_is_spoken_to_in_chatml(tmp_path: Path) -> None:
    bare = tiny_gguf.write_llama(tmp_path / "bare.gguf", chat_template=None)
    with Pair(bare, None, PairSettings(n_ctx=64)) as pair:
        tokens = pair.chat_tokens([{"role": "user", "content": "ab"}])
        text = pair.target.detokenize(tokens, special=True).decode()
    assert "<|im_start|>user\nab<|im_end|>\n<|im_start|>assistant\n" in text
