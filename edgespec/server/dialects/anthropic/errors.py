"""Refusals as Anthropic's clients read them."""

from typing import Any

from edgespec.server.refusal import Refusal

TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "request_too_large",
    415: "invalid_request_error",
    422: "invalid_request_error",
    429: "rate_limit_error",
    501: "invalid_request_error",
    503: "overloaded_error",
}


def error_of(refusal: Refusal, request_id: str) -> dict[str, Any]:
    """Returns Anthropic's error object; its sentence names the wrong field."""
    error = {"type": TYPES.get(refusal.status, "api_error"), "message": refusal.body()["error"]["message"]}
    return {"type": "error", "error": error, "request_id": request_id}
