"""Asking the hub again when that may help: broken connections, its own faults, 429."""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TypeVar

import httpx2
from huggingface_hub.errors import HfHubHTTPError

TRIES, DOWNLOAD_TRIES = 3, 5  # of one question, of one file
FIRST_WAIT_S = 0.5  # doubled each time
LONGEST_WAIT_S = 30.0  # longer waits are reported to the user
TOO_MANY = 429
PASSING = (TOO_MANY, 500, 502, 503, 504)
_T = TypeVar("_T")
OnWait = Callable[[float], None]
"""Called with the seconds that the hub asks to wait."""


def seconds_until_again(error: Exception, failed: int, tries: int = TRIES) -> float | None:
    """Returns how long to wait before asking again, None if that is useless. failed: times so far."""
    if failed >= tries:
        return None
    wait = FIRST_WAIT_S * 2 ** (failed - 1)
    if isinstance(error, HfHubHTTPError):
        if error.response.status_code not in PASSING:
            return None
        asked = asked_wait(error.response.headers.get("Retry-After", ""))
        return wait if asked is None else asked if asked <= LONGEST_WAIT_S else None
    broken = isinstance(error, httpx2.NetworkError | httpx2.RemoteProtocolError)
    return wait if broken and not isinstance(error, httpx2.ConnectError) else None


def asked_wait(retry_after: str) -> float | None:
    """Returns the seconds of a Retry-After header, which has a number or a date; None for anything else."""
    if retry_after.strip().isdigit():
        return float(retry_after)
    try:
        then = parsedate_to_datetime(retry_after)
    except ValueError:
        return None
    then = then if then.tzinfo else then.replace(tzinfo=UTC)
    return max(0.0, (then - datetime.now(UTC)).total_seconds())


def again(on_wait: OnWait, ask: Callable[[], _T], *, tries: int = TRIES) -> _T:
    """Returns what `ask` does, called again if that may help. Raises its last error.

    on_wait: called before a wait that the hub asks for.
    """
    failed = 0
    while True:
        try:
            return ask()
        except (HfHubHTTPError, httpx2.TransportError) as error:
            failed += 1
            wait = seconds_until_again(error, failed, tries)
            if wait is None:
                raise
            if isinstance(error, HfHubHTTPError) and error.response.status_code == TOO_MANY:
                on_wait(wait)
        time.sleep(wait)
