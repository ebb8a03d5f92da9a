"""Grammars tried in child processes first, where one that never ends can be stopped.

A thread cannot be stopped, a process can: so a client's grammar is read, and compiled for a
vocabulary of bytes, in a child with limits on processor time and memory (`trial_child.py`). It returns
the grammar in llguidance's format; compiling it again takes no longer than it took there. Children are
started when needed, a few at most, and kept: a slow grammar does not delay others. One whose sender has left
(`GIVEN_UP`) ends at once: else a few of them would take all children.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence

from edgespec.errors import GrammarError
from edgespec.grammar.grammar import NAMES, Grammar
from edgespec.system.closing import Closing
from edgespec.system.limited_child import REFUSED, TEXT, Limits
from edgespec.system.limited_children import LimitedChildren

CPU_S = 5.0  # for one grammar
PATIENCE_S = 60.0  # of the clock, on a machine that is busy with other things
MEMORY = 2**31  # bytes
LONGEST = 2**26  # bytes of a grammar in llguidance's format
CHILDREN = 4


class Trials(Closing):
    """The children of one vocabulary. Thread-safe; close it, or use it in a `with`."""

    def __init__(
        self,
        controls: Callable[[], Sequence[bytes]] = tuple,
        *,
        cpu_s: float = CPU_S,
        patience_s: float = PATIENCE_S,
        children: int = CHILDREN,
    ) -> None:
        """controls: the control tokens that a grammar may name, as `matchers.CONTROL` and their names.

        cpu_s, patience_s: limits for one grammar, of the processor and of the clock.
        """
        self._controls, self._limits = controls, Limits(cpu_s, patience_s, MEMORY, text=LONGEST)
        self.children = LimitedChildren("edgespec.engine.trial_child", most=children)

    def close(self) -> None:
        """Ends the children."""
        self.children.close()

    def lark(self, grammar: Grammar) -> str:
        """Returns a grammar in llguidance's format.

        Raises GrammarError if it is wrong, or takes too much, and GivenUpError.
        """
        kind, text = self.children.answer(pickle.dumps((tuple(self._controls()), grammar)), self._limits)
        if kind == TEXT:
            return text
        if kind == REFUSED:
            raise GrammarError(text)
        raise GrammarError(
            f"the {NAMES[grammar.kind]} cannot be used: to read it takes more than {self._limits.cpu_s:g} "
            "s, or more memory than it may have; make it smaller or simpler"
        )
