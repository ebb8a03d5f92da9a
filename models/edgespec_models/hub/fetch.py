"""Fetch one file into the hub's cache: resumed where it stopped, verified, and only then under its name.

The client itself starts anew after an interruption (since its 1.x it writes to a file of a random name and
deletes it). So the file is written here, by the client's own functions, beside where the client would put it:
`blobs/<etag>.edgespec.incomplete`. A complete file's size and SHA-256 are compared with the hub's,
and only then does it get its name; the client then finds it and makes its entry in the snapshot.

Xet, the hub's other way of storing files, keeps pieces in a cache of its own and promises no resumption; a
file begun on the plain path is therefore finished on it.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeAlias

import httpx2
from filelock import Timeout
from huggingface_hub import constants, get_hf_file_metadata, hf_hub_download, hf_hub_url
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.file_download import (
    HfFileMetadata,
    http_get,
    is_xet_available,
    repo_folder_name,
    xet_get,
)
from huggingface_hub.utils import WeakFileLock, XetFileData, build_hf_headers

from edgespec_models.hub.errors import AGAIN, HubError
from edgespec_models.hub.hub import SHA256, TIMEOUT_S, Hub, HubFile, same_host
from edgespec_models.hub.retries import DOWNLOAD_TRIES, OnWait, again, pause, seconds_until_again

Phase = Literal["waiting", "downloading", "verifying"]
OnPhase: TypeAlias = Callable[[Phase, int], None]
"""Called with the current stage and how many bytes of the file are done."""

CHUNK = 1 << 20  # bytes; a process that is killed loses no more than this of each file
UNFINISHED = ".edgespec.incomplete"
UNFINISHED_BY_XET = ".edgespec.xet.incomplete"
ANEW = "pull again, or use another mirror if it happens twice"
RANGE_NOT_THERE = 416
_ETAG = re.compile(r"[0-9a-zA-Z-]{1,128}")

constants.DOWNLOAD_CHUNK_SIZE = CHUNK  # the client's own is ten times as long


def unfinished(hub: Hub, file: HubFile) -> int:
    """Returns how many bytes of a file an earlier download left behind."""
    part = _blob(hub, file.repo, file.sha256 or "?").with_name((file.sha256 or "?") + UNFINISHED)
    return part.stat().st_size if part.is_file() else 0


def fetch(
    hub: Hub, file: HubFile, *, verified: bool, on_phase: OnPhase, on_wait: OnWait = lambda seconds: None
) -> Path:
    """Returns the file's place in the cache, downloaded if it was not there.

    verified: its content was compared with the hub's hash before, so a cached file is taken as it is.
    on_wait: called with the seconds that the hub asks to wait.
    Raises HubError; a file that turned out bad is removed and named.
    """
    path = hub.cached(file)
    with hub.told(str(file)):
        if path is None:
            path = _download(hub, file, on_phase, on_wait)
        elif not verified:
            _verify(path.resolve(), file, file.sha256, on_phase)
    return path


def _download(hub: Hub, file: HubFile, on_phase: OnPhase, on_wait: OnWait) -> Path:
    url = hf_hub_url(file.repo, file.name, revision=file.commit, endpoint=hub.endpoint)
    metadata = again(
        lambda: get_hf_file_metadata(url, token=hub.token, timeout=TIMEOUT_S, endpoint=hub.endpoint), on_wait
    )
    etag = metadata.etag or ""
    if not _ETAG.fullmatch(etag):  # it becomes a file's name
        raise HubError(f"{hub.endpoint} gives no version for {file}: check HF_ENDPOINT")
    if None not in (metadata.size, file.size) and metadata.size != file.size:
        raise HubError(
            f"{hub.endpoint} says {file.size:,} bytes of {file} in its list and {metadata.size:,} elsewhere: "
            "try again later, or use another mirror"
        )
    blob = _blob(hub, file.repo, etag)
    lock = hub.cache / ".locks" / blob.parent.parent.name / f"{etag}.lock"
    for folder in (blob.parent, lock.parent):
        folder.mkdir(parents=True, exist_ok=True)
    with _locked(lock, on_phase):
        if not blob.exists():
            _complete(hub, file, metadata, url, blob, on_phase, on_wait)
    return Path(
        again(
            lambda: hf_hub_download(
                file.repo,
                file.name,
                revision=file.commit,
                cache_dir=hub.cache,
                endpoint=hub.endpoint,
                token=hub.token,
                tqdm_class=bar_of(lambda _: None),
            ),
            on_wait,
        )
    )


def _blob(hub: Hub, repo: str, etag: str) -> Path:
    return hub.cache / repo_folder_name(repo_id=repo, repo_type="model") / "blobs" / etag


def _locked(lock: Path, on_phase: OnPhase) -> Any:
    """Takes the client's lock on a file; reports if another program has it."""
    try:
        with WeakFileLock(lock, timeout=1.0):
            pass
    except Timeout:
        on_phase("waiting", 0)
    return WeakFileLock(lock)


