"""The last requests of a running server: where their prompts' tokens were, and what broke a prefix."""

import time
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from edgespec.client.chunk import mapped, whole
from edgespec.client.stream import read_again
from edgespec.commands.table import table
from edgespec.core.values import Origin

ORIGINS: tuple[Origin, ...] = get_args(Origin)
HEAD = ("ended", "model", "prompt", "evaluated", "again", *ORIGINS)


def lines(where: str, requests: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns a table of them, and a sentence for each whose tokens were evaluated again."""
    if not requests:
        return [f"{where} has answered no request with this key yet."]
    title = f"{where}: tokens of the last {len(requests)} prompts, by where they were"
    whys = [(_when(one), read_again(mapped(one, "evaluated_again"))) for one in requests]
    reasons = [f"{ended}  {why}" for ended, why in whys if why]
    none = "No prompt was evaluated again that an earlier one had."
    return [title, "", *table([HEAD, *map(_row, requests)]), "", *(reasons or [none])]


def _when(one: Mapping[str, Any]) -> str:
    ended = whole(one, "ended")
    return "" if ended is None else time.strftime("%H:%M:%S", time.localtime(ended))


def _row(one: Mapping[str, Any]) -> tuple[str, ...]:
    again, cached = mapped(one, "evaluated_again"), mapped(one, "cached_from")
    counts = [whole(one, "prompt_tokens"), whole(one, "evaluated"), whole(again, "tokens")]
    counts += [whole(cached, origin) for origin in ORIGINS]
    return _when(one), str(one.get("model", "")), *(f"{n:,}" if n else "-" for n in counts)
