"""A model without a chat template is addressed in ChatML; any can be addressed in another's format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny_gguf
from commands import refused
from late import openai
from served import served

from edgespec.chat.well_known import WELL_KNOWN
from edgespec.client.client import Client

ASKED: Any = [{"role": "system", "content": "ab"}, {"role": "user", "content": "cd"}]


TOOLS = (
    "with tools:{% for tool in tools %}{{ tool | tojson }}{% endfor %}<tool_call>"
    "{% for m in messages %}{{ m.content }}{% endfor %}"
)


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "bare.gguf"
    return tiny_gguf.write_llama(
        path, chat_template=None, metadata={"tokenizer.chat_template.tool_use": TOOLS}
    )


@pytest.mark.slow
def test_it_is_spoken_to_in_chatml_and_that_is_stated_once(bare: Path, tmp_path: Path) -> None:
    """It was refused with 400, where llama-server answers."""
    with served(tmp_path, "--target", str(bare), "--ctx", "256") as server:
        with openai.OpenAI(base_url=server.url, api_key="x", max_retries=0) as client:
            for _ in range(2):
                answered = client.chat.completions.create(
                    model="bare", messages=ASKED, max_tokens=4, extra_body={"verbose": True}
                )
                assert answered.choices[0].finish_reason in ("stop", "length")
            model = client.models.list().data[0]
        prompt = server.ask("/apply-template", {"messages": ASKED}).json["prompt"]
        assert prompt == (
            "<|im_start|>system\nab<|im_end|>\n<|im_start|>user\ncd<|im_end|>\n<|im_start|>assistant\n"
        )
        tools = [{"type": "function", "function": {"name": "look"}}]
        prompt = server.ask("/apply-template", {"messages": ASKED, "tools": tools}).json["prompt"]
        assert prompt.startswith("with tools:{") and prompt.endswith("<tool_call>abcd"), "a file may have two"
        props = server.ask("/props").json
        assert props["chat_template"] == WELL_KNOWN["chatml"][0]
        assert props["chat_template_source"] == "chatml"
        assert (model.model_extra or {})["meta"]["chat_template_source"] == "chatml"
        assert Client.at(server.url).info().chatml
        assert server.logged().count("bare has no chat template: conversations are written as ChatML") == 1


@pytest.mark.slow
def test_a_well_known_template_is_named(tmp_path: Path) -> None:
    with served(tmp_path, "--chat-template", "llama3", "--no-draft") as server:
        prompt = server.ask("/apply-template", {"messages": ASKED}).json["prompt"]
        assert prompt.startswith("<|start_header_id|>system<|end_header_id|>\n\nab<|eot_id|>")
        assert server.ask("/props").json["chat_template_source"] == "given"
        assert not Client.at(server.url).info().chatml and "no chat template" not in server.logged()
        assert server.chat(max_tokens=2).status == 200


def test_both_ways_to_name_a_template_are_one_too_many(tmp_path: Path) -> None:
    path = tmp_path / "template"
    path.write_text("{{ 1 }}")
    refused("serve", "--chat-template", "chatml", "--chat-template-file", path)
    assert "no such" in refused("serve", "--chat-template-file", tmp_path / "absent").lower()
    assert "there are chatml, " in refused("serve", "--chat-template", "lama3")
