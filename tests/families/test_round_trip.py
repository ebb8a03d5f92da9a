"""Every template renders, and the calls that it writes are the calls that are read.

The templates are those of real models, if available (see `test_data`).
"""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pytest

from edgespec.chat.conversation import Composed, compose
from edgespec.chat.families.deltas import AssembledTurn
from edgespec.chat.families.known import family_of
from edgespec.chat.traits import traits_of

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": "where"},
        "days": {"type": "integer", "description": "how many"},
        "exact": {"type": "boolean", "description": "or about"},
        "places": {"type": "array", "items": {"type": "string"}, "description": "more"},
    },
    "required": ["city"],
}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": n, "description": "Says the weather.", "parameters": SCHEMA}}
    for n in ("get_weather", "guess_weather")
]
FIRST = {"city": 'Zürich "Nord"\nline <b>', "days": 3, "exact": True, "places": ["a", "b"]}
SECOND = {"city": "5"}  # a string that looks like a number
ASKED = {"role": "user", "content": "ASKED"}
FAMILIES = {
    "Qwen-Qwen2.5-7B-Instruct": "hermes",
    "Qwen-Qwen3-0.6B": "hermes",
    "Qwen-QwQ-32B": "hermes",
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": "hermes",
    "Qwen3-Coder": "qwen-coder",
    "Qwen3.5-4B": "qwen-coder",
    "meta-llama-Llama-3.1-8B-Instruct": "llama3",
    "meta-llama-Llama-3.2-3B-Instruct": "llama3",
    "meta-llama-Llama-3.3-70B-Instruct": "llama3",
    "mistralai-Mistral-Nemo-Instruct-2407": "mistral-list",
    "Mistral-Small-3.2-24B-Instruct-2506": "mistral",
    "mistralai-Ministral-3-14B-Reasoning-2512": "mistral",
    "unsloth-mistral-Devstral-Small-2507": "mistral",
    "google-gemma-2-2b-it": "hermes",  # its template knows no calls: they are told in words
    "google-gemma-4-31B-it": "gemma",
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": "deepseek-r1",
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": "deepseek-r1",
    "deepseek-ai-DeepSeek-V3.1": "deepseek-v3",
    "deepseek-ai-DeepSeek-V3.2": "deepseek-dsml",
    "openai-gpt-oss-120b": "harmony",
    "microsoft-Phi-3.5-mini-instruct": "hermes",  # as Gemma 2
    "ibm-granite-granite-3.3-2B-Instruct": "granite",
    "ibm-granite-granite-4.0": "hermes",
    "GLM-4.6": "glm",
    "GLM-4.7-Flash": "glm",
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use": "command-r7b",
    "CohereForAI-c4ai-command-r-plus-tool_use": "command-r",
    "moonshotai-Kimi-K2": "kimi",
    "LFM2-8B-A1B": "lfm",
    "LFM2.5-8B-A1B": "lfm",
    "MiniMax-M2": "minimax",
    "ByteDance-Seed-OSS": "seed",
    "upstage-Solar-Open-100B": "solar",
    "meetkai-functionary-medium-v3.1": "functionary-3.1",
    "meetkai-functionary-medium-v3.2": "functionary-3.2",
    "fireworks-ai-llama-3-firefunction-v2": "firefunction",
    "NVIDIA-Nemotron-Nano-v2": "nemotron",
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": "qwen-coder",
    "Kimi-K2-Thinking": "kimi",
    "Kimi-K3": "kimi-k3",
    "tencent-Hy3": "hunyuan",
    "openbmb-MiniCPM5-1B": "minicpm",
    "Apertus-8B-Instruct": "apertus",
    "unsloth-Apriel-1.5": "apriel",
    "MiniMax-M1": "tool-calls",
    "MiniMax-M3": "minimax-m3",
    "muse-glimmer": "muse",
    "GigaChat3-10B-A1.8B": "gigachat",
    "GigaChat3.1-10B-A1.8B": "gigachat",
    "deepseek-ai-DeepSeek-V4": "deepseek-dsml",
    "StepFun3.5-Flash": "qwen-coder",
    "HuggingFaceTB-SmolLM3-3B": "hermes",
}


HEAD, TAIL = "{% for m in messages %}[{{ m.role }}:", "]{% endfor %}"
LISTED = "{% for c in m.content %}{{ c.text }}{% endfor %}"


@pytest.mark.parametrize(
    ("content", "joined"),
    [
        ("{{ m.content }}", "one\ntwo"),  # it knows text alone: a list would be shown as Python shows it
        ("{{ m.content + '.' }}", "one\ntwo."),
        (LISTED, "onetwo"),  # it knows lists alone
        ("{% if m.content is string %}{{ m.content }}{% else %}" + LISTED + "{% endif %}", "onetwo"),
        (
            "{{ m.content if m.content is string else m.content | map(attribute='text') | join(' ') }}",
            "one two",
        ),
    ],
)
def test_texts_of_one_message_are_joined_as_its_template_joins_them(content: str, joined: str) -> None:
    """Without anything between, `<env></env>` of one part would run into the words of the next."""
    parts = [{"type": "text", "text": text} for text in ("one", "two", "")]
    template = HEAD + content + TAIL
    assert compose(template, [{"role": "user", "content": parts}]).text == f"[user:{joined}]"
    several = [{"role": "system", "content": parts}, {"role": "system", "content": "three"}, ASKED]
    assert joined.rstrip(".") in compose(template, several).text


def call(name: str, arguments: object, id: str) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


def composed(template: str, messages: list[Any], **more: Any) -> Composed:
    return compose(template, messages, bos="<BOS>", eos="<EOS>", **more)


