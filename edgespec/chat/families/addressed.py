"""Muse: every message names its recipient; a message to oneself is reasoning.

to=self<|message|>thoughts<|eom|><|start|>assistant to=user<|message|>words<|eot|>
to=name<|message|><atem:function_calls><atem:invoke name="name">...</atem:invoke></atem:function_calls><|eot|>
"""

import re
from dataclasses import dataclass

from edgespec.chat.families.deltas import Calls, Content, Reasoning
from edgespec.chat.families.reader import NotACall, Reader, Say, Steps
from edgespec.chat.families.tagged_calls import TaggedCall

START, MESSAGE, ENDS = "<|start|>", "<|message|>", ("<|eom|>", "<|eot|>")
TAGS = (START, MESSAGE, *ENDS)
HEADS = (START, "assistant to=", "to=")


@dataclass(frozen=True, slots=True)
class Addressed:
    """Reads turns of such messages."""

    opening: str
    call: TaggedCall  # what follows `opening`
    passed_over: tuple[str, ...]  # tags around calls

    def __call__(self, reader: Reader, calls: Calls, opened: bool) -> Steps[None]:
        """Reads a turn. opened: unused, its prompt never ends within the reasoning."""
        del opened
        while (yield from reader.skip_space()):
            begun = yield from reader.starts_with(HEADS)
            say: Say = Content
            if begun is not None:
                head, found = yield from reader.text_until((MESSAGE,))
                if found is None:
                    return
                say = Reasoning if re.search(r"to=self\b", begun + head) else Content
            yield from self._message(reader, calls, say)

    def _message(self, reader: Reader, calls: Calls, say: Say) -> Steps[None]:
        within = (self.opening, *self.passed_over) if calls.tools else ()
        while True:
            tag = yield from reader.until((*ENDS, START, *within), say, trim=True, leave=(START,))
            if tag is None or tag in (START, *ENDS):
                return
            if tag != self.opening:
                continue
            reader.note()
            try:
                yield from self.call.read(reader, calls)
                reader.noted()
            except NotACall:
                yield say(tag + reader.noted())
