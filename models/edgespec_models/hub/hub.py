"""The hub, through its own client: a repository's content, and the first bytes of its files.

Everything is pinned to the commit at which the repository was listed, so a file that changes in the middle
cannot be mixed from two versions. The hub's own cache is used, as by every program with that client.
"""

import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from huggingface_hub import HfApi, constants, get_hf_file_metadata, hf_hub_url, try_to_load_from_cache
from huggingface_hub.file_download import HfFileMetadata, repo_folder_name
from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

from edgespec_models.gguf.header import Header, read_file, read_header
from edgespec_models.hub.errors import HubError, converted
from edgespec_models.hub.retries import OnWait, again

TIMEOUT_S = 15.0
SHA256 = re.compile(r"[0-9a-f]{64}")
_COMMIT = re.compile(r"[0-9a-zA-Z]{1,64}")  # it becomes part of a folder's name
HEADERS_KEPT = 4  # of some megabytes each

logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # HubError reports what it would log


def same_host(url: str, other: str) -> bool:
    """Whether two addresses are of one host and port."""
    return urlsplit(url).netloc.lower() == urlsplit(other).netloc.lower()


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a repository, at one commit."""

    repo: str
    commit: str
    name: str  # with folders
    size: int | None  # bytes; None if the hub does not say
    sha256: str | None  # None if the hub does not say

    def __str__(self) -> str:
        return f"{self.name} of {self.repo}"


@dataclass(frozen=True, slots=True)
class Repository:
    """The content of a repository."""

    repo: str
    commit: str
    files: Mapping[str, HubFile]


class Hub:
    """One hub, and the cache its files go to.

    endpoint: by default HF_ENDPOINT. token: by default HF_TOKEN or the login; False sends none. cache: by
    default HF_HUB_CACHE. Raises HubError everywhere.
    """

    def __init__(
        self,
        *,
        endpoint: str | None = None,
        token: str | bool | None = None,
        cache: Path | None = None,
        offline: bool | None = None,
        on_wait: OnWait = lambda seconds: None,
    ) -> None:
        """on_wait: called with the seconds that the hub asks to wait, before waiting."""
        self.endpoint = (endpoint or os.environ.get("HF_ENDPOINT") or constants.ENDPOINT).rstrip("/")
        self.token = token
        self.cache = cache or Path(os.environ.get("HF_HUB_CACHE") or constants.HF_HUB_CACHE)
        self.again = partial(again, on_wait)
        self.offline = constants.is_offline_mode() if offline is None else offline
        self._headers: dict[HubFile, tuple[Header, int]] = {}  # those asked for last

    def converted(self, what: str) -> Any:
        """Converts errors about `what` in a `with`."""
        return converted(
            what, self.endpoint, has_token=None if self.token in (None, True) else bool(self.token)
        )

    def url(self, file: HubFile) -> str:
        """Returns a file's address at the hub."""
        return hf_hub_url(file.repo, file.name, revision=file.commit, endpoint=self.endpoint)

    def metadata(self, file: HubFile) -> HfFileMetadata:
        """Returns what the hub says of a file. Raises what the client does."""
        url = self.url(file)
        return self.again(
            lambda: get_hf_file_metadata(url, token=self.token, timeout=TIMEOUT_S, endpoint=self.endpoint)
        )

    def repository(self, repo: str, revision: str | None = None) -> Repository:
        """Returns a repository's content; offline, what is in the cache of it."""
        if self.offline:
            return self._cached_repository(repo, revision or "main")
        with self.converted(repo):
            api = HfApi(endpoint=self.endpoint, token=self.token)
            info = self.again(
                lambda: api.model_info(repo, revision=revision, files_metadata=True, timeout=TIMEOUT_S)
            )
        if not _COMMIT.fullmatch(info.sha or "") or info.sha is None or info.siblings is None:
            raise HubError(f"{self.endpoint} does not say what {repo} holds: check HF_ENDPOINT")
        files = {}
        for sibling in info.siblings:
            if not sibling.rfilename.isprintable():
                continue  # a name that a terminal would obey, or that is more than a line
            listed = sibling.lfs.sha256 if sibling.lfs else ""
            sha256 = listed if SHA256.fullmatch(listed) else None  # it becomes part of a file's name
            size = sibling.lfs.size if sibling.lfs else sibling.size
            files[sibling.rfilename] = HubFile(repo, info.sha, sibling.rfilename, size, sha256)
        return Repository(repo, info.sha, files)

    def _cached_repository(self, repo: str, revision: str) -> Repository:
        with self.converted(repo):
            folder = self.cache / repo_folder_name(repo_id=repo, repo_type="model")
        snapshot = _snapshot(folder, revision)
        found = {}
        for path in sorted(snapshot.rglob("*.gguf")):
            name, blob = path.relative_to(snapshot).as_posix(), path.resolve()
            if blob.is_file():
                sha256 = blob.name if len(blob.name) == 64 else None
                found[name] = HubFile(repo, snapshot.name, name, blob.stat().st_size, sha256)
        if not found:
            raise HubError(
                f"{repo} is not on this machine and offline mode is on: unset HF_HUB_OFFLINE to download it"
            )
        return Repository(repo, snapshot.name, found)

    def cached(self, file: HubFile) -> Path | None:
        """Returns the file's place in the cache; None if it is not there."""
        with self.converted(str(file)):
            found = try_to_load_from_cache(file.repo, file.name, cache_dir=self.cache, revision=file.commit)
        return Path(found) if isinstance(found, str) and os.path.exists(found) else None

    def header(self, file: HubFile) -> tuple[Header, int]:
        """Returns a GGUF's header and how many bytes were fetched for it: 0 if it is in the cache.

        Raises HeaderError too.
        """
        path = self.cached(file)
        if path:
            return read_file(path), 0
        if file not in self._headers:
            with self.converted(str(file)):
                source = _HubSource(self, file)
                header = read_header(source)
            if len(self._headers) >= HEADERS_KEPT:
                self._headers.pop(next(iter(self._headers)))
            self._headers[file] = header, source.fetched
        return self._headers[file]


