"""Where a line of code continues in the next row of the screen."""

from rich.cells import cell_len


def folds(text: str, width: int) -> list[tuple[int, int, str | None]]:
    """Returns the rows of a line of code: from where to where, and what joins each to the row above.

    A row ends after a word if one ends in its right half; the space after its last column is not shown.
    """
    found: list[tuple[int, int, str | None]] = []
    start, used, word = 0, 0, 0  # word: after the last space
    joins: str | None = None
    for i, character in enumerate(text):
        size = cell_len(character)
        if used + size > width and i > start:
            at = i if character == " " else word if word - start > width // 2 else i
            found.append((start, at, joins))
            joins = " " if character == " " else ""
            start = at + len(joins)
            used = cell_len(text[start:i])
            size = 0 if character == " " else size
        used += size
        if character == " ":
            word = i + 1
    return [*found, (start, len(text), joins)]