def read(prompt: Composed, text: str) -> AssembledTurn:
    turn, parser = AssembledTurn(), prompt.parser()
    turn.add(parser.feed(text))
    turn.add(parser.finish())
    return turn


@pytest.fixture
def templates(test_data: Path) -> Path:
    return test_data / "templates"


@pytest.mark.sample(12)
@pytest.mark.parametrize("name", FAMILIES)
def test_calls_are_read_as_they_were_written(templates: Path, name: str) -> None:
    template = (templates / f"{name}.jinja").read_text()
    traits = traits_of(template)
    calls = [call("get_weather", FIRST, "call00001")]
    wanted = [("get_weather", FIRST)]
    if traits.several_calls or not traits.calls:
        calls.append(call("guess_weather", SECOND, "call00002"))
        wanted.append(("guess_weather", SECOND))
    if family_of(template).name == "command-r":  # its template describes lists in a way that fails
        calls, wanted = [call("get_weather", SECOND, "call00001")], [("get_weather", SECOND)]
    answer = {"role": "assistant", "content": None, "tool_calls": calls}
    asked = composed(template, [ASKED], tools=TOOLS)
    answered = composed(template, [ASKED, answer], tools=TOOLS, add_generation_prompt=False)
    whole = answered.text.startswith(asked.text)  # else the answer's own head is in the way, as content
    text = answered.text[len(asked.text) :] if whole else answered.text.rpartition("ASKED")[2]
    if asked.opened:
        text = asked.family.thoughts[0][1] + text
    turn = read(asked, text)
    assert asked.family.name == FAMILIES[name]
    assert [(made.name, json.loads(made.arguments)) for made in turn.calls] == wanted
    assert "get_weather" not in turn.content


@pytest.mark.slow
def test_every_template_renders_every_kind_of_message(templates: Path) -> None:
    """Nothing that was said is missing from the prompt, the tools included."""
    files = sorted(templates.glob("*.jinja"))
    assert len(files) > 50
    for file in files:
        messages: list[Any] = [
            {"role": "system", "content": "SYSTEM"},
            {"role": "user", "content": [{"type": "text", "text": "EARLIER"}]},
            {"role": "assistant", "content": "ANSWERED"},
            ASKED,
        ]
        plain = composed(file.read_text(), messages)
        assert all(word in plain.text for word in ("SYSTEM", "EARLIER", "ANSWERED", "ASKED")), file.name
        called = {"role": "assistant", "content": "", "tool_calls": [call("get_weather", SECOND, "c1")]}
        result = {"role": "tool", "tool_call_id": "c1", "name": "get_weather", "content": "RESULT"}
        turned = composed(file.read_text(), [*messages, called, result], tools=TOOLS)
        assert all(word in turned.text for word in ("ASKED", "get_weather", "RESULT")), file.name
        assert "guess_weather" in turned.text, file.name  # described, not called


@pytest.mark.parametrize(
    ("name", "thought", "on", "off"),
    [
        ("Qwen-Qwen3-0.6B", "<think>\nHm.\n</think>\n\n", "<|im_start|>assistant\n", "</think>\n\n"),
        ("Qwen-QwQ-32B", "Hm.\n</think>\n\n", "<think>\n", "</think>"),
        ("deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", "Hm.\n</think>\n\n", "<think>\n", "</think>"),
        ("GLM-4.6", "<think>Hm.</think>\n", "<|assistant|>", "</think>"),
        (
            "CohereForAI-c4ai-command-r7b-12-2024-tool_use",
            "<|START_THINKING|>Hm.<|END_THINKING|><|START_RESPONSE|>",
            "<|CHATBOT_TOKEN|>",
            "<|END_THINKING|>",
        ),
        (
            "openai-gpt-oss-120b",
            "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>",
            "<|start|>assistant",
            "<|start|>assistant",
        ),
        ("google-gemma-4-31B-it", "<|channel>thought\nHm.\n<channel|>", "model\n", "<channel|>"),
    ],
)
def test_thoughts_are_kept_apart(templates: Path, name: str, thought: str, on: str, off: str) -> None:
    template = (templates / f"{name}.jinja").read_text()
    thinking = composed(template, [ASKED])
    assert thinking.text.endswith(on)
    turn = read(thinking, f"{thought}Yes.")
    assert (turn.reasoning, turn.content, turn.calls) == ("Hm.", "Yes.", [])
    silent = composed(template, [ASKED], variables={"enable_thinking": False})
    assert silent.text.endswith(off) and not silent.opened


def test_an_answer_that_has_begun_goes_on(templates: Path) -> None:
    template = (templates / "meta-llama-Llama-3.1-8B-Instruct.jinja").read_text()
    prompt = composed(template, [ASKED, {"role": "assistant", "content": "Once"}], go_on=True)
    assert prompt.text.endswith("ASKED<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nOnce")
    thinking = (templates / "Qwen-QwQ-32B.jinja").read_text()
    begun = composed(thinking, [ASKED, {"role": "assistant", "content": "Once"}], go_on=True)
    assert begun.text.endswith("</think>\n\nOnce") and not begun.opened


def test_the_date_in_a_prompt_is_todays(templates: Path) -> None:
    now = datetime.datetime(2031, 5, 4)
    for name in ("meta-llama-Llama-3.3-70B-Instruct", "fireworks-ai-llama-3-firefunction-v2"):
        text = composed((templates / f"{name}.jinja").read_text(), [ASKED], now=now).text
        assert "04 May 2031" in text or "May 04 2031" in text
