# ruff: noqa: E501
"""What each editor and assistant sends, from its source, is answered; what docs/editors.md shows is well formed."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from served import Served

PAGE = Path(__file__).resolve().parents[2] / "docs" / "editors.md"
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "Does something to a file.",
            "strict": False,
            "parameters": {
                "$schema": "http://json-schema.org/draft-07/schema#",
                "type": "object",
                "properties": {"path": {"type": "string"}, "lines": {"type": "array", "items": {"type": "integer"}}},
                "required": ["path"],
                "additionalProperties": False,
            },
        },
    }
    for name in ("read_file", "write_to_file")
]  # fmt: skip
ASKED = [{"role": "system", "content": "You edit files."}, {"role": "user", "content": "What is EdgeSpec?"}]


def chunks(server: Served, path: str, body: Any, **headers: str) -> list[Any]:
    got = server.ask(path, body, headers=headers)
    assert got.status == 200, got.body
    lines = got.body.decode().splitlines()
    return [json.loads(line[6:]) for line in lines if line.startswith("data: ") and line != "data: [DONE]"]


def test_blocks_of_the_page_are_what_they_claim() -> None:
    blocks = re.findall(r"```(\w+)\n(.*?)```", PAGE.read_text(), re.DOTALL)
    kinds = [kind for kind, _ in blocks]
    assert {"json", "toml", "yaml", "vim", "sh"} <= set(kinds)
    for kind, text in blocks:
        if kind == "json":
            json.loads(text)
        elif kind == "toml":
            assert tomllib.loads(text)["model_providers"]["edgespec"]["wire_api"] == "responses"


def test_llama_vim_fills_in(dialects: Served) -> None:
    body = {
        "id_slot": 0, "input_prefix": "import os\n\ndef main():\n", "input_suffix": "\n\nmain()\n",
        "input_extra": [{"text": "import sys\n", "time": 1234.5, "filename": "other.py"}], "prompt": "    ",
        "n_predict": 16, "stop": [], "n_indent": 4, "top_k": 40, "top_p": 0.9, "stream": False,
        "samplers": ["top_k", "top_p", "infill"], "cache_prompt": True, "t_max_prompt_ms": 500,
        "t_max_predict_ms": 1000, "response_fields": ["content", "timings/prompt_n", "timings/prompt_ms",
        "timings/predicted_n", "timings/predicted_ms", "truncated", "tokens_cached"],
    }  # fmt: skip
    got = dialects.ask("/infill", body)
    assert got.status == 200 and set(got.json) == set(body["response_fields"])  # type: ignore[call-overload]
    warm = {**body, "n_predict": 0, "samplers": [], "response_fields": [""]}
    assert dialects.ask("/infill", warm).json == {}


def test_llama_vim_warms_up_while_an_instruction_is_typed(dialects: Served) -> None:
    """Its request for that says n_predict 0 to a chat: a whole answer would hold the real one up."""
    asked = [{"role": "system", "content": "--- SELECTION\nx = 1\n" * 30}, {"role": "user", "content": ""}]
    body = {"id_slot": 3, "messages": asked, "samplers": [], "n_predict": 0, "stream": False,
            "cache_prompt": True, "response_fields": [""]}  # fmt: skip
    warmed = dialects.ask("/v1/chat/completions", body).json
    assert warmed["choices"][0]["message"]["content"] == "" and warmed["timings"]["predicted_n"] <= 1
    asked[1]["content"] = "INSTRUCTION: count"
    sent = {"id_slot": 3, "messages": asked, "min_p": 0.1, "temperature": 0.1, "samplers": ["min_p", "temperature"],
            "stream": True, "cache_prompt": True, "n_predict": 4}  # fmt: skip
    events = chunks(dialects, "/v1/chat/completions", sent)
    assert events[-1]["timings"]["cache_n"] > 100 and events[-1]["timings"]["predicted_n"] <= 4


def test_llama_vscode_chats_with_letters_for_samplers(dialects: Served) -> None:
    body = {"messages": ASKED, "stream": False, "temperature": 0.8, "max_tokens": 8, "samplers": "edkypmxt",
            "cache_prompt": True, "tools": TOOLS, "tool_choice": "auto", "dynatemp_range": 0, "xtc_probability": 0,
            "typical_p": 1, "repeat_last_n": 256, "dry_multiplier": 0, "timings_per_token": False}  # fmt: skip
    got = dialects.ask("/v1/chat/completions", body).json
    assert got["choices"][0]["message"]["role"] == "assistant" and got["timings"]["predicted_n"] <= 8


def test_zed_finds_the_model_and_streams_with_tools(dialects: Served) -> None:
    [model] = dialects.ask("/v1/models").json["data"]
    assert model["id"] == "tiny" and model["meta"]["n_ctx"] == 2048 and model["meta"]["n_ctx_train"] == 2048
    props = dialects.ask("/props?model=tiny").json
    assert props["default_generation_settings"]["n_ctx"] == 2048
    assert props["chat_template_caps"]["supports_tool_calls"] and not props["modalities"]["vision"]
    body = {"model": "tiny", "messages": ASKED, "stream": True, "stream_options": {"include_usage": True},
            "tools": TOOLS, "tool_choice": "auto", "temperature": 1.0, "max_tokens": 12}  # fmt: skip
    events = chunks(dialects, "/v1/chat/completions", body)
    assert all(chunk["model"] and chunk["object"] == "chat.completion.chunk" for chunk in events)
    assert all("delta" in chunk["choices"][0] for chunk in events[:-1]) and events[-1]["choices"] == []
    assert events[-1]["usage"]["prompt_tokens_details"]["cached_tokens"] >= 0


def test_cline_streams_with_tools_and_an_effort(dialects: Served) -> None:
    parts = [
        {"type": "text", "text": "<task>What is EdgeSpec?</task>"},
        {"type": "text", "text": "<env></env>"},
    ]
    body = {"model": "tiny", "messages": [{"role": "developer", "content": "You edit."}, {"role": "user", "content": parts}],
            "stream": True, "stream_options": {"include_usage": True}, "temperature": 0, "reasoning_effort": "medium",
            "tools": TOOLS, "parallel_tool_calls": False, "max_tokens": 12}  # fmt: skip
    events = chunks(dialects, "/v1/chat/completions", body, Authorization="Bearer none")
    assert events[-1]["usage"]["completion_tokens"] > 0


def test_continue_asks_in_three_ways(dialects: Served) -> None:
    stop = [
        "<|endoftext|>",
        "<|fim_prefix|>",
        "<|fim_middle|>",
        "<|fim_suffix|>",
        "/src/",
        "#- coding: utf-8",
        "```",
    ]
    native = {"prompt": "<|fim_prefix|>def f():\n    <|fim_suffix|>\n<|fim_middle|>", "stream": True, "n_predict": 12,
              "temperature": 0.01, "stop": stop, "top_p": None}  # fmt: skip
    events = chunks(dialects, "/completion", native)
    assert events[-1]["stop"] and all("content" in chunk for chunk in events)
    legacy = {"model": "tiny", "prompt": native["prompt"], "max_tokens": 12, "stream": True, "stop": stop}
    assert chunks(dialects, "/v1/completions", legacy)[-1]["choices"][0]["finish_reason"]
    chat = {"model": "tiny", "messages": ASKED, "max_tokens": 12, "stream": True, "stop": stop[:4]}
    assert chunks(dialects, "/v1/chat/completions", chat, **{"api-key": "none"})[-1]["choices"][0][
        "finish_reason"
    ]


def test_opencode_streams_as_the_ai_sdk_does(dialects: Served) -> None:
    called = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "read_file", "arguments": '{"path":"a"}'},
    }
    body = {"model": "tiny", "max_tokens": 12, "temperature": 0, "tools": TOOLS, "tool_choice": "auto", "stream": True,
            "stream_options": {"include_usage": True}, "messages": [*ASKED, {"role": "assistant", "content": None,
            "tool_calls": [called]}, {"role": "tool", "tool_call_id": "call_1", "content": "x = 1"}]}  # fmt: skip
    events = chunks(dialects, "/v1/chat/completions", body)
    assert events[0]["choices"][0]["delta"]["role"] == "assistant" and events[-1]["usage"]


def test_aider_streams_plain_words(dialects: Served) -> None:
    body = {"model": "edgespec", "messages": [*ASKED, {"role": "assistant", "content": "Ok."}, ASKED[1]],
            "temperature": 0, "stream": True, "max_tokens": 12}  # fmt: skip
    text = "".join(
        chunk["choices"][0]["delta"].get("content") or ""
        for chunk in chunks(dialects, "/v1/chat/completions", body)
    )
    assert text


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/v1/responses", "/v1/messages", "/completion", "/infill"]
)
def test_a_mistake_is_reported_in_every_dialect(dialects: Served, path: str) -> None:
    got = dialects.ask(path, {"temperature": "hot"})
    assert got.status == 400 and got.error["message"]
