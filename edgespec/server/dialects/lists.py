"""Lists in requests: validation ends at the first wrong item.

Otherwise one error is built for each: a list of a million zeros made a server deaf for 20 seconds.
"""

from collections.abc import Mapping
from typing import Annotated, TypeVar

from pydantic import BeforeValidator, Field, StrictStr

_T = TypeVar("_T")
MOST_BIASES = 2**15  # tokens; all their values are validated, wrong or not

Listed = Annotated[list[_T], Field(fail_fast=True)]


def _few(given: object) -> object:
    """Raises ValueError for a mapping of too many items."""
    if isinstance(given, Mapping) and len(given) > MOST_BIASES:
        raise ValueError(f"it has {len(given):,} entries, and {MOST_BIASES:,} are allowed")
    return given


Biases = Annotated[dict[StrictStr, _T], BeforeValidator(_few)]
