"""The child process that tries grammars: converts one to llguidance's format and compiles it."""

from functools import lru_cache

import llguidance

from edgespec.errors import GrammarError
from edgespec.grammar.grammar import NAMES, Grammar
from edgespec.grammar.lark_text import lark_of
from edgespec.grammar.matchers import matcher_for, tokenizer_of
from edgespec.system.limited_child import answer_within


@lru_cache(maxsize=1)
def vocabulary(controls: tuple[bytes, ...]) -> llguidance.LLTokenizer:
    """Returns a vocabulary of bytes and control tokens."""
    bytes_ = [bytes([i]) for i in range(255)]  # 255 marks control tokens, and is in no text
    return tokenizer_of([*bytes_, *controls, b""], frozenset({255 + len(controls)}))


def answer(asked: tuple[tuple[bytes, ...], Grammar]) -> str:
    """Returns a grammar in llguidance's format. Raises GrammarError."""
    controls, grammar = asked
    try:
        lark = lark_of(grammar)
    except RecursionError:
        raise GrammarError(
            f"the {NAMES[grammar.kind]} cannot be used: it is nested too deeply; make it flatter"
        ) from None
    matcher_for(vocabulary(controls), lark)  # with the real vocabulary, this reports what is wrong with it
    return lark


if __name__ == "__main__":
    answer_within(answer, GrammarError)
