"""Calls with arguments between tags, each as its own text: the tool's schema says which are strings and
which are numbers.
"""

from dataclasses import dataclass

from edgespec.chat.families.argument_schema import TYPES, ArgumentSchema
from edgespec.chat.families.call_form import (
    NoForm,
    Rules,
    Tools,
    arguments,
    is_any,
    is_text,
    lengths_of,
    literal,
    ways_of,
)
from edgespec.chat.families.calls import Calls
from edgespec.chat.families.json_text import DEEPEST, as_json, is_json, value_of
from edgespec.chat.families.python_values import python_value
from edgespec.chat.families.reader import NotACall, Reader, Steps

GAP = r"/\n?/"  # a line end, or none
PYTHONS = {"True": True, "False": False, "None": None}
NOTHING = ("null", "None")


@dataclass(frozen=True, slots=True)
class TaggedCall:
    """A name and arguments between tags."""

    # what ends the name (`key` and `ends` too, if nothing else is there)
    name_ends: tuple[str, ...]
    key: str  # what opens an argument, with its name up to key_ends
    key_ends: str
    value_ends: str
    ends: tuple[str, ...]
    value: str = ""  # what then opens its value, "" if nothing comes between
    lines: bool = False  # the value is on lines of its own, whose ends are no part of it
    # what separates the name from a word that says whether the value is a string ("true", "string")
    attribute: str = ""
    around: tuple[str, str] | None = None  # what may surround a value
    head_ends: str = ""  # what ends the opening tag, if more than the name is in it

    def form(self, rules: Rules, tag: str, tools: Tools) -> str:
        """Returns the form of a call behind a tag; arguments without a form are any texts."""
        calls = []
        for tool, schema in tools.items():
            root = ArgumentSchema(schema, schema)
            try:
                parts = [(self._argument(rules, name, of), must) for name, of, must in arguments(root)]
            except NoForm:
                key = rules.string(
                    ArgumentSchema({"minLength": 1}, None), self.key_ends, self.key, *self.ends
                )
                value = rules.string(ArgumentSchema({}, None), self.value_ends, *self.ends)
                loose = f"{literal(self.key)} {key} {literal(self.value)} {value}"
                parts = [(f"({loose} {GAP})*", True)]
            head = tool + (self.name_ends[0] if not self.head_ends else '"')
            more = f"/[^<]{{0,24}}/ {literal(self.head_ends)}" if self.head_ends else ""
            line = literal("\n") if self.lines else ""
            calls.append(f"{literal(head)} {more} {line} {rules.in_order(parts)} {literal(self.ends[0])}")
        return f"{literal(tag)} ({' | '.join(calls)})"

    def _argument(self, rules: Rules, name: str, schema: ArgumentSchema) -> str:
        """Returns the form of an argument. Raises NoForm."""
        text, line = is_text(schema), "\n" if self.lines else ""
        word = ""
        if self.attribute:
            quote = '"' if not self.key_ends.startswith('"') else ""
            words = (
                ("true", "false") if self.attribute.strip('" =').endswith("string") else ("string", "object")
            )
            word = self.attribute + words[not text] + quote
        head = literal(self.key + name + word + self.key_ends + self.value + line)
        end = line + self.value_ends
        if not text:
            value = f"{rules.json(schema.here, schema.root)} {literal(end)}"
        elif is_any(schema) and self.attribute:  # the word says that it is a string
            value = rules.string(schema, end, self.value_ends)
        else:
            value = rules.string(schema, end, *((self.value_ends,) if line else ()))
        gap = literal("\n") if self.lines else GAP
        return f"{head} {value} {gap}"

    def read(self, reader: Reader, calls: Calls) -> Steps[None]:
        """Reads one call. Raises NotACall if there is no name, or neither an argument nor an end."""
        name, tag = yield from reader.text_until(self.name_ends)
        name = name.strip()
        calls.check(name)
        if self.head_ends:
            yield from reader.text_until((self.head_ends,))
        schema, marks, opening = calls.schema(name), (self.key, *self.ends), "{"
        while True:
            if tag not in marks and opening == "{":
                tag = yield from reader.starts_with(marks, spaced=True)
            elif tag not in marks:
                tag = yield from reader.until(marks)
            if tag != self.key:
                break
            key, found = yield from reader.text_until((self.key_ends,))
            key, _, marked = key.partition(self.attribute) if self.attribute else (key, "", "")
            if found is None:
                break
            if opening == "{":
                yield calls.begin(name)
            yield calls.arguments(f"{opening}{as_json(key.strip())}: ")
            if self.value:
                yield from reader.until((self.value,))
            if not (yield from self._value(reader, calls, schema.named(key.strip()), marked)):
                return
            opening, tag = ", ", None
        if tag in self.ends:
            if opening == "{":
                yield calls.begin(name)
            yield calls.arguments("{}" if opening == "{" else "}")
        elif opening == "{":
            raise NotACall
        elif tag is None and not reader.cut:
            yield from calls.closed()

    def _value(self, reader: Reader, calls: Calls, schema: ArgumentSchema, marked: str) -> Steps[bool]:
        """Reads a value up to its end; False if the text ends first.

        marked: whether it is text, as the tag says.
        """
        ends = (f"\n{self.value_ends}", self.value_ends) if self.lines else (self.value_ends,)
        if self.lines:
            yield from reader.starts_with(("\n",))
        if self.around and (yield from reader.starts_with((self.around[0],))):
            ends = (self.around[1] + self.value_ends, self.value_ends)
        if marked.startswith(("true", "string")) if marked else _is_text(schema):
            yield calls.arguments('"')
            end = yield from reader.until(ends, lambda text: calls.arguments(as_json(text)[1:-1]))
            if end is None:
                return False
            yield calls.arguments('"')
            return True
        text, end = yield from reader.text_until(ends)
        if end is None:
            return False
        yield calls.arguments(_json_of(text, schema, by_looks=bool(marked)))
        return True