def _complete(
    hub: Hub,
    file: HubFile,
    metadata: HfFileMetadata,
    url: str,
    blob: Path,
    on_phase: OnPhase,
    on_wait: OnWait,
) -> None:
    part = blob.with_name(blob.name + UNFINISHED)
    size = metadata.size if metadata.size is not None else file.size
    if part.exists() and size is not None and part.stat().st_size > size:
        part.unlink()  # of a faulty answer
    have = part.stat().st_size if part.exists() else 0
    _check_room(hub, file, (size or 0) - have, blob.parent)
    headers = build_hf_headers(token=hub.token)
    bar = bar_of(lambda n: on_phase("downloading", n))
    on_phase("downloading", have)
    xet = metadata.xet_file_data if is_xet_available() else None
    if xet and not have and _got_by_xet(file, xet, blob, size, headers, bar):
        part = blob.with_name(blob.name + UNFINISHED_BY_XET)
    else:
        location = metadata.location if metadata.xet_file_data is None else url
        if not same_host(url, location):
            headers.pop("authorization", None)  # a token is for the hub, not for its stores
        _get_to_the_end(lambda have: _get(file, location, part, have, size, headers, bar), part, on_wait)
    etag_hash = metadata.etag if metadata.etag and SHA256.fullmatch(metadata.etag) else None
    _verify(part, file, etag_hash or file.sha256, on_phase, size=size)
    os.replace(part, blob)
    for name in (UNFINISHED, UNFINISHED_BY_XET):
        blob.with_name(blob.name + name).unlink(missing_ok=True)


def _got_by_xet(
    file: HubFile, xet: XetFileData, blob: Path, size: int | None, headers: dict[str, str], bar: Any
) -> bool:
    """Gets a file by Xet, from its beginning; False if that fails, and the plain way has to do.

    It writes in any order, so what it left unfinished is useless.
    """
    part = blob.with_name(blob.name + UNFINISHED_BY_XET)
    part.unlink(missing_ok=True)
    try:
        xet_get(
            incomplete_path=part,
            xet_file_data=xet,
            headers=headers,
            expected_size=size,
            displayed_filename=file.name,
            tqdm_class=bar,
        )
    except (OSError, RuntimeError, ValueError):  # of its own kinds, of the network, of the hub's answers
        part.unlink(missing_ok=True)
        return False
    return True


def _get_to_the_end(get: Callable[[int], None], part: Path, on_wait: OnWait) -> None:
    """Resumes after a broken connection, as long as more comes. get: called with the bytes so far."""
    failed = 0
    while True:
        have = part.stat().st_size if part.exists() else 0
        try:
            return get(have)
        except (HfHubHTTPError, httpx2.TransportError) as error:
            came = part.stat().st_size if part.exists() else 0
            failed = 1 if came > have else failed + 1
            wait = seconds_until_again(error, failed, DOWNLOAD_TRIES)
            if wait is None:
                raise
            caught: Exception = error
        pause(wait, caught, on_wait)


def _get(
    file: HubFile, url: str, part: Path, have: int, size: int | None, headers: dict[str, str], bar: Any
) -> None:
    """Gets what is missing of `part`; removes what cannot become the whole."""
    try:
        with open(part, "r+b" if have else "wb") as out:
            out.seek(have)
            http_get(
                url,
                out,
                resume_size=have,
                headers=headers,
                expected_size=size,
                displayed_filename=file.name,
                tqdm_class=bar,
            )
            out.flush()
            os.fsync(out.fileno())  # a finished name must never stand for bytes that a power cut could lose
    except HfHubHTTPError as error:
        if error.response.status_code != RANGE_NOT_THERE:
            raise
        part.unlink()
        raise HubError(
            f"{file} is shorter than the hub said, and what was here was removed: {ANEW}"
        ) from None
    except OSError as error:
        if "Consistency check failed" not in str(error):
            raise
        came = part.stat().st_size
        part.unlink()
        raise HubError(f"{file} has {came:,} bytes in place of {size:,} and was removed: {ANEW}") from None


def _check_room(hub: Hub, file: HubFile, needed: int, folder: Path) -> None:
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise HubError(
            f"{file} needs {needed:,} bytes more in {hub.cache}, where {free:,} are free: make room, {AGAIN}"
        )


def _verify(
    path: Path, file: HubFile, sha256: str | None, on_phase: OnPhase, *, size: int | None = None
) -> None:
    """Compares size and SHA-256 with the hub's; removes the file and raises HubError if they differ."""
    size = size if size is not None else file.size
    actual = path.stat().st_size
    if size is not None and actual != size:
        path.unlink()
        raise HubError(f"{file} has {actual:,} bytes in place of {size:,} and was removed: {ANEW}")
    if sha256 is None:
        return
    digest, done = hashlib.sha256(), 0
    with open(path, "rb") as content:
        while block := content.read(CHUNK):
            digest.update(block)
            done += len(block)
            on_phase("verifying", done)
    if digest.hexdigest() != sha256:
        path.unlink()
        raise HubError(
            f"{file} is damaged (its SHA-256 is {digest.hexdigest()[:12]}..., the hub says {sha256[:12]}...) "
            f"and was removed: {ANEW}"
        )


def bar_of(on_bytes: Callable[[int], None]) -> Any:
    """Returns a class that the client takes for a progress bar, and that reports bytes of this file."""

    class Bar:
        """The client's interface of a bar; `update_transfer` keeps Xet from making a second one."""

        format_dict: dict[str, float] = {}

        def __init__(self, *_: object, initial: int = 0, total: int | None = None, **__: object) -> None:
            self.n, self.total = initial, total

        def __enter__(self) -> Bar:
            return self

        def update(self, n: float | None = 1) -> None:
            self.n += int(n or 0)
            on_bytes(self.n)

        def nothing(self, *_: object, **__: object) -> None:
            pass

        update_transfer = set_postfix_str = set_transfer_postfix_str = refresh = close = __exit__ = nothing

    return Bar
