"""Fetches one file into the hub's cache by the hub's client, and compares size and SHA-256 with the hub's.

A process that is killed leaves a part under a name that nobody resumes (the client's, since its 1.x); Xet
keeps pieces in a cache of its own. What was left is removed before the next download of the same file.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

from filelock import Timeout
from huggingface_hub import constants, hf_hub_download
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.file_download import repo_folder_name
from huggingface_hub.utils import WeakFileLock

from edgespec_models.hub.errors import AGAIN, HubError
from edgespec_models.hub.hub import SHA256, Hub, HubFile
from edgespec_models.hub.retries import DOWNLOAD_TRIES

Phase = Literal["waiting", "downloading", "verifying"]
OnPhase: TypeAlias = Callable[[Phase, int], None]
"""Called with the current stage and how many bytes of the file are done."""

CHUNK = 1 << 20  # bytes
ANEW = "pull again, or use another mirror if it happens twice"
_ETAG = re.compile(r"[0-9a-zA-Z-]{1,128}")

constants.DOWNLOAD_CHUNK_SIZE = CHUNK  # the client's own is ten times as long: progress would come in jumps


def fetch(hub: Hub, file: HubFile, *, verified: bool, on_phase: OnPhase) -> Path:
    """Returns the file's place in the cache, downloaded if it was not there.

    verified: its content was compared with the hub's hash before, so a cached file is taken as it is.
    Raises HubError; a file that turned out bad is removed and named.
    """
    path, sha256 = hub.cached(file), file.sha256
    with hub.converted(str(file)):
        if path is None:
            etag = _version(hub, file)
            free_of_leftovers(hub, file.repo, etag, lambda: on_phase("waiting", 0))
            bar = bar_of(lambda n: on_phase("downloading", n))
            path = hub.again(partial(_downloaded, hub, file, bar), tries=DOWNLOAD_TRIES)
            verified, sha256 = False, etag if SHA256.fullmatch(etag) else sha256
        if not verified:
            _verify(path, file, sha256, on_phase)
    return path


def _version(hub: Hub, file: HubFile) -> str:
    """Returns what names the file's content at the hub. Raises HubError if it would name another file."""
    metadata = hub.metadata(file)
    if not _ETAG.fullmatch(metadata.etag or ""):
        raise HubError(f"{hub.endpoint} gives no version for {file}: check HF_ENDPOINT")
    if None not in (metadata.size, file.size) and metadata.size != file.size:
        raise HubError(
            f"{hub.endpoint} says {file.size:,} bytes of {file} in its list and {metadata.size:,} elsewhere: "
            "try again later, or use another mirror"
        )
    _check_room(hub, file, metadata.size or 0)
    assert metadata.etag
    return metadata.etag


def _check_room(hub: Hub, file: HubFile, needed: int) -> None:
    hub.cache.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(hub.cache).free
    if needed > free:
        raise HubError(
            f"{file} needs {needed:,} bytes more in {hub.cache}, where {free:,} are free: make room, {AGAIN}"
        )


def free_of_leftovers(hub: Hub, repo: str, etag: str, on_wait: Callable[[], None] = lambda: None) -> None:
    """Removes what killed downloads left of a file, unless another program downloads it: calls `on_wait`."""
    folder = repo_folder_name(repo_id=repo, repo_type="model")
    lock = hub.cache / ".locks" / folder / f"{etag}.lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    try:
        with WeakFileLock(lock, timeout=0.5):
            for part in (hub.cache / folder / "blobs").glob(f"{etag}.*.incomplete"):
                part.unlink(missing_ok=True)
    except Timeout:
        on_wait()


def _downloaded(hub: Hub, file: HubFile, bar: Any) -> Path:
    """Downloads a file; by plain HTTP if Xet fails, which some networks do not let through."""
    download = partial(
        hf_hub_download,
        file.repo,
        file.name,
        revision=file.commit,
        cache_dir=hub.cache,
        endpoint=hub.endpoint,
        token=hub.token,
        tqdm_class=bar,
    )
    try:
        return Path(download())
    except OSError as error:
        if isinstance(error, HfHubHTTPError) or "Consistency check failed" not in str(error):
            raise
        size = re.search(r"has size (\d+)", str(error))
        came = f"{int(size[1]):,} bytes in place of {file.size:,}" if size else "another size"
        raise HubError(f"{file} has {came} and was removed: {ANEW}") from None
    except (RuntimeError, ValueError):  # what Xet raises of its own
        if constants.HF_HUB_DISABLE_XET:
            raise
        constants.HF_HUB_DISABLE_XET = True  # for this process, which does nothing else
        return _downloaded(hub, file, bar)


def _verify(path: Path, file: HubFile, sha256: str | None, on_phase: OnPhase) -> None:
    """Compares size and SHA-256 with the hub's; removes the file and raises HubError if they differ."""
    content = path.resolve()
    actual = content.stat().st_size
    if file.size is not None and actual != file.size:
        _remove(path, content)
        raise HubError(f"{file} has {actual:,} bytes in place of {file.size:,} and was removed: {ANEW}")
    if sha256 is None:
        return
    digest, done = hashlib.sha256(), 0
    with open(content, "rb") as blocks:
        while block := blocks.read(CHUNK):
            digest.update(block)
            done += len(block)
            on_phase("verifying", done)
    if digest.hexdigest() != sha256:
        _remove(path, content)
        raise HubError(
            f"{file} is damaged (its SHA-256 is {digest.hexdigest()[:12]}..., the hub says {sha256[:12]}...) "
            f"and was removed: {ANEW}"
        )


def _remove(path: Path, content: Path) -> None:
    os.unlink(content)
    path.unlink(missing_ok=True)  # a link, or a copy of its own where links are not possible


def bar_of(on_bytes: Callable[[int], None]) -> Any:
    """Returns a class that the client takes for a progress bar, and that reports bytes of this file."""

    class Bar:
        """The client's interface of a bar; `update_transfer` keeps Xet from making a second one."""

        format_dict: dict[str, float] = {}

        def __init__(self, *_: object, initial: int = 0, total: int | None = None, **__: object) -> None:
            self.n, self.total = initial, total
            on_bytes(initial)

        def __enter__(self) -> Bar:
            return self

        def update(self, n: float | None = 1) -> None:
            self.n += int(n or 0)
            on_bytes(self.n)

        def nothing(self, *_: object, **__: object) -> None:
            pass

        update_transfer = set_postfix_str = set_transfer_postfix_str = refresh = close = __exit__ = nothing

    return Bar
