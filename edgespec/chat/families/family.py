"""A family: the tags that its models write, and what each means."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from edgespec.chat.families.call_form import NoForm, Rules, Tools
from edgespec.chat.families.calls import Calls
from edgespec.chat.families.deltas import Content, Reasoning
from edgespec.chat.families.reader import Parser, Reader, Say, Steps

Former = Callable[[Rules, str, Tools], str]
"""Returns the form of calls that begin with a tag. Raises NoForm."""


class CallReader(Protocol):
    """Reads calls after their opening tag. Raises NotACall, before it has begun one."""

    def form(self, rules: Rules, tag: str, tools: Tools) -> str: ...

    def read(self, reader: Reader, calls: Calls) -> Steps[None]: ...


@dataclass(frozen=True, slots=True, eq=False)
class Family:
    """How models of one family write a turn."""

    name: str
    calls: Mapping[str, CallReader] = field(default_factory=dict)  # opening tag -> reader of what follows
    passed_over: tuple[str, ...] = ()  # tags without further meaning
    thoughts: tuple[tuple[str, str], ...] = ()  # (opening tag, closing tag)
    bare: CallReader | None = None  # a turn may begin with a call that no tag announces
    stops: tuple[str, ...] = ()  # text that ends a turn
    # reads a turn in its own way, instead of all these
    whole: Callable[[Reader, Calls], Steps[None]] | None = None
    final: str = ""  # what opens the answer in that way, behind the reasoning
    tags: tuple[str, ...] = ()  # others that it must see
    leading: tuple[str, ...] = ()  # what may come before the text and does not belong to it
    wraps: tuple[str, ...] = ()  # what may surround the text, with tools or without
    begins: tuple[str, ...] = ()  # how a turn begins that is a call which no tag announces; "#": its name
    forms: Mapping[str, Former] = field(default_factory=dict)  # of calls that `whole` reads: tag -> form

    def shown(self, *, tools: bool) -> tuple[str, ...]:
        """Returns the tags that must be in the text, even if they are control tokens."""
        thoughts = tuple(tag for pair in self.thoughts for tag in pair)
        if not tools and not self.whole:
            return (*thoughts, *self.wraps)
        return (*thoughts, *self.wraps, *self.calls, *self.passed_over, *self.stops, *self.tags)

    def opened(self, prompt: str) -> bool:
        """Returns whether a prompt ends within the reasoning."""
        end = prompt.rstrip()
        return any(end.endswith(opening.rstrip()) for opening, _ in self.thoughts)

    def form(self, tools: Tools) -> str:
        """Returns a grammar of the calls of these tools, each from its tag on. Raises NoForm."""
        rules = Rules()
        tagged, bare = self._ways(rules, tools)
        return rules.text([*tagged, *bare])

    def only_calls(self, tools: Tools, *, several: bool) -> str:
        """Returns a grammar of a turn that is a call of these tools, or several. Raises NoForm."""
        rules = Rules()
        tagged, bare = self._ways(rules, tools)
        later = rules.rule(" | ".join(tagged))
        first = bare[0] if bare else later  # where a tag only comes between calls
        more = several and not self.whole  # such a turn ends with a call
        return rules.text([f"{first} (/\\s*/ {later})*" if more else first])

    def _ways(self, rules: Rules, tools: Tools) -> tuple[list[str], list[str]]:
        """Returns the forms of calls that a tag announces, and of one with which a turn begins."""
        formers: dict[str, Former] = {tag: reader.form for tag, reader in self.calls.items()}
        formers |= self.forms
        if not formers or not tools:
            raise NoForm
        tagged = [form(rules, tag, tools) for tag, form in formers.items()]
        return tagged, [self.bare.form(rules, "", tools)] if self.bare else []

    @property
    def announcements(self) -> tuple[str, ...]:
        """The tags with which its calls begin."""
        return tuple(tag for tag in (*self.calls, *self.forms) if tag not in self.begins)

    def beginnings(self, tools: Tools) -> tuple[str, ...]:
        """Returns how a turn begins that is a call which no tag announces."""
        return tuple(
            text.replace("#", tool) for text in self.begins for tool in (tools if "#" in text else ("",))
        )

    def parser(
        self,
        tools: Mapping[str, Mapping[str, Any]] | None,
        *,
        opened: bool = False,
        governed: bool = True,
    ) -> Parser:
        """Returns a parser for one turn. tools: name -> schema; None or empty: nothing is called.

        governed: a grammar keeps calls to their form. Others are passed on once their arguments can be read.
        """
        calls = Calls(tools or {}, governed)
        if whole := self.whole:
            return Parser(lambda reader: whole(reader, calls))
        return Parser(lambda reader: self._turn(reader, calls, opened))

    def _turn(self, reader: Reader, calls: Calls, opened: bool) -> Steps[None]:
        closing = {opening.strip(): close for opening, close in self.thoughts}
        readers = self.calls if calls.tools else {}
        begins = (*readers, *(self.passed_over if calls.tools else ()))
        say: Say = Content
        ends = tuple(closing.values())
        if not opened:  # later, an answer that has the tag in it only speaks of it
            opening = yield from reader.starts_with(tuple(closing), spaced=True)
            ends = (closing[opening],) if opening else ()
        if ends and not (yield from self._thought(reader, ends, begins)):
            say = Reasoning
        if calls.tools and self.bare:
            yield from reader.skip_space()
            if not self.leading or not (yield from reader.starts_with(self.leading)):
                yield from reader.attempt(self.bare.read(reader, calls), Content)
        tags = (*self.wraps, *begins)
        while tag := (yield from reader.until(tags, say, trim=bool(tags))):
            if tag in readers:
                call = readers[tag].read(reader, calls)
                if not (yield from reader.attempt(call, say, reader.trimmed + tag)):
                    continue
            yield from reader.skip_space()

    def _thought(self, reader: Reader, ends: tuple[str, ...], calls: tuple[str, ...]) -> Steps[bool]:
        """Reads the reasoning; False if it was never closed, and what remains begins with the tag of a call.

        A call inside the reasoning is no call, so what begins like one is held until it is known whether the
        reasoning is closed after it.
        """
        yield from reader.skip_space()
        calls = tuple(tag for tag in calls if tag not in ends)
        tag = yield from reader.until((*ends, *calls), Reasoning, trim=True, leave=calls)
        if tag in calls:
            if not (yield from reader.comes(ends)):
                return False
            yield from reader.until(ends, Reasoning, trim=True)
        yield from reader.skip_space()
        return True
