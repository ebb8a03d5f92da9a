"""One HTTP server, and its possible errors as sentences. Standard library only."""

import http.client
import json
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from edgespec.errors import (
    EdgeSpecError,
    EndpointError,
    EndpointLostError,
    EngineDiedError,
    PromptTooLongError,
)
from edgespec.system.odd_text import as_text

LONGEST_REASON = 1000  # characters of what a server says
MOST_REASONS = 3
LONGEST_WAIT_S = 3600.0  # that a server may ask for
LARGEST_ANSWER = 64 * 2**20  # bytes of a whole answer, or a line of a stream


@dataclass(frozen=True, slots=True)
class Server:
    """Where it is, and what opens connections. path: where OpenAI's routes are."""

    host: str
    port: int
    key: str | None = field(default=None, repr=False)
    secure: bool = False
    path: str = "/v1"

    @property
    def where(self) -> str:
        """Returns its address, for people."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        usual = self.port == (443 if self.secure else 80)
        return f"{'https' if self.secure else 'http'}://{host}{'' if usual else f':{self.port}'}{self.path}"

    @contextmanager
    def connected(self, silence_s: float) -> Iterator[http.client.HTTPConnection]:
        """Opens a connection and closes it again; errors inside become EndpointLostError.

        silence_s: how long the server may be silent.
        """
        if self.secure:
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                self.host, self.port, timeout=silence_s, context=ssl.create_default_context()
            )
        else:
            connection = http.client.HTTPConnection(self.host, self.port, timeout=silence_s)
        try:
            yield connection
        except ssl.SSLError as error:
            reason = getattr(error, "verify_message", "") or error.reason or str(error)
            raise EndpointLostError(
                f"no secure connection to {self.where}: {reason}; does it have a valid certificate?"
            ) from None
        except TimeoutError:
            raise EndpointLostError(f"{self.where} sent nothing for {silence_s:g} s: ask again") from None
        except (OSError, http.client.HTTPException, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise EndpointLostError(f"{self.where} does not answer ({reason}): is it running?") from None
        finally:
            connection.close()

    def ask(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        *,
        root: bool = False,
    ) -> http.client.HTTPResponse:
        """Sends a request, and returns the answer once its head has come. root: `path` is not below /v1.

        Raises the error that the server answers with.
        """
        headers = {"content-type": "application/json", "connection": "close"}
        if self.key:
            headers["authorization"] = f"Bearer {self.key}"
        data = None if body is None else json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")
        connection.request(method, path if root else self.path + path, data, headers)
        answer = connection.getresponse()
        if 300 <= answer.status < 400:
            answer.close()
            to = as_text(answer.headers.get("location") or "another address")[:LONGEST_REASON]
            raise EndpointError(
                f"{self.where} sends its callers to {to}: use that address", status=answer.status
            )
        if answer.status != 200:
            raise complaint(self.read(answer), answer.status, answer.headers.get("retry-after"))
        return answer

    def read(self, answer: http.client.HTTPResponse) -> bytes:
        """Returns the body of an answer; raises EndpointError if it is larger than any sensible one."""
        with answer:  # if no length was given, reading a part leaves its socket open
            data = answer.read(LARGEST_ANSWER + 1)
        if len(data) > LARGEST_ANSWER:
            raise EndpointError(f"{self.where} answered more than {LARGEST_ANSWER / 2**20:g} MiB")
        return data


def complaint(body: bytes, status: int, retry_after: str | None = None) -> EdgeSpecError:
    """Returns the error that an error answer stands for. status: 0 in a stream."""
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        answer = None
    if isinstance(answer, list) and answer:  # as Google's has it
        answer = answer[0]
    error = answer.get("error") if isinstance(answer, dict) else None
    if not isinstance(error, dict):
        error = {}
    reason = _reason(answer) or ("" if answer is not None else _words(body))
    message = reason or f"the server answered {status or 'with an error'} without a reason"
    code = error.get("code") if isinstance(error.get("code"), str) else None
    counts = [error.get("n_prompt_tokens"), error.get("n_ctx")]
    if code == "context_length_exceeded" and all(isinstance(count, int) for count in counts):
        return PromptTooLongError(*(int(count) for count in counts if isinstance(count, int)))
    if code == "engine_died":
        return EngineDiedError(message)
    if code == "server_ended":
        return EndpointLostError(message, status=status, code=code)
    retry_s = None
    with suppress(ValueError, TypeError):
        retry_s = float(retry_after)  # type: ignore[arg-type]
    waits = retry_s is not None and 0 <= retry_s < LONGEST_WAIT_S
    return EndpointError(message, status=status, code=code, retry_s=retry_s if waits else None)


def _reason(part: object, depth: int = 4) -> str:
    """Returns why a server refuses, wherever its error has that: OpenAI's, FastAPI's, a gateway's."""
    if isinstance(part, str):
        return as_text(part.strip())[:LONGEST_REASON]
    inner: list[object] = []
    if isinstance(part, list):
        inner = part[:MOST_REASONS]
    elif isinstance(part, dict):
        inner = [part.get(name) for name in ("error", "message", "detail", "msg", "error_description")]
    found = [reason for one in inner if depth and (reason := _reason(one, depth - 1))]
    return "; ".join(found if isinstance(part, list) else found[:1])


def _words(body: bytes) -> str:
    """Returns the first line of an answer that is plain text; "" of a page."""
    line = as_text(body[:LONGEST_REASON].decode("utf-8", "replace")).strip().partition("\n")[0]
    return "" if line.startswith("<") else line


def kind_of(value: object) -> str:
    """Returns what a value of JSON is, in words."""
    if isinstance(value, bool):
        return "true or false"
    named = {str: "a text", list: "a list", dict: "an object", type(None): "null"}
    return named.get(type(value), "a number")
