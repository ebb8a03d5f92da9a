"""Kinds of fields in requests: whole numbers, token ids, lists, stops, and one for each sampling setting.

Validation of a list ends at the first wrong item: otherwise one error is built for each, and a list of a
million zeros made a server deaf for 20 seconds.
"""

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    Field,
    StrictFloat,
    StrictInt,
    StrictStr,
    create_model,
    model_validator,
)

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


class Fields(BaseModel):
    """Fields of a request. A null is a field that is not given: clients send it for what they leave open."""

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, given: object) -> object:
        if not isinstance(given, dict) or None not in given.values():
            return given
        needed = {field.alias or name for name, field in cls.model_fields.items() if field.is_required()}
        return {name: value for name, value in given.items() if value is not None or name in needed}


def _whole(given: object) -> object:
    """Returns a whole number that is written as a float (20.0), as one."""
    return int(given) if isinstance(given, float) and given.is_integer() else given


def _some(given: object) -> object:
    """Returns stop strings without empty ones, which some clients send for none."""
    if isinstance(given, list):
        return [text for text in given if text != ""]
    return None if given == "" else given


Whole = Annotated[StrictInt, BeforeValidator(_whole)]
StopText = Annotated[StrictStr, Field(min_length=1, max_length=1000)]
Stops = Annotated[StopText | Annotated[Listed[StopText], Field(max_length=64)] | None, BeforeValidator(_some)]
StopList = Annotated[Listed[StopText] | None, BeforeValidator(_some)]
Biases = Annotated[dict[StrictStr, _T], BeforeValidator(_few)]


def with_numbers(model: type[_M]) -> type[_M]:
    """Adds a field for every sampling setting that is a number to a model of requests."""
    kinds: dict[str, Any] = {
        name: ((Whole if number.kind is int else Number) | None, None) for name, number in NUMBERS.items()
    }
    return create_model(
        model.__name__, __base__=model, __module__=model.__module__, __doc__=model.__doc__, **kinds
    )
