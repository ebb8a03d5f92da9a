"""gpt-oss: every message names its channel and recipient (OpenAI's harmony format).

<|channel|>analysis<|message|>thoughts<|end|><|start|>assistant<|channel|>final<|message|>words
<|start|>assistant<|channel|>commentary to=functions.name <|constrain|>json<|message|>{...}<|call|>
"""

import re

from edgespec.chat.families.deltas import Calls, Content, Reasoning
from edgespec.chat.families.reader import Reader, Say, Steps

TAGS = ("<|channel|>", "<|message|>", "<|end|>", "<|start|>", "<|call|>", "<|return|>", "<|constrain|>")
HEADS = ("<|start|>", "<|channel|>", "to=", "assistant to=", "assistant<|channel|>")
ENDS = ("<|end|>", "<|call|>", "<|return|>", "<|start|>")


def harmony(reader: Reader, calls: Calls, opened: bool) -> Steps[None]:
    """Reads a turn of gpt-oss. opened: unused, its prompt never ends within the reasoning."""
    del opened
    while (yield from reader.skip_space()):
        head = yield from _head(reader)
        if head is None:
            yield from reader.until(ENDS, Content, trim=True)
            continue
        if not head:
            return
        to = re.search(r"to=(?:functions\.)?([^\s<]+)", head)
        channel = re.search(r"<\|channel\|>\s*(\w+)", head)
        if to:
            yield calls.begin(to[1])
            yield from reader.until(ENDS, calls.arguments, trim=True)
        else:
            say: Say = Reasoning if channel and channel[1] == "analysis" else Content
            yield from reader.until(ENDS, say, trim=True)


def _head(reader: Reader) -> Steps[str | None]:
    """Reads the head of a message; None if there is none, as in text without control tokens."""
    begun = yield from reader.starts_with(HEADS)
    if begun is None:
        return None
    text, end = yield from reader.text_until(("<|message|>",))
    return begun + text if end else ""
