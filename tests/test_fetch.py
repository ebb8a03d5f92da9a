"""A file is fetched by the hub's own client, whole or not at all, and compared with its hash."""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants, hf_hub_download
from huggingface_hub.utils import WeakFileLock
from local_hub import Fault, LocalHub, digest

from edgespec_models.hub import retries
from edgespec_models.hub.errors import HubError
from edgespec_models.hub.fetch import fetch
from edgespec_models.hub.hub import Hub, HubFile

MB = 1 << 20
BYTES = bytes(range(256)) * (4 * MB // 256)


@pytest.fixture
def local() -> Iterator[LocalHub]:
    with LocalHub() as hub:
        hub.add("org/m", {"m.gguf": BYTES})
        yield hub


@pytest.fixture
def hub(local: LocalHub, tmp_path: Path) -> Hub:
    return Hub(endpoint=local.endpoint, token=False, cache=tmp_path / "hub", offline=False)


@pytest.fixture
def file(hub: Hub) -> HubFile:
    return hub.repository("org/m").files["m.gguf"]


class Phases(list[tuple[str, int]]):
    def note(self, phase: str, done: int) -> None:
        self.append((phase, done))

    def of(self, phase: str) -> list[int]:
        return [done for name, done in self if name == phase]


def refused(hub: Hub, file: HubFile) -> str:
    with pytest.raises(HubError) as caught:
        fetch(hub, file, verified=False, on_phase=lambda *_: None)
    assert hub.cached(file) is None, "nothing half-written is taken for whole"
    assert "\n" not in str(caught.value)
    return str(caught.value)


def killed(hub: Hub, file: HubFile) -> Path:
    """Leaves behind what a killed download would: the first bytes, under a name of the client's."""
    part = hub.cache / "models--org--m" / "blobs" / f"{file.sha256}.0a1b2c3d.incomplete"
    part.parent.mkdir(parents=True)
    part.write_bytes(BYTES[:MB])
    return part


def test_a_file_lies_where_every_program_of_the_hub_looks(local: LocalHub, hub: Hub, file: HubFile) -> None:
    phases = Phases()
    path = fetch(hub, file, verified=False, on_phase=phases.note)
    assert path.read_bytes() == BYTES
    assert phases.of("downloading") == [0, MB, 2 * MB, 3 * MB, 4 * MB]
    assert phases.of("verifying") == [MB, 2 * MB, 3 * MB, 4 * MB]
    theirs = hf_hub_download("org/m", "m.gguf", cache_dir=hub.cache, endpoint=hub.endpoint, token=False)
    assert Path(theirs) == path
    assert local.served["m.gguf"] == len(BYTES), "neither they nor we fetch it twice"
    fetch(hub, file, verified=True, on_phase=phases.note)
    assert local.served["m.gguf"] == len(BYTES)
    assert not list(hub.cache.rglob("*incomplete"))


def test_what_others_downloaded_is_verified_once_and_not_fetched(
    local: LocalHub, hub: Hub, file: HubFile
) -> None:
    hf_hub_download("org/m", "m.gguf", cache_dir=hub.cache, endpoint=hub.endpoint, token=False)
    phases = Phases()
    fetch(hub, file, verified=False, on_phase=phases.note)
    assert phases.of("verifying")[-1] == len(BYTES) and not phases.of("downloading")
    phases.clear()
    fetch(hub, file, verified=True, on_phase=phases.note)
    assert not phases
    assert local.served["m.gguf"] == len(BYTES)


def test_what_a_killed_download_left_is_removed(local: LocalHub, hub: Hub, file: HubFile) -> None:
    part = killed(hub, file)
    assert fetch(hub, file, verified=False, on_phase=lambda *_: None).read_bytes() == BYTES
    assert not part.exists()


def test_a_connection_that_breaks_is_taken_up_again(local: LocalHub, hub: Hub, file: HubFile) -> None:
    local.faults.append(Fault("store", cut_after=2 * MB, times=1))
    assert fetch(hub, file, verified=False, on_phase=lambda *_: None).read_bytes() == BYTES
    assert local.served["m.gguf"] <= len(BYTES) + MB, "at most a chunk is sent twice"


def test_a_hub_that_fails_for_long_is_reported(local: LocalHub, hub: Hub, file: HubFile) -> None:
    soon = {"Retry-After": "0"}
    local.faults.append(Fault("store", status=500, headers=soon, times=retries.DOWNLOAD_TRIES))
    assert "has an internal error (500) with m.gguf of org/m" in refused(hub, file)
    assert fetch(hub, file, verified=False, on_phase=lambda *_: None).read_bytes() == BYTES


def test_too_many_requests_are_waited_out_as_reported(local: LocalHub, hub: Hub, file: HubFile) -> None:
    local.faults.append(Fault("store", status=429, headers={"Retry-After": "0"}, times=1))
    assert fetch(hub, file, verified=False, on_phase=lambda *_: None).read_bytes() == BYTES


def test_a_file_comes_through_xet_where_it_is_stored_so(
    local: LocalHub, hub: Hub, file: HubFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real client of Xet, against a store on this machine."""
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", False)
    local.repos["org/m"].xet = local.repos["org/m"].xet_works = True
    phases = Phases()
    assert fetch(hub, file, verified=False, on_phase=phases.note).read_bytes() == BYTES
    assert local.served["m.gguf"] == 0 and not constants.HF_HUB_DISABLE_XET, "nothing by plain HTTP"
    assert phases.of("downloading")[-1] == phases.of("verifying")[-1] == len(BYTES)


def test_where_xet_fails_the_plain_way_has_to_do(
    local: LocalHub, hub: Hub, file: HubFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some networks let the hub through and not what Xet asks; the download used to end there."""
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", False)
    local.repos["org/m"].xet = True
    assert fetch(hub, file, verified=False, on_phase=lambda *_: None).read_bytes() == BYTES
    assert "xet" in {where for where, *_ in local.requests}
    assert local.served["m.gguf"] == len(BYTES)
    assert not list(hub.cache.rglob("*incomplete"))


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (Fault("store", flip=True), "is damaged .its SHA-256 is .* and was removed: pull again"),
        (Fault("store", extra=10), "has 4,194,314 bytes in place of 4,194,304 and was removed"),
        (Fault("store", extra=-10), "has 4,194,294 bytes in place of 4,194,304 and was removed"),
    ],
)
def test_a_bad_file_is_removed_and_named(
    local: LocalHub, hub: Hub, file: HubFile, fault: Fault, expected: str
) -> None:
    local.faults.append(fault)
    message = refused(hub, file)
    with pytest.raises(AssertionError, match=expected):
        raise AssertionError(message)
    assert "m.gguf of org/m" in message
    assert not list(hub.cache.rglob("*incomplete")), "what is bad is not kept"
    local.faults.clear()
    assert fetch(hub, file, verified=False, on_phase=lambda *_: None).read_bytes() == BYTES