def _snapshot(folder: Path, revision: str) -> Path:
    """Returns the folder of a revision in the cache; for "main" without a note of what it was, the newest."""
    ref, snapshots = folder / "refs" / revision, folder / "snapshots"
    if ref.is_file():
        return snapshots / ref.read_text().strip()
    if revision == "main" and snapshots.is_dir():
        return max(snapshots.iterdir(), key=lambda path: path.stat().st_mtime, default=snapshots / revision)
    return snapshots / revision


class _HubSource:
    """A file on the hub as a Source: ranges of bytes, from the address that the hub gives."""

    def __init__(self, hub: Hub, file: HubFile) -> None:
        self.name, self.fetched = file.name, 0
        metadata = hub.metadata(file)
        self._again = hub.again
        self.size = metadata.size if metadata.size is not None else file.size
        self._url = metadata.location
        self._headers = build_hf_headers(token=hub.token)
        self._headers["Accept-Encoding"] = "identity"
        if not same_host(hub.url(file), self._url):  # a token is for the hub, not for its stores
            self._headers.pop("authorization", None)

    def read(self, offset: int, n: int) -> bytes:
        """Returns up to n bytes from offset, and counts what came over the wire for it."""
        if self.size is not None:
            n = min(n, self.size - offset)
        if n <= 0:
            return b""
        return self._again(lambda: self._range(offset, n))

    def _range(self, offset: int, n: int) -> bytes:
        headers = {**self._headers, "Range": f"bytes={offset}-{offset + n - 1}"}
        with get_session().stream("GET", self._url, headers=headers, timeout=TIMEOUT_S) as response:
            hf_raise_for_status(response)
            skip = 0 if response.status_code == 206 else offset  # 200: ranges are ignored, all of it comes
            content = bytearray()
            try:
                for chunk in response.iter_raw():
                    content += chunk
                    if len(content) >= skip + n:
                        break
            finally:
                self.fetched += len(content)
        return bytes(content[skip : skip + n])
