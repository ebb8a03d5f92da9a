"""Families whose messages name their channel or recipient: gpt-oss (OpenAI's harmony format), and Muse.

<|channel|>analysis<|message|>thoughts<|end|><|start|>assistant<|channel|>final<|message|>words
<|start|>assistant<|channel|>commentary to=functions.name <|constrain|>json<|message|>{...}<|call|>

to=self<|message|>thoughts<|eom|><|start|>assistant to=user<|message|>words<|eot|>
to=name<|message|><atem:function_calls><atem:invoke name="name">...</atem:invoke></atem:function_calls><|eot|>
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from edgespec.chat.families.call_form import Rules, Tools, literal, of_arguments
from edgespec.chat.families.calls import Calls
from edgespec.chat.families.deltas import Content, Reasoning
from edgespec.chat.families.reader import NotACall, Reader, Say, Steps
from edgespec.chat.families.tagged_calls import TaggedCall

START, MESSAGE = "<|start|>", "<|message|>"
HARMONY_TAGS = ("<|channel|>", MESSAGE, "<|end|>", START, "<|call|>", "<|return|>", "<|constrain|>")
HARMONY_CALLS = tuple(
    f"{head} to=functions." for head in ("<|channel|>commentary", "<|channel|>analysis", "<|start|>assistant")
)
HARMONY_HEADS = (START, "<|channel|>", "to=", "assistant to=", "assistant<|channel|>")
HARMONY_ENDS = ("<|end|>", "<|call|>", "<|return|>", START)
MUSE_ENDS = ("<|eom|>", "<|eot|>")
MUSE_TAGS = (START, MESSAGE, *MUSE_ENDS)
MUSE_HEADS = (START, "assistant to=", "to=")


def harmony(reader: Reader, calls: Calls) -> Steps[None]:
    """Reads a turn of gpt-oss."""
    while (yield from reader.skip_space()):
        head = yield from _head(reader, HARMONY_HEADS)
        if head == "":
            return
        to = re.search(r"to=(?:functions\.)?([^\s<]+)", head or "")
        say: Say = Reasoning if re.search(r"<\|channel\|>\s*analysis\b", head or "") else Content
        if to and to[1] in calls.tools and (yield from reader.skip_space()):  # else it is cut
            yield from reader.attempt(_harmony_call(reader, calls, to[1]), say, head or "")
            continue
        yield from reader.until(HARMONY_ENDS, say, trim=True)


def _harmony_call(reader: Reader, calls: Calls, name: str) -> Steps[None]:
    """Reads the arguments of a call. Raises NotACall."""
    if calls.governed:
        yield calls.begin(name)
        if (yield from reader.starts_with(HARMONY_ENDS)):
            yield calls.arguments("{}")
        else:
            yield from reader.until(HARMONY_ENDS, calls.arguments, trim=True)
        return
    text, end = yield from reader.text_until(HARMONY_ENDS)
    if end is None and reader.cut:
        raise NotACall
    whole = calls.whole(name, text.strip() or "{}", bounded=end is not None)
    yield calls.begin(name)
    yield calls.arguments(whole)


def harmony_form(rules: Rules, tag: str, tools: Tools) -> str:
    """Returns the form of a call of gpt-oss, whose end the model says with a token that ends the turn."""
    calls = (
        f"{literal(tool)} head {rules.json(of_arguments(schema, i))}"
        for i, (tool, schema) in enumerate(tools.items())
    )
    expression = f"{literal(tag)} ({' | '.join(calls)})"
    forms = " | ".join(map(literal, (" <|constrain|>json", "<|constrain|>json", " json", "")))
    head = rules.rule(f"({literal('<|channel|>')} /commentary|analysis/)? ({forms}) {literal(MESSAGE)}")
    return expression.replace(" head ", f" {head} ")


@dataclass(frozen=True, slots=True)
class Muse:
    """Reads turns of Muse: a message to oneself is reasoning."""

    opening: str
    call: TaggedCall  # what follows `opening`
    passed_over: tuple[str, ...]  # tags around calls

    def __call__(self, reader: Reader, calls: Calls) -> Steps[None]:
        """Reads a turn."""
        while (yield from reader.skip_space()):
            head = yield from _head(reader, MUSE_HEADS)
            if head == "":
                return
            say: Say = Reasoning if re.search(r"to=self\b", head or "") else Content
            yield from self._message(reader, calls, say)

    def _message(self, reader: Reader, calls: Calls, say: Say) -> Steps[None]:
        within = (self.opening, *self.passed_over) if calls.tools else ()
        while True:
            tag = yield from reader.until((*MUSE_ENDS, START, *within), say, trim=True, leave=(START,))
            if tag is None or tag in (START, *MUSE_ENDS):
                return
            if tag == self.opening:
                yield from reader.attempt(self.call.read(reader, calls), say, reader.trimmed + tag)


def _head(reader: Reader, heads: Sequence[str]) -> Steps[str | None]:
    """Reads the head of a message; None if there is none (text without control tokens), "" if it is cut."""
    begun = yield from reader.starts_with(heads)
    if begun is None:
        return None
    text, end = yield from reader.text_until((MESSAGE,))
    return begun + text if end else ""
