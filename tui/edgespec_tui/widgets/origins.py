"""Who produced which part of a text: runs of characters, and finding them again in rendered Markdown.

Rendering Markdown drops its signs (`**`, `- `, backticks) and keeps the rest in order. So a rendered text is
found in its source by walking both at once: matching characters go together, source characters between
them are signs. If rendering wrote something else (an entity, a bullet), that character has no origin.
"""

from collections.abc import Iterable, Sequence

from edgespec_tui.sessions.conversation import Runs

SIGNS = 80  # source characters that may be skipped to find the next rendered one (a link's address is long)


def join(runs: list[tuple[str, int]], source: str, n: int) -> None:
    """Adds `n` characters of `source` at the end of `runs`, in place."""
    if n <= 0:
        return
    if runs and runs[-1][0] == source:
        runs[-1] = (source, runs[-1][1] + n)
    else:
        runs.append((source, n))


def part(runs: Runs | Iterable[tuple[str, int]], start: int, end: int) -> list[tuple[str, int]]:
    """Returns the runs of the characters from `start` to `end`."""
    found: list[tuple[str, int]] = []
    at = 0
    for source, n in runs:
        low, high = max(at, start), min(at + n, end)
        if low < high:
            join(found, source, high - low)
        at += n
        if at >= end:
            break
    return found


def spans(
    rendered: str, source: str, origins: Sequence[str], start: int = 0
) -> tuple[list[tuple[int, int, str]], int]:
    """Returns (begin, end, origin) over the rendered text, and where in the source it ended.

    origins: one for each character of `source`. start: where in the source the search begins.
    """
    found: list[tuple[int, int, str]] = []
    at = start
    for i, character in enumerate(rendered):
        match = source.find(character, at, at + SIGNS)
        if match < 0:
            continue
        at = match + 1
        origin = origins[match] if match < len(origins) else ""
        if found and found[-1][2] == origin and found[-1][1] == i:
            found[-1] = (found[-1][0], i + 1, origin)
        else:
            found.append((i, i + 1, origin))
    return found, at
