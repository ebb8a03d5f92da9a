"""Reasoning separated from the answer, as text streams in: `<think>` ... `</think>` at its beginning.

Only there: an answer that mentions the tag keeps it. A tag may arrive in pieces, so what could still
become one is held back.
"""

from __future__ import annotations

from dataclasses import dataclass

OPEN, CLOSE = "<think>", "</think>"


@dataclass(slots=True)
class ReasoningSplitter:
    """Takes pieces of a stream; gives (reasoning, answer) of each, as far as it is certain."""

    _state: str = "begin"  # begin -> thinking -> gap (white space after it) -> answer
    _held: str = ""
    _thought: bool = False  # more than the line breaks after the tag

    @classmethod
    def behind_thoughts(cls) -> ReasoningSplitter:
        """Returns one for an answer that has begun: there is no more reasoning at its beginning."""
        return cls(_state="answer")

    def feed(self, piece: str) -> tuple[str, str]:
        """Returns what is certain by now: text of the reasoning, text of the answer."""
        text, self._held = self._held + piece, ""
        reasoning = ""
        if self._state == "begin":
            stripped = text.lstrip()
            if OPEN.startswith(stripped[: len(OPEN)]) and len(stripped) < len(OPEN):
                self._held = text
                return "", ""
            self._state = "answer"
            if stripped.startswith(OPEN):
                self._state, text = "thinking", stripped[len(OPEN) :]
        if self._state == "thinking":
            text = text if self._thought else text.lstrip("\n")
            self._thought = self._thought or bool(text)
            reasoning, closed, text = text.partition(CLOSE)
            if not closed:
                keep = _partial_end(reasoning, CLOSE)
                self._held = reasoning[len(reasoning) - keep :]
                return reasoning[: len(reasoning) - keep], ""
            self._state = "gap"
        if self._state == "gap":
            text = text.lstrip()
            if text:
                self._state = "answer"
        return reasoning, text

    def end(self) -> tuple[str, str]:
        """Returns what was held back, once nothing more comes."""
        held, self._held = self._held, ""
        return (held, "") if self._state == "thinking" else ("", held)

    @property
    def thinking(self) -> bool:
        return self._state == "thinking"


def _partial_end(text: str, tag: str) -> int:
    """Returns how many characters at the end of `text` may be the beginning of `tag`."""
    return next((n for n in range(len(tag) - 1, 0, -1) if text.endswith(tag[:n])), 0)
