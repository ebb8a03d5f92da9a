"""Render conversations: the pair's chat template, in Jinja as GGUF carries it.

The form is ChatML. Tools are listed in the system turn, calls and answers travel inside the
`<tool_call>` and `<tool_response>` words. Training text is made by this very template, so what a client
renders from the file is what the pair has seen.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from edgespec.chat.sandbox import rendered

SOURCE = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- 'You can call these tools:\\n' }}
    {%- for tool in tools %}
        {{- (tool.function if tool.function is defined else tool) | tojson + '\\n' }}
    {%- endfor %}
    {{- 'To call one, write <tool_call>{"name": ..., "arguments": {...}}</tool_call>.<|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'system' and loop.first %}
    {%- elif message.role == 'tool' %}
        {%- if loop.index0 == 0 or messages[loop.index0 - 1].role != 'tool' %}
            {{- '<|im_start|>user\\n' }}
        {%- else %}
            {{- '\\n' }}
        {%- endif %}
        {{- '<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' }}
        {%- if message.content %}
            {{- message.content }}
        {%- endif %}
        {%- if message.tool_calls %}
            {%- for call in message.tool_calls %}
                {%- set function = call.function if call.function is defined else call %}
                {%- if message.content or not loop.first %}
                    {{- '\\n' }}
                {%- endif %}
                {{- '<tool_call>{"name": ' + function.name | tojson + ', "arguments": ' }}
                {%- if function.arguments is string %}
                    {{- function.arguments }}
                {%- else %}
                    {{- function.arguments | tojson }}
                {%- endif %}
                {{- '}</tool_call>' }}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""


def render(
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] = (),
    add_generation_prompt: bool = False,
) -> str:
    """Return the text of a conversation, ready to be tokenised with special text parsed."""
    values = {"messages": messages, "tools": tools, "add_generation_prompt": add_generation_prompt}
    return rendered(SOURCE, values, None)
