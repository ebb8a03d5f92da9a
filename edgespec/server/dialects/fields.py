"""Kinds of fields in requests: numbers, token ids, lists, and one for each sampling setting.

Validation of a list ends at the first wrong item: otherwise one error is built for each, and a list of a
million zeros made a server deaf for 20 seconds.
"""

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, Field, StrictFloat, StrictInt, StrictStr, create_model

from edgespec.sampling.settings import NUMBERS

_T = TypeVar("_T")
_M = TypeVar("_M", bound=BaseModel)
MOST_BIASES = 2**15  # tokens; all their values are validated, wrong or not
Number = StrictFloat | StrictInt
TokenId = Annotated[StrictInt, Field(ge=0, lt=2**31)]
Listed = Annotated[list[_T], Field(fail_fast=True)]


def _few(given: object) -> object:
    """Raises ValueError for a mapping of too many items."""
    if isinstance(given, Mapping) and len(given) > MOST_BIASES:
        raise ValueError(f"it has {len(given):,} entries, and {MOST_BIASES:,} are allowed")
    return given


Biases = Annotated[dict[StrictStr, _T], BeforeValidator(_few)]


def with_numbers(model: type[_M]) -> type[_M]:
    """Adds a field for every sampling setting that is a number to a model of requests."""
    kinds: dict[str, Any] = {
        name: ((StrictInt if number.kind is int else Number) | None, None) for name, number in NUMBERS.items()
    }
    return create_model(
        model.__name__, __base__=model, __module__=model.__module__, __doc__=model.__doc__, **kinds
    )
