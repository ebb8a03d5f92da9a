"""Requests of other dialects -> chat requests, validated as such."""

from collections.abc import Mapping
from typing import Any

from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from edgespec.server.dialects.openai.requests import ChatRequest


def as_chat(fields: Mapping[str, Any]) -> ChatRequest:
    """Returns a chat request of these fields; raises RequestValidationError for what is wrong in it."""
    given = {name: value for name, value in fields.items() if value is not None}
    try:
        body = ChatRequest.model_validate(given)
    except ValidationError as error:
        raise RequestValidationError(
            [{**one, "loc": ("body", *one["loc"])} for one in error.errors()]
        ) from None
    body.check()
    return body