def _json_of(text: str, schema: ArgumentSchema, *, by_looks: bool) -> str:
    """Returns an argument's text as JSON; a number larger than Python's as it was written."""
    if "string" not in schema.kinds() and is_json(text):
        try:
            return as_json(value_of(text))
        except ValueError:
            return text.strip()
    try:
        return as_json(_by_looks(text) if by_looks else typed(text, schema))
    except ValueError:
        return as_json(text)


def _is_text(schema: ArgumentSchema) -> bool:
    """Returns whether any text is a string, whatever it looks like."""
    return schema.kinds() == {"string"}


def typed(text: str, schema: ArgumentSchema) -> object:
    """Returns the value that an argument's text stands for, by its schema.

    What may be a string is one, even if it looks like a number, as in llama.cpp: only that loses nothing.
    Where a schema lists values, or allows null, those come first; where it allows all, the looks decide.
    """
    kinds = schema.kinds()
    if kinds == TYPES or "string" not in kinds:
        return _by_looks(text)
    looks, listed = _by_looks(text), schema.values()
    if "null" in kinds and text.strip() in NOTHING:
        return None
    return looks if text not in listed and any(looks == one for one in listed) else text


def _by_looks(text: str) -> object:
    """Returns the value of a text that is JSON, or Python's spelling of it; or else the text."""
    bare = text.strip()
    if bare in PYTHONS:
        return PYTHONS[bare]
    try:
        return value_of(bare)
    except ValueError:
        pass
    try:
        return python_value(bare) if bare.startswith(("{", "[")) else text
    except ValueError:
        return text


DEEPEST_FORM = 8  # levels of elements within elements
ITEM = "item"  # the name of the elements of a list


