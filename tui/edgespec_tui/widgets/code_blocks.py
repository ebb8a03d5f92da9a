"""Code in an answer, found in its text and not on the screen, which may show only a part of it."""

from collections.abc import Sequence

from edgespec_tui.widgets.markdown_blocks import MARKDOWN


def code_blocks(text: str) -> list[str]:
    """Returns the fenced and indented code of a Markdown text, in order; an unclosed block counts too."""
    tokens = MARKDOWN.parse(text)
    return [token.content.rstrip("\n") for token in tokens if token.type in ("fence", "code_block")]


def whole_block(text: str, part: str) -> str:
    """Returns the code block of a text that contains this part of it; the part if none does."""
    return next((block for block in code_blocks(text) if part in block), part)


def last_code(answers: Sequence[str]) -> str | None:
    """Returns the newest code block of the answers, oldest first; None if there is none."""
    return next((blocks[-1] for text in reversed(answers) if (blocks := code_blocks(text))), None)