def test_a_damaged_file_of_the_cache_is_removed_and_named(hub: Hub, file: HubFile) -> None:
    path = fetch(hub, file, verified=False, on_phase=lambda *_: None)
    blob = path.resolve()
    blob.chmod(0o644)
    blob.write_bytes(bytes(len(BYTES)))
    assert "is damaged" in refused(hub, file)


def test_a_hub_that_contradicts_itself_is_reported(local: LocalHub, hub: Hub, file: HubFile) -> None:
    wrong = HubFile(file.repo, file.commit, file.name, 7, file.sha256)
    assert "says 7 bytes of m.gguf of org/m in its list and 4,194,304 elsewhere" in refused(hub, wrong)


def test_a_version_that_would_name_a_file_elsewhere_is_refused(
    local: LocalHub, hub: Hub, file: HubFile, tmp_path: Path
) -> None:
    headers = {"X-Repo-Commit": file.commit, "X-Linked-Etag": '"../../../evil"', "X-Linked-Size": str(4 * MB)}
    local.faults.append(Fault("resolve", status=200, headers=headers))
    assert "gives no version for m.gguf of org/m" in refused(hub, file)
    assert not list(tmp_path.rglob("evil*"))


def test_a_file_that_is_gone_is_reported(local: LocalHub, hub: Hub) -> None:
    gone = HubFile("org/m", "c0ffee" + "0" * 34, "old.gguf", 7, None)
    assert "there is no old.gguf of org/m" in refused(hub, gone)


def test_a_folder_that_cannot_be_written_is_reported(hub: Hub, file: HubFile) -> None:
    hub.cache.parent.mkdir(parents=True, exist_ok=True)
    hub.cache.write_bytes(b"a file where a folder should be")
    assert "m.gguf of org/m cannot be written" in refused(hub, file)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 3 MB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = shutil.which("mount")
    if (
        not mount
        or subprocess.run(
            [mount, "-t", "tmpfs", "-o", "size=3m", "tmpfs", folder], capture_output=True
        ).returncode
    ):
        pytest.skip("mounting a small file system is not allowed here")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_disk_without_room_is_reported_before_anything_is_fetched(
    local: LocalHub, file: HubFile, small_disk: Path
) -> None:
    hub = Hub(endpoint=local.endpoint, token=False, cache=small_disk, offline=False)
    assert "needs 4,194,304 bytes more in" in refused(hub, file)
    assert local.served["m.gguf"] == 0


def test_a_disk_that_fills_up_is_reported_and_nothing_stays_behind(
    local: LocalHub, file: HubFile, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgespec_models.hub.fetch._check_room", lambda *_: None)  # another program takes it
    hub = Hub(endpoint=local.endpoint, token=False, cache=small_disk, offline=False)
    with pytest.warns(UserWarning, match="Not enough free disk space"):
        assert "no space is left on the disk for m.gguf of org/m: make room" in refused(hub, file)
    assert not list(small_disk.rglob("*incomplete"))


def test_the_digest_of_the_local_hub_is_the_true_one(local: LocalHub) -> None:
    import hashlib

    assert digest(local.repos["org/m"].files["m.gguf"]) == hashlib.sha256(BYTES).hexdigest()


def test_a_file_that_another_program_downloads_is_waited_for(
    local: LocalHub, hub: Hub, file: HubFile
) -> None:
    lock = hub.cache / ".locks" / "models--org--m" / f"{file.sha256}.lock"
    lock.parent.mkdir(parents=True)
    phases, done = Phases(), threading.Event()

    def other() -> None:
        fetch(hub, file, verified=False, on_phase=phases.note)
        done.set()

    with WeakFileLock(lock):
        thread = threading.Thread(target=other)
        thread.start()
        deadline = time.monotonic() + 20
        while not phases and time.monotonic() < deadline:
            time.sleep(0.02)
        assert phases == [("waiting", 0)] and not done.is_set()
    thread.join(20)
    assert done.is_set() and local.served["m.gguf"] == len(BYTES)
