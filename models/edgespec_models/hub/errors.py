"""Errors of the hub, as one sentence with the next step. The only place that reads them."""

import errno
import json
from collections.abc import Iterator
from contextlib import contextmanager

import httpx2
from huggingface_hub import get_token
from huggingface_hub.errors import (
    EntryNotFoundError,
    FileMetadataError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)


class HubError(Exception):
    """The hub cannot provide a model; the message is one sentence for a user."""


class HubAwayError(HubError):
    """The hub does not answer, whatever it is asked for."""


_BAD_TOKEN = (
    "the token for the hub has invalid characters: set HF_TOKEN again, or log in with `hf auth login`"
)
AGAIN = "pull again"


@contextmanager
def converted(what: str, endpoint: str, *, has_token: bool | None = None) -> Iterator[None]:
    """Turns the errors of client, network and disk into a HubError about `what`: "org/repo", "x of org/repo".

    has_token: whether a token was given; None looks for one where the client does.
    """
    try:
        yield
    except (httpx2.ConnectError, httpx2.ProxyError, httpx2.TimeoutException, OfflineModeIsEnabled) as error:
        raise HubAwayError(_sentence(error, what, endpoint, has_token)) from None
    except (HfHubHTTPError, httpx2.HTTPError, HFValidationError) as error:
        raise HubError(_sentence(error, what, endpoint, has_token)) from None
    except (FileMetadataError, LocalEntryNotFoundError):
        raise HubError(
            f"{endpoint} does not answer like the hub when asked for {what}: check HF_ENDPOINT"
        ) from None
    except OSError as error:
        raise HubError(_of_the_disk(error, what)) from None
    except ValueError as error:  # answers that are not JSON, and files the plain download refuses
        if isinstance(error, json.JSONDecodeError):
            raise HubAwayError(
                f"what answers at {endpoint} when asked for {what} is not the hub, but a page of a proxy or "
                "of the network's login: open a page in a browser, or check HF_ENDPOINT"
            ) from None
        if isinstance(error, UnicodeEncodeError):
            raise HubError(_BAD_TOKEN) from None
        reason = str(error).strip().splitlines()
        raise HubError(
            f"{what} cannot be read from {endpoint}: {reason[0] if reason else 'its answer is invalid'}"
        ) from None


def _sentence(error: Exception, what: str, endpoint: str, has_token: bool | None) -> str:
    if isinstance(error, OfflineModeIsEnabled):
        return f"{what} is not on this machine and offline mode is on: unset HF_HUB_OFFLINE to download it"
    if isinstance(error, HFValidationError):
        return f"{what} is not the name of a repository: write owner/name, as in ggml-org/Qwen3-8B-GGUF"
    if isinstance(error, HfHubHTTPError):
        return _of_the_status(error, what, endpoint, bool(get_token()) if has_token is None else has_token)
    if isinstance(error, httpx2.LocalProtocolError):  # of the headers only the token is not ours
        return _BAD_TOKEN
    if isinstance(error, httpx2.TimeoutException):
        return f"{endpoint} does not answer when asked for {what}: {AGAIN}"
    if isinstance(error, httpx2.ConnectError):
        return f"{endpoint} cannot be reached for {what}: check the network, or HF_ENDPOINT and the proxy"
    return f"the connection to {endpoint} broke while {what} was asked for: {AGAIN}"


def _of_the_status(error: HfHubHTTPError, what: str, endpoint: str, has_token: bool) -> str:
    status = error.response.status_code
    log_in = "log in with `hf auth login` or set HF_TOKEN"
    if isinstance(error, GatedRepoError):
        repo = what.rpartition(" of ")[2]
        accept = f"accept its terms at {endpoint}/{repo}"
        if has_token:
            return (
                f"{what} is gated and your token has no access yet: {accept}, and wait if its owner decides"
            )
        return f"{what} is gated: {accept}, then {log_in}"
    if isinstance(error, RepositoryNotFoundError):
        private = "your token may not see it" if has_token else f"it is private, then {log_in}"
        return f"{endpoint} has no {what}, or {private}: check the spelling"
    if isinstance(error, RevisionNotFoundError):
        return f"{what} has no such revision on {endpoint}: leave it out to take the newest"
    if isinstance(error, EntryNotFoundError):
        return f"there is no {what} on {endpoint}: it was renamed or removed, so look what the repository has"
    if status == 401:
        if has_token:
            return f"{endpoint} refuses your token for {what}: log in again, or correct HF_TOKEN"
        return f"{endpoint} requires a login for {what}: {log_in}"
    if status == 403:
        return f"{endpoint} does not let you read {what}: use a token with the right to read it"
    if status == 404:
        return f"{endpoint} has no {what}: check the spelling"
    if status == 429:
        wait = error.response.headers.get("Retry-After", "")
        when = f"in {wait} s" if wait.isdigit() else "in a few minutes"
        more = "" if has_token else "; a login allows more requests"
        return f"{endpoint} has had too many requests from here: pull again {when}{more}"
    if status >= 500:
        return f"{endpoint} has an internal error ({status}) with {what}: try again in a few minutes"
    return f"{endpoint} answers {status} when asked for {what}: check the name, and HF_ENDPOINT if you set it"


def _of_the_disk(error: OSError, what: str) -> str:
    if error.errno == errno.ENOSPC:
        return f"no space is left on the disk for {what}: make room, {AGAIN}"
    if error.errno == errno.EDQUOT:
        return f"your disk quota is full, and {what} does not fit: make room, {AGAIN}"
    return f"{what} cannot be written: {error.filename or ''} {error.strerror or error}".replace("  ", " ")
