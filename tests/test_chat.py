"""Chat templates render as in Transformers, and a bad one is reported in a sentence."""

from __future__ import annotations

import datetime

import pytest

from edgespec.chat.template import render
from edgespec.errors import TemplateError

USER = [{"role": "user", "content": "Hi"}]
CHATML = """{%- for m in messages %}
    {{- '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}"""


def test_messages_come_out_in_order_and_the_assistant_is_next() -> None:
    messages = [{"role": "system", "content": "Be brief."}, *USER]
    wanted = (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert render(CHATML, messages) == wanted


def test_start_and_end_tokens_are_given_by_their_texts() -> None:
    assert render("{{ bos_token }}|{{ eos_token }}", USER, bos="<s>", eos="</s>") == "<s>|</s>"


def test_blocks_leave_no_whitespace_behind() -> None:
    """trim_blocks and lstrip_blocks, which templates are written for."""
    template = "{% for m in messages %}\n    {% if true %}\n{{ m.content }}\n    {% endif %}\n{% endfor %}\n"
    assert render(template, [*USER, *USER]) == "Hi\nHi\n"


def test_loops_may_be_left_and_skipped() -> None:
    template = (
        "{% for m in messages %}{% if m.content == 'b' %}{% continue %}{% endif %}"
        "{% if m.content == 'd' %}{% break %}{% endif %}{{ m.content }}{% endfor %}"
    )
    assert render(template, [{"role": "user", "content": c} for c in "abcde"]) == "ac"


def test_the_time_is_the_callers() -> None:
    now = datetime.datetime(2024, 7, 26)
    assert render("{{ strftime_now('%d %b %Y') }}", USER, now=now) == "26 Jul 2024"


def test_json_is_written_as_it_is_read() -> None:
    """No HTML escapes, no ASCII escapes (Jinja's own filter has both)."""
    tools = [{"name": "größer", "parameters": {"x": "<a & b>"}}]
    assert render("{{ tools | tojson }}", USER, tools=tools) == (
        '[{"name": "größer", "parameters": {"x": "<a & b>"}}]'
    )
    assert render("{{ tools | tojson(indent=2) }}", USER, tools=[1]) == "[\n  1\n]"


def test_json_may_be_asked_for_as_transformers_allows() -> None:
    """`separators` and `sort_keys` are arguments of its filter; some templates of tools use them."""
    template = "{{ tools[0] | tojson(separators=(',', ':'), sort_keys=true) }}"
    assert render(template, USER, tools=[{"b": 1, "a": 2}]) == '{"a":2,"b":1}'


def test_the_part_that_marks_the_assistants_own_words_is_plain_text() -> None:
    """Transformers' {% generation %} marks what to train on (SmolLM3's template has it); it shows nothing."""
    template = "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
    assert render(template, USER) == "Hi"


def test_tools_that_are_not_there_are_none() -> None:
    assert render("{% if tools is none %}no tools{% endif %}", USER) == "no tools"


def test_a_template_may_refuse_in_its_own_words() -> None:
    template = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(TemplateError, match="refuses these messages: roles must alternate"):
        render(template, USER)


def test_a_broken_template_is_reported_with_its_line() -> None:
    with pytest.raises(TemplateError, match="broken in line 2: "):
        render("fine\n{% if %}", USER)


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages[7].content }}",
        "{{ messages + 1 }}",
        "{{ 1 / 0 }}",
        "{{ nothing.of.this }}",
        "{{ strftime_now(5) }}",
        "{{ render | tojson }}{{ messages | tojson(indent=[]) }}",
        "{{ undefined_function() }}",
        "{{ [].pop() }}",
        "{% for i in range(10**12) %}x{% endfor %}",
        "{% include 'file' %}",
        "{{ 'x' | no_such_filter }}",
        "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
    ],
)
def test_a_template_that_fails_is_reported_in_a_sentence(template: str) -> None:
    with pytest.raises(TemplateError, match="the chat template "):
        render(template, USER)


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ raise_exception.__globals__.update({}) }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'content': 'x'}) }}",
        "{{ strftime_now.__self__.replace(year=1) }}",
    ],
)
def test_a_template_reaches_nothing_beyond_the_messages(template: str) -> None:
    """Templates come out of downloaded files; they run in a sandbox and change nothing."""
    messages = [dict(USER[0])]
    with pytest.raises(TemplateError, match="refuses"):
        render(template, messages)
    assert messages == USER


@pytest.mark.parametrize("name", ["raise_exception.__globals__", "strftime_now.__self__", "''.__class__"])
def test_what_lies_behind_a_value_is_not_shown(name: str) -> None:
    assert render("[{{ " + name + " }}]", USER) == "[]"
