"""The chat template: every kind of message, and that it is what training rendered. No torch."""

import json

from edgespec_train.recipes.template import render

TOOL = {
    "type": "function",
    "function": {"name": "look", "description": "Look.", "parameters": {"type": "object"}},
}


def test_a_plain_conversation():
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}]
    assert render(messages) == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello!<|im_end|>\n"


def test_a_system_prompt_and_the_cue_to_answer():
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    text = render(messages, add_generation_prompt=True)
    assert (
        text
        == "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_later_system_message_keeps_its_turn():
    text = render([{"role": "user", "content": "a"}, {"role": "system", "content": "b"}])
    assert text.endswith("<|im_start|>system\nb<|im_end|>\n")


def test_tools_are_listed_below_the_system_prompt():
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    system = render(messages, [TOOL]).split("<|im_end|>")[0]
    assert system.startswith("<|im_start|>system\nBe brief.\n\n")
    assert json.dumps(TOOL["function"]) in system


def test_tools_are_listed_without_a_system_prompt():
    assert render([{"role": "user", "content": "Hi"}], [TOOL]).startswith("<|im_start|>system\nYou can call")


def test_calls_and_answers():
    call = {"type": "function", "function": {"name": "look", "arguments": {"at": "ä <b>"}}}
    messages = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": None, "tool_calls": [call, call]},
        {"role": "tool", "content": "one"},
        {"role": "tool", "content": "two"},
        {"role": "assistant", "content": "y"},
    ]
    written = '<tool_call>{"name": "look", "arguments": {"at": "ä <b>"}}</tool_call>'
    assert render(messages) == (
        "<|im_start|>user\nx<|im_end|>\n"
        f"<|im_start|>assistant\n{written}\n{written}<|im_end|>\n"
        "<|im_start|>user\n<tool_response>\none\n</tool_response>\n"
        "<tool_response>\ntwo\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\ny<|im_end|>\n"
    )


def test_arguments_may_be_json_text_already():
    call = {"function": {"name": "look", "arguments": '{"at": 1}'}}
    text = render(
        [{"role": "user", "content": "x"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    )
    assert '<tool_call>{"name": "look", "arguments": {"at": 1}}</tool_call>' in text
