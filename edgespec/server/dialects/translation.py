"""Requests of other dialects -> chat requests, validated as such."""

from typing import Any

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError

from edgespec.server.dialects.openai.requests import ChatRequest


class Translated(BaseModel):
    """A request of another dialect."""

    def fields(self) -> dict[str, Any]:
        """Returns the corresponding fields of a chat request; None: not given. Raises Refusal."""
        raise NotImplementedError

    def as_chat(self) -> ChatRequest:
        """Returns it as a chat request; raises RequestValidationError or Refusal."""
        given = {name: value for name, value in self.fields().items() if value is not None}
        try:
            body = ChatRequest.model_validate(given)
        except ValidationError as error:
            raise RequestValidationError(
                [{**one, "loc": ("body", *one["loc"])} for one in error.errors()]
            ) from None
        body.check()
        return body
