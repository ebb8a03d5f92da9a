"""A model's own calls come back with its own tokens, in five formats of calls and three dialects."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from late import anthropic, openai
from scripted_gguf import write_scripted
from served import Served, served

TEXT = (
    "what is it, then? The quick brown fox jumps over some lazy dog at midnight, and nobody knows why. Once "
    "upon a river lived an otter whose hobby was collecting smooth pebbles; every Tuesday she polished them "
    "until each shone like glass, and traded two or three for fresh bread with a baker from the far village."
)
ARGUMENTS = f'{{"text":"{TEXT}","n":7}}'  # without the spaces that templates put between them
SCHEMA = {
    "type": "object",
    "properties": {"text": {"type": "string"}, "n": {"type": "integer"}},
    "required": ["text", "n"],
}
MOST = 32  # tokens that are evaluated again in a turn


@dataclass(frozen=True, slots=True)
class Format:
    """How a family writes the call."""

    template: str
    text: str
    tags: tuple[str, ...]  # its control tokens; the last ends a turn
    flags: tuple[str, ...] = ()  # of the server


FORMATS = (
    Format(
        "Qwen-Qwen3-0.6B",
        f'<tool_call>\n{{"name": "look", "arguments": {ARGUMENTS}}}\n</tool_call>',
        ("<tool_call>", "</tool_call>", "<|im_start|>", "<|im_end|>"),
    ),
    Format(
        "Qwen3-Coder",
        f"<tool_call>\n<function=look>\n<parameter=text>\n{TEXT}\n</parameter>\n<parameter=n>\n7\n</parameter>\n"
        "</function>¦\n</tool_call>",
        ("<tool_call>", "<|im_start|>", "<|im_end|>"),
    ),
    Format(
        "meta-llama-Llama-3.1-8B-Instruct",
        f'{{"name": "look", "parameters": {ARGUMENTS}}}',
        ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    ),
    Format(
        "deepseek-ai-DeepSeek-V3.1",
        f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>look<｜tool▁sep｜>{ARGUMENTS}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        (
            *("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"),
            *("<｜tool▁calls▁end｜>", "<｜Assistant｜>", "<｜User｜>", "<｜end▁of▁sentence｜>"),
        ),
        ("--reasoning", "off"),
    ),
    Format(
        "unsloth-mistral-Devstral-Small-2507",
        f"[TOOL_CALLS]look[ARGS]{ARGUMENTS}",
        ("[TOOL_CALLS]", "[ARGS]", "[INST]", "[/INST]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "</s>"),
    ),
)


def chat(server: Served, asked: list[Any], turn: int) -> list[Any]:
    """Returns what a turn adds to the conversation: the answer, and the result of its call."""
    tool = {"type": "function", "function": {"name": "look", "description": "looks", "parameters": SCHEMA}}
    with openai.OpenAI(base_url=server.url, api_key="none", max_retries=0) as client:
        got = client.chat.completions.create(model="x", messages=asked, tools=[tool], temperature=0)
    message = got.choices[0].message
    [call] = message.tool_calls
    result = {"role": "tool", "tool_call_id": call.id, "content": f"result {turn}"}
    return [message.model_dump(exclude_none=True), result]


def messages(server: Served, asked: list[Any], turn: int) -> list[Any]:
    tool = {"name": "look", "description": "looks", "input_schema": SCHEMA}
    root = server.url.removesuffix("/v1")
    with anthropic.Anthropic(base_url=root, api_key="none", max_retries=0) as client:
        got = client.messages.create(
            model="x", messages=asked, tools=[tool], max_tokens=400, extra_body={"temperature": 0}
        )
    blocks = [block.model_dump(exclude_none=True) for block in got.content]
    result = {"type": "tool_result", "tool_use_id": blocks[-1]["id"], "content": f"result {turn}"}
    return [{"role": "assistant", "content": blocks}, {"role": "user", "content": [result]}]


def responses(server: Served, asked: list[Any], turn: int) -> list[Any]:
    tool = {"type": "function", "name": "look", "description": "looks", "parameters": SCHEMA}
    with openai.OpenAI(base_url=server.url, api_key="none", max_retries=0) as client:
        got = client.responses.create(model="x", input=asked, tools=[tool], temperature=0)
    items = [item.model_dump(exclude_none=True) for item in got.output]
    result = {"type": "function_call_output", "call_id": items[-1]["call_id"], "output": f"result {turn}"}
    return [*items, result]


DIALECTS: tuple[Callable[[Served, list[Any], int], list[Any]], ...] = (chat, messages, responses)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.template)
def test_a_call_that_comes_back_is_not_read_again(form: Format, test_data: Path, tmp_path: Path) -> None:
    """Arguments came back with a template's own spacing, and all behind the first space was read again."""
    template = (test_data / "templates" / f"{form.template}.jinja").read_text()
    model = write_scripted(tmp_path / "model.gguf", form.text, template, tags=form.tags)
    again = {}
    flags = ("--slots", "3", "--ctx", "8192", "--no-draft", *form.flags, "--target", str(model))
    with served(tmp_path, *flags) as server:
        for dialect in DIALECTS:
            asked: list[Any] = [{"role": "user", "content": f"Look at {dialect.__name__}, please."}]
            held = 0
            for turn in range(4):
                asked += dialect(server, asked, turn)
                last = server.ask("/edgespec/requests").json["requests"][-1]
                cached = last["prompt_tokens"] - last["evaluated"]
                again[dialect.__name__, turn] = held - cached if held else 0
                held = last["prompt_tokens"] + last["generated"]
    assert max(again.values()) <= MOST, again
