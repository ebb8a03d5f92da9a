"""Numbers in requests: a field for each row of the table of sampling settings."""

from typing import Any, TypeVar

from pydantic import BaseModel, StrictFloat, StrictInt, create_model

from edgespec.sampling.settings import NUMBERS

Number = StrictFloat | StrictInt
_M = TypeVar("_M", bound=BaseModel)


def with_numbers(model: type[_M]) -> type[_M]:
    """Adds a field for every sampling setting that is a number to a model of requests."""
    kinds: dict[str, Any] = {
        name: ((StrictInt if number.kind is int else Number) | None, None) for name, number in NUMBERS.items()
    }
    return create_model(
        model.__name__, __base__=model, __module__=model.__module__, __doc__=model.__doc__, **kinds
    )