@dataclass(frozen=True, slots=True)
class NestedCall:
    """A call whose arguments are elements within elements (MiniMax-M3). mark: comes before every tag.

    ]<]minimax[>[<invoke name="f">]<]minimax[>[<list>]<]minimax[>[<item>1]<]minimax[>[</item>...
    """

    mark: str

    def form(self, rules: Rules, tag: str, tools: Tools) -> str:
        """Returns the form of a call behind a tag; arguments without a form are any text."""
        calls, end = [], f"{self.mark}</invoke>"
        for tool, schema in tools.items():
            try:
                rest = f"{self._elements(rules, ArgumentSchema(schema, schema), 0)} {literal(end)}"
            except NoForm:
                rest = rules.string(ArgumentSchema({}, None), end)
            calls.append(f"{literal(tool + chr(34) + '>')} {rest}")
        return f"{literal(tag)} ({' | '.join(calls)})"

    def _elements(self, rules: Rules, schema: ArgumentSchema, depth: int) -> str:
        found = arguments(schema)
        return rules.in_order([(self._element(rules, name, of, depth), must) for name, of, must in found])

    def _element(self, rules: Rules, name: str, schema: ArgumentSchema, depth: int) -> str:
        """Returns the form of an element. Raises NoForm."""
        head, end = literal(f"{self.mark}<{name}>"), f"{self.mark}</{name}>"
        if is_text(schema):
            return f"{head} {rules.string(schema, end, self.mark)}"
        return f"{head} ({self._inside_of(rules, schema, depth)}) {literal(end)}"

    def _inside_of(self, rules: Rules, schema: ArgumentSchema, depth: int) -> str:
        """Returns the form of what is in an element that is no text. Raises NoForm."""
        kinds = schema.kinds()
        if depth > DEEPEST_FORM or "string" in kinds:
            raise NoForm
        if kinds == {"array"}:
            least, most = lengths_of(schema, "Items")
            item = self._element(rules, ITEM, schema.item(), depth + 1)
            return f"({item}){{{least},{'' if most is None else most}}}"
        if kinds == {"object"}:
            return self._elements(rules, schema, depth + 1) or '""'
        if kinds & {"array", "object"}:
            return " | ".join(self._inside_of(rules, way, depth + 1) for way in ways_of(schema))
        return rules.json(schema.here, schema.root)

    def read(self, reader: Reader, calls: Calls) -> Steps[None]:
        """Reads one call. Raises NotACall if there is no name, or neither an argument nor an end."""
        name, _ = yield from reader.text_until(('">',))
        calls.check(name)
        schema, opening = calls.schema(name), "{"
        while tag := (yield from self._inside(reader))[1]:
            if tag.startswith("/"):
                if opening == "{":
                    yield calls.begin(name)
                yield calls.arguments("{}" if opening == "{" else "}")
                return
            text, inner = yield from self._inside(reader)
            if inner is None:
                break
            value = yield from self._value(reader, schema.named(tag), text, inner, 0)
            if opening == "{":
                yield calls.begin(name)
            yield calls.arguments(f"{opening}{as_json(tag)}: {as_json(value)}")
            opening = ", "
        if opening == "{":
            raise NotACall
        if tag is None and not reader.cut:
            yield from calls.closed()

    def _inside(self, reader: Reader) -> Steps[tuple[str, str | None]]:
        """Reads past the next tag; returns the text before it, and its content."""
        text, found = yield from reader.text_until((f"{self.mark}<",))
        if found is None:
            return text, None
        tag, found = yield from reader.text_until((">",))
        return text, tag if found else None

    def _value(
        self, reader: Reader, schema: ArgumentSchema, text: str, tag: str | None, depth: int
    ) -> Steps[object]:
        """Reads a value up to the end of its element. text, tag: its beginning. Raises NotACall."""
        if depth > DEEPEST:
            raise NotACall
        if tag is None or tag.startswith("/"):
            return _leaf(text, schema)
        fields, items = {}, []
        while tag and not tag.startswith("/"):
            within = schema.item() if tag == ITEM and not schema.has(ITEM) else schema.named(tag)
            text, inner = yield from self._inside(reader)
            value = yield from self._value(reader, within, text, inner, depth + 1)
            fields[tag] = value
            items.append(value)
            _, tag = yield from self._inside(reader)
        return items if set(fields) == {ITEM} and not schema.has(ITEM) else fields


def _leaf(text: str, schema: ArgumentSchema) -> object:
    """Returns the value of an element without others in it."""
    kinds = schema.kinds()
    if not text.strip() and "string" not in kinds:
        return [] if "array" in kinds else {} if "object" in kinds else text
    return typed(text, schema)
