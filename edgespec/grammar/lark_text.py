"""Writes grammars of every kind in llguidance's format."""

import json
import re
from typing import Any

import llguidance

from edgespec.errors import GrammarError
from edgespec.grammar.grammar import TOOL_ID, Grammar
from edgespec.grammar.lark import as_lark

EXACT = '%llguidance {"no_forcing": true}\n'
WHITESPACE = r"[ ]|\n[ \t]{0,20}"  # one space, or a new line with its indent: a small model cannot get lost
DEFINED = re.compile(r"^\s*[\w-]+\s*::=", re.MULTILINE)  # a rule of GBNF
DEFINED_IN_LARK = re.compile(r"^[?!]?_?[a-z]\w*(\[[^\]\n]*\])?\s*:", re.MULTILINE | re.IGNORECASE)
SCHEMA = re.compile(r"^(\w+: %json )(.*)$", re.MULTILINE)  # a rule of a Lark grammar that is a JSON schema
LOOSENED = "// loosened: "  # begins a line that says which schema is not enforced
OPTIONS = re.compile(r"%llguidance\s*\{[^}]*\}")  # of a Lark grammar's own; ours come first


def lark_of(grammar: Grammar) -> str:
    """Returns a grammar in llguidance's format. Reasoning may come before what it describes.

    Raises GrammarError for GBNF that is wrong.
    """
    body = _body(grammar)
    if not grammar.behind:
        return EXACT + body
    thought = f"thought[lazy]: /(.|\\n)*{_in_regex(grammar.behind)}/\nTHOUGHT_WS: /[ \\n]{{1,4}}/\n"
    lead = "thought THOUGHT_WS?"
    if grammar.opening:
        lead = f"({json.dumps(grammar.opening)} {lead})?"
    return f"{EXACT}start: {lead} the_text\n{thought}the_text: %lark {{\n{body}\n}}\n"


def _body(grammar: Grammar) -> str:
    if grammar.kind == "json_schema":
        return f"start: %json {_schema(grammar.text, grammar)}\n"
    if grammar.kind == "regex":
        return f"start: /{llguidance.regex_to_lark(_unanchored(grammar.text), 'd')}/\n"
    lark = OPTIONS.sub("", grammar.text)
    if grammar.kind == "lark":
        return _lenient(lark, grammar) if grammar.lenient else lark
    try:
        return as_lark(grammar.text)
    except GrammarError:
        if DEFINED.search(grammar.text) or not DEFINED_IN_LARK.search(lark):
            raise
        return lark


def _lenient(lark: str, grammar: Grammar) -> str:
    """Returns the form of calls, without the schemas that nothing fits: only their arguments are any."""
    unfit: list[str] = []

    def loosened(found: re.Match[str]) -> str:
        schema = _loosened(json.loads(found[2]), unfit)
        if TOOL_ID not in found[2] and (why := _complaint(schema)):  # one argument's, in a tagged notation
            unfit.append(why)
            schema = {}
        return found[1] + _schema(json.dumps(schema), grammar)

    body = SCHEMA.sub(loosened, lark)
    return "\n".join([body, *(LOOSENED + why for why in dict.fromkeys(unfit))])


def _loosened(schema: Any, unfit: list[str]) -> Any:
    """Returns a schema in which arguments that no values fit are any object; adds why none do."""
    if isinstance(schema, list):
        return [_loosened(one, unfit) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if str(schema.get("$id")).startswith(TOOL_ID):
        why = _complaint(schema)
        unfit += [why] if why else []
        return {"type": "object"} if why else schema
    return {name: _loosened(value, unfit) for name, value in schema.items()}


def _complaint(schema: Any) -> str:
    """Returns why no value fits a schema, "" if some do."""
    lenient = _without_unreadable({**schema, "x-guidance": {"lenient": True}} if schema else schema)
    found = llguidance.LLMatcher.validate_grammar(f"start: %json {json.dumps(lenient)}")
    return str(found).partition("\n")[0].rpartition("JSON schema: ")[2]


def _schema(text: str, grammar: Grammar) -> str:
    """Returns a JSON schema with our way to read it."""
    schema = json.loads(text)
    if isinstance(schema, bool):
        schema = {} if schema else {"not": {}}
    own = schema.get("x-guidance")
    own = own if isinstance(own, dict) else {}
    flexible = own.get("whitespace_flexible") is not False
    options = {"lenient": grammar.lenient} | ({"whitespace_pattern": WHITESPACE} if flexible else {})
    if grammar.lenient:
        schema = _without_unreadable(schema)
    schema["x-guidance"] = {**options, **own}
    return json.dumps(schema)


def _without_unreadable(schema: Any) -> Any:
    """Returns a schema without patterns that cannot be enforced (look-around, references back)."""
    if isinstance(schema, list):
        return [_without_unreadable(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {}
    for name, value in schema.items():
        if name == "patternProperties" and isinstance(value, dict):
            value = {key: one for key, one in value.items() if _is_readable(key)}
        if name != "pattern" or not isinstance(value, str) or _is_readable(value):
            kept[name] = _without_unreadable(value)
    return kept


def _is_readable(pattern: str) -> bool:
    grammar = f"start: %json {json.dumps({'type': 'string', 'pattern': pattern})}"
    return not llguidance.LLMatcher.validate_grammar(grammar)


def _in_regex(text: str) -> str:
    """Returns a regular expression of one text, fit to be put between slashes."""
    return "".join(c if c.isalnum() else f"\\u{{{ord(c):x}}}" for c in text)


def _unanchored(regex: str) -> str:
    """Returns a regular expression without ^ and $ at its ends: the whole text has to match anyway."""
    regex = regex.removeprefix("^")
    backslashes = len(regex[:-1]) - len(regex[:-1].rstrip("\\"))
    return regex[:-1] if regex.endswith("$") and backslashes % 2 == 0 else regex
