"""Requests of other dialects -> chat requests, validated as such."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from edgespec.server.requests.chat import ChatRequest
from edgespec.server.requests.fields import Fields

_Part = TypeVar("_Part")
Content = str | list[dict[str, Any]]


def called(id: str, name: str | None, arguments: str | Mapping[str, Any]) -> dict[str, Any]:
    """Returns a call that the assistant made."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return {"id": id, "type": "function", "function": {"name": name, "arguments": text}}


def function(name: str | None, description: str | None, parameters: object) -> dict[str, Any]:
    """Returns a tool."""
    described = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": described}


def text(words: str) -> dict[str, Any]:
    """Returns text as a part of a message."""
    return {"type": "text", "text": words}


def picture(url: str) -> dict[str, Any]:
    """Returns a picture as a part of a message."""
    return {"type": "image_url", "image_url": {"url": url}}


def content_of(
    given: str | Sequence[_Part] | None, part: Callable[[_Part], dict[str, Any] | None]
) -> Content:
    """Returns text, or parts of text and pictures; the model's template decides how to join them.

    part: returns one as a chat request has it; None leaves it out.
    """
    if given is None or isinstance(given, str):
        return given or ""
    return [found for one in given if (found := part(one))]


class Translated(Fields):
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
